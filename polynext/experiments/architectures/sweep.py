"""The designs: variants of a network for encrypted photographs, trained for a short time, then planned."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from polynext.encrypted import Limits, plan_run
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.errors import PolyNeXtError
from polynext.experiments.sweep import Sweep, Trial
from polynext.models.variants import split_variant
from polynext.recipes import recipe
from polynext.runs import Run, load_run
from polynext.training import EmaConfig, ModelConfig, TrainConfig, build_model

BASE = "cipher"
RING_DEGREES = (2**14, 2**15)

# One change at a time around 64 channels and four stacks, which train fast, and a few that change several things: a
# smaller patch makes more positions, for which fewer channels take as many slots.
DESIGNS = (
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
class DesignSweep(Sweep):
    """What all designs share. A design is the base, `cipher`, or a variant of it such as `widths-64+stacks-5`.

    Attributes:
        epochs: of the short training.
        memory: megabytes that the server's process may take.
        key_memory: megabytes that rotation keys may take.
        error: how far logits may be off, in units of the largest.
    """

    epochs: int = 4
    memory: int = 8192
    key_memory: int = 1536
    error: float = 1e-2

    may_change: ClassVar[frozenset[str]] = Sweep.may_change | {"memory", "key_memory", "error"}

    def config(self, name: str) -> TrainConfig:
        """The base's recipe for a design, with what pays in a few epochs: small batches, a short warmup, no average of
        the weights, no compiling; and no processes for data, as designs themselves fill the cores."""
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
        return self.on_its_data(config)

    @property
    def limits(self) -> dict[str, float]:
        """What a plan may take: the settings that it has to be made again for."""
        return {name: asdict(self)[name] for name in ("memory", "key_memory", "error")}

    def conclude(self, folder: Path) -> dict[str, Any]:
        """The bill of a trained design at each ring degree, or the sentence why there is none."""
        run = load_run(folder)
        return {"limits": self.limits, "plans": [self.plan(run, ring_degree) for ring_degree in RING_DEGREES]}

    def plan(self, run: Run, ring_degree: int) -> dict[str, Any]:
        # After so short a training many predictions are in doubt, and that noise changes some says nothing of a design.
        limits = Limits(self.memory * MEBIBYTE, self.key_memory * MEBIBYTE, (ring_degree,), self.error, flips=1.0)
        try:
            plan = plan_run(run, limits=limits)
        except PolyNeXtError as error:
            return {"ring_degree": ring_degree, "why_not": str(error)}
        cost = {**plan.cost.to_json(), "peak_bytes": plan.cost.peak_bytes}
        return {"ring_degree": ring_degree, "modulus_bits": plan.parameters.modulus_bits, "cost": cost}


def changed(model: ModelConfig, design: str) -> ModelConfig:
    """The network of a design such as `widths-64+stacks-5`."""
    variant, fields = split_variant(design)
    return replace(model, variant=variant, **fields)


def design_trials(designs: Sequence[str], sweep: DesignSweep) -> list[Trial]:
    """One for each design, if it is one."""
    for name in designs:
        build_model(sweep.config(name), 10, device="meta")
    return [Trial(name, seed=0) for name in dict.fromkeys(designs)]


def forget_plans(trials: Sequence[Trial], sweep: DesignSweep, out: Path, all_of_them: bool = False) -> None:
    """Takes away results whose plans were made within other limits, or all; the networks stay trained."""
    for trial in trials:
        result = trial.result(out)
        if result and "accuracy" in result and (all_of_them or result.get("limits") != sweep.limits):
            trial.forget(out)
