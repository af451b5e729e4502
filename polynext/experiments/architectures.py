"""Sweep of architectures for encrypted photographs: accuracy against estimated encrypted latency.

Each is trained for a few epochs and planned at two ring degrees. The command is `polynext encrypted design`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from polynext.encrypted import Limits, plan_run
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.errors import PolyNeXtError
from polynext.experiments.report import Report, bullets
from polynext.experiments.sweep import Sweep, Trial
from polynext.models import ArchitectureChanges
from polynext.models.costs import count_macs, count_parameters
from polynext.recipes import recipe
from polynext.runs import load_run
from polynext.schema import NonNegative, PositiveInt
from polynext.training import EmaConfig, TrainConfig, build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "cipher"  # the recipe whose network the architectures change
RING_DEGREES = (2**14, 2**15)
ON_FRONTIER, OTHERS = "#1b9e77", "#888888"  # colours


@dataclass(frozen=True, kw_only=True)
class Architecture(ArchitectureChanges):
    """Changes of the network cpolynext_cipher_bn: in numbers, and optionally a variant by name."""

    variant: str = ""

    @property
    def name(self) -> str:
        """The changes as text, such as `widths=32-64,stacks=2`; the recipe's name if there are none."""
        changes = {field: value for field, value in asdict(self).items() if value}
        numbers = {f: "-".join(map(str, v)) if isinstance(v, tuple) else v for f, v in changes.items()}
        return ",".join(f"{field}={value}" for field, value in numbers.items()) or BASE


# Single changes of 64 channels and four stacks, which train fast, and a few combinations. A smaller patch gives more
# positions; with fewer channels, they fill the same number of slots.
ARCHITECTURES = (
    Architecture(widths=(64,)),
    Architecture(widths=(64,), stacks=(3,)),
    Architecture(widths=(64,), stacks=(5,)),
    Architecture(widths=(64,), stacks=(6,)),
    Architecture(widths=(64,), coarse_kernel=5),
    Architecture(widths=(32,)),
    Architecture(),
    Architecture(patch=2, widths=(32,)),
    Architecture(patch=2, widths=(64,)),
    Architecture(patch=2, widths=(32, 64), stacks=(2,)),
    Architecture(patch=2, widths=(32, 128), stacks=(2,)),
    Architecture(patch=2, widths=(48, 96), stacks=(3,)),
)


