"""The sweep that trains architectures for encrypted photographs and plans their encrypted inference."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from polynext.encrypted import Limits, plan_run
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.errors import PolyNeXtError
from polynext.experiments.architectures.report import architecture_report, collect
from polynext.experiments.report import Report
from polynext.experiments.sweep import Sweep, Trial
from polynext.models.variants import split_variant
from polynext.recipes import recipe
from polynext.runs import Run, load_run
from polynext.training import EmaConfig, ModelConfig, TrainConfig, build_model

BASE = "cipher"
RING_DEGREES = (2**14, 2**15)

# Single changes of 64 channels and four stacks, which train fast, and a few combinations. A smaller patch gives more
# positions; with fewer channels, they fill the same number of slots.
ARCHITECTURES = (
    "widths-64",
    "widths-64+stacks-3",
    "widths-64+stacks-5",
    "widths-64+stacks-6",
    "widths-64+coarse-5",
    "widths-32",
    BASE,
    "patch-2+widths-32",
    "patch-2+widths-64",
    "patch-2+widths-32-64+stacks-2",
    "patch-2+widths-32-128+stacks-2",
    "patch-2+widths-48-96+stacks-3",
)


@dataclass(frozen=True)
class ArchitectureSweep(Sweep):
    """Settings that all architectures share. An architecture is `cipher` or a variant such as `widths-64+stacks-5`.

    Attributes:
        epochs: length of each training.
        memory: megabytes that the server's process may use.
        key_memory: megabytes that the rotation keys may use.
        error: largest error of the logits, relative to the largest logit.
        images: number of training images; 0 for all.
        root: folder or .npz file of the data.
    """

    epochs: int = 4
    memory: int = 8192
    key_memory: int = 1536
    error: float = 1e-2

    may_change: ClassVar[frozenset[str]] = Sweep.may_change | {"memory", "key_memory", "error"}

    def config(self, name: str) -> TrainConfig:
        """The base recipe with the architecture, adapted to a few epochs.

        Batches are small, the warmup is short, and neither averaging nor compiling would pay off. Data is loaded in the
        training process because the sweep itself uses all cores.
        """
        base = recipe(BASE)
        config = replace(
            base,
            model=base.model if name == BASE else changed(base.model, name),
            data=replace(base.data, workers=0),
            schedule=replace(base.schedule, warmup_epochs=1),
            ema=EmaConfig(decay=0.0),
            compile=False,
            batch_size=64,
            micro_batch=64,
            epochs=self.epochs,
            evaluate_every=self.epochs,
        )
        return self.with_data(config)

    def trials(self, names: Sequence[str]) -> list[Trial]:
        """One run for each architecture. Raises if a name is not an architecture."""
        for name in names:
            build_model(self.config(name), 10, device="meta")
        return [Trial(name, seed=0) for name in dict.fromkeys(names)]

    @property
    def limits(self) -> dict[str, float]:
        """The settings that the plans depend on."""
        return {name: asdict(self)[name] for name in ("memory", "key_memory", "error")}

    def conclude(self, folder: Path) -> dict[str, Any]:
        """Plans a trained network at each ring degree."""
        run = load_run(folder)
        return {"limits": self.limits, "plans": [self.plan(run, ring_degree) for ring_degree in RING_DEGREES]}

    def plan(self, run: Run, ring_degree: int) -> dict[str, Any]:
        """The cost estimate at a ring degree, or the reason why there is no plan."""
        # After a short training many predictions are uncertain. Those that noise flips do not matter here.
        limits = Limits(self.memory * MEBIBYTE, self.key_memory * MEBIBYTE, (ring_degree,), self.error, flips=1.0)
        try:
            plan = plan_run(run, limits=limits)
        except PolyNeXtError as error:
            return {"ring_degree": ring_degree, "why_not": str(error)}
        cost = {**plan.cost.to_json(), "peak_bytes": plan.cost.peak_bytes}
        return {"ring_degree": ring_degree, "modulus_bits": plan.parameters.modulus_bits, "cost": cost}

    def forget_plans(self, trials: Sequence[Trial], out: Path, everything: bool = False) -> None:
        """Removes results that were planned with other limits, or all results. The trained networks remain."""
        for trial in trials:
            result = trial.result(out)
            if result and "accuracy" in result and (everything or result.get("limits") != self.limits):
                trial.forget(out)

    def report(self, trials: Sequence[Trial], out: Path) -> Report:
        """The accuracy and the cost estimate of each architecture."""
        images = f"{self.images:,}" if self.images else "all"
        title = f"CIFAR-10, {images} training images, {self.epochs} epochs; one image in a ciphertext, one core"
        settings = {"images": self.images, "epochs": self.epochs, "limits": self.limits}
        return architecture_report(title, settings, collect(self, trials, out))


def changed(model: ModelConfig, architecture: str) -> ModelConfig:
    """The network of an architecture such as `widths-64+stacks-5`."""
    variant, fields = split_variant(architecture)
    return replace(model, variant=variant, **fields)