@dataclass(frozen=True, kw_only=True)
class ArchitectureSweep(Sweep):
    """The architectures of a sweep, and the settings that they share. The data is CIFAR-10.

    Attributes:
        architectures: the architectures.
        epochs: length of each training.
        memory: megabytes that the server's process may use.
        key_memory: megabytes that the rotation keys may use.
        error: largest error of the logits, relative to the largest logit.
        images: number of training images; 0 for all.
        root: .npz file, or torchvision's folder.
    """

    architectures: Annotated[tuple[Architecture, ...], tyro.conf.Suppress]
    epochs: PositiveInt
    memory: PositiveInt
    key_memory: PositiveInt
    error: NonNegative

    may_change: ClassVar = Sweep.may_change | {"architectures", "memory", "key_memory", "error"}

    def with_those_in(self, out: Path) -> "ArchitectureSweep":
        """This sweep with the architectures of the one in a folder, if there is one, before its own."""
        before = self.read(out).architectures if (out / "sweep.json").is_file() else ()
        return replace(self, architectures=tuple(dict.fromkeys((*before, *self.architectures))))

    def config(self, name: str) -> TrainConfig:
        """The base recipe with the architecture, adapted to a few epochs.

        Batches are small, the warmup is short, and neither averaging nor compiling would pay off. Data is loaded in the
        training process because the sweep itself uses all cores.
        """
        base = recipe(BASE)
        changes = next(asdict(one) for one in self.architectures if one.name == name)
        config = replace(
            base,
            model=replace(base.model, **changes),
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

    def trials(self) -> list[Trial]:
        """One run for each architecture. Raises if there is no such network."""
        for one in self.architectures:
            build_model(self.config(one.name), 10, device="meta")
        return [Trial(one.name, seed=0) for one in self.architectures]

    @property
    def limits(self) -> dict[str, float]:
        """The settings that the plans depend on."""
        return {"memory": self.memory, "key_memory": self.key_memory, "error": self.error}

    def conclude(self, folder: Path) -> dict[str, Any]:
        """Plans a trained network: at each ring degree a cost estimate, or the reason why there is no plan."""
        run, plans = load_run(folder), []
        for ring_degree in RING_DEGREES:
            # After a short training many predictions are uncertain. Those that noise flips do not matter here.
            limits = Limits(self.memory * MEBIBYTE, self.key_memory * MEBIBYTE, (ring_degree,), self.error, flips=1.0)
            try:
                plan = plan_run(run, limits=limits)
            except PolyNeXtError as error:
                plans.append({"ring_degree": ring_degree, "why_not": str(error)})
                continue
            cost = {**plan.cost.to_json(), "peak_bytes": plan.cost.peak_bytes}
            plans.append({"ring_degree": ring_degree, "modulus_bits": plan.parameters.modulus_bits, "cost": cost})
        return {"limits": self.limits, "plans": plans}

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


@dataclass(frozen=True)
class ArchitectureResult:
    """An architecture's accuracy after a short training, and its plans."""

    name: str
    stages: str  # channels and positions of each, in words
    stacks: int  # in all stages
    parameters: int
    macs: int  # for one image in cleartext
    accuracy: float | None  # in percent; None if the run has none
    plans: Sequence[dict[str, Any]]  # for each ring degree a cost estimate, or the reason why there is no plan
    problem: str  # why there is neither accuracy nor plan; empty if there is

    @property
    def plan(self) -> dict[str, Any] | None:
        """The fastest plan."""
        planned = [plan for plan in self.plans if "cost" in plan]
        return min(planned, key=lambda plan: plan["cost"]["seconds"], default=None)

    @property
    def seconds(self) -> float | None:
        """Estimated seconds for one image on one core of this machine."""
        return self.plan["cost"]["seconds"] if self.plan else None

    @property
    def reasons(self) -> list[str]:
        """Why accuracy or plans are missing."""
        why_not = [f"2^{p['ring_degree'].bit_length() - 1}: {p['why_not']}" for p in self.plans if "why_not" in p]
        return [f"{self.name}: {reason}" for reason in [self.problem] * bool(self.problem) + why_not]


def collect(sweep: Sweep, trials: Sequence[Trial], out: Path) -> list[ArchitectureResult]:
    """Reads the results of a sweep."""
    results = []
    for trial in trials:
        config = sweep.config(trial.name)
        size = config.data.preprocessing.input_size
        model: Any = build_model(config, 10, device="meta")
        stages, side = model.config.stages, size[-1] // model.config.stem_stride
        result = trial.result(out) or {"error": "not trained yet"}
        diverged = f"its training diverged at step {result['diverged']}" if "diverged" in result else ""
        results.append(
            ArchitectureResult(
                name=trial.name,
                stages=", ".join(f"{stage.width} at {side >> i}x{side >> i}" for i, stage in enumerate(stages)),
                stacks=sum(stage.cells * stage.stacks for stage in stages),
                parameters=count_parameters(model),
                macs=count_macs(model, size),
                accuracy=result.get("accuracy"),
                plans=result.get("plans", []),
                problem=result.get("error", diverged),
            )
        )
    return results


def points(results: Sequence[ArchitectureResult]) -> list[tuple[float, float, ArchitectureResult]]:
    """Seconds and accuracy of the architectures that have both."""
    return [(one.seconds, one.accuracy, one) for one in results if one.seconds is not None and one.accuracy is not None]


def pareto(results: Sequence[ArchitectureResult]) -> list[ArchitectureResult]:
    """The Pareto frontier: no other architecture is both faster and as accurate. Fastest first."""
    frontier, highest = [], -1.0
    for _, accuracy, one in sorted(points(results), key=lambda point: (point[0], -point[1])):
        if accuracy > highest:
            highest = accuracy
            frontier.append(one)
    return frontier


def architecture_report(title: str, settings: dict[str, Any], results: Sequence[ArchitectureResult]) -> Report:
    """The report on results of `collect`."""
    frontier = pareto(results)
    header = ("architecture", "channels", "stacks", "parameters", "MMACs", "ring", "rotations / plain / ct products")
    rows = [
        (
            one.name,
            one.stages,
            str(one.stacks),
            f"{one.parameters:,}",
            f"{one.macs / 1e6:.1f}",
            *plan_columns(one.plan),
            "-" if one.accuracy is None else f"{one.accuracy:.2f}",
            "best for its time" if one in frontier else "",
        )
        for one in results
    ]
    records = [asdict(one) | {"seconds": one.seconds, "best_for_its_time": one in frontier} for one in results]
    return Report(
        title=title,
        columns=(*header, "keys (MB)", "memory (MB)", "seconds", "accuracy (%)", ""),
        rows=rows,
        left=(0, 1, 11),
        notes=bullets("Not planned", [reason for one in results for reason in one.reasons]),
        record={**settings, "architectures": records},
        draw=lambda: draw(results, title),
    )


def plan_columns(plan: dict[str, Any] | None) -> tuple[str, ...]:
    if plan is None:
        return ("-",) * 5
    cost = plan["cost"]
    return (
        f"2^{plan['ring_degree'].bit_length() - 1}",
        f"{cost['rotations']} / {cost['plaintext_products']} / {cost['ciphertext_products']}",
        f"{cost['key_bytes'] / MEBIBYTE:,.0f}",
        f"{cost['peak_bytes'] / MEBIBYTE:,.0f}",
        f"{cost['seconds']:.1f}",
    )


def draw(results: Sequence[ArchitectureResult], title: str) -> "Figure":
    """Accuracy against estimated seconds, with the Pareto frontier as a line."""
    from matplotlib.figure import Figure

    frontier = pareto(results)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    edge = points(frontier)
    axes.step([x for x, _, _ in edge], [y for _, y, _ in edge], where="post", color=ON_FRONTIER, alpha=0.6)
    for seconds, accuracy, one in points(results):
        axes.plot(seconds, accuracy, "o", color=ON_FRONTIER if one in frontier else OTHERS)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="minor", labelsize=7)
    axes.set_xlabel("estimated seconds per image, on one core")
    axes.set_ylabel("accuracy after a short training (%)")
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.15, y=0.1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    name_points(axes, [(seconds, accuracy, one.name) for seconds, accuracy, one in points(results)])
    return figure


def name_points(axes: Any, named: Sequence[tuple[float, float, str]]) -> None:
    """Labels points, each on the first side where the label covers neither a point nor another label."""
    from matplotlib.transforms import Bbox

    figure = axes.figure
    figure.draw_without_rendering()  # positions are known only after a draw
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform([p[:2] for p in named])]
    sides = [("left", 6, 4), ("left", 6, -10), ("right", -6, 4), ("right", -6, -10)]
    for x, y, name in sorted(named):
        for side in sides:
            align, *offset = side
            label = axes.annotate(name, (x, y), offset, textcoords="offset points", ha=align, fontsize=7)
            box = label.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            if side == sides[-1] or (inside and not any(box.overlaps(other) for other in taken)):
                taken.append(box)
                break
            label.remove()
