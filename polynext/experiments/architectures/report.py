"""The results of an architecture sweep: accuracy beside the cost estimate of encrypted inference."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.experiments.report import Report, bullets
from polynext.experiments.sweep import Sweep, Trial
from polynext.models.costs import count_macs, count_parameters
from polynext.training import build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ArchitectureResult:
    """An architecture's accuracy after a short training, and its plans.

    Attributes:
        name: the name in the sweep.
        variant: the variant of the base network; empty for the base itself.
        stages: channels and positions of each stage, in words.
        stacks: number of stacks in all stages.
        parameters: number of parameters.
        macs: multiply-accumulates for one image in cleartext.
        accuracy: test accuracy in percent; None if the run has none.
        plans: for each ring degree a cost estimate, or the reason why there is no plan.
        problem: why there is neither accuracy nor plan; empty if there is.
    """

    name: str
    variant: str
    stages: str
    stacks: int
    parameters: int
    macs: int
    accuracy: float | None
    plans: tuple[dict[str, Any], ...]
    problem: str

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
        return [f"{self.name}, {reason}" for reason in [self.problem] * bool(self.problem) + why_not]


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
        # Version 0.3 called the cost estimate a bill.
        plans = [{"cost" if key == "bill" else key: plan[key] for key in plan} for plan in result.get("plans", ())]
        results.append(
            ArchitectureResult(
                trial.name,
                trial.name if config.model.variant or config.model.architecture else "",
                ", ".join(f"{stage.width} at {side >> i}x{side >> i}" for i, stage in enumerate(stages)),
                sum(stage.cells * stage.stacks for stage in stages),
                count_parameters(model),
                count_macs(model, size),
                result.get("accuracy"),
                tuple(plans),
                result.get("error", diverged),
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
    records = [
        asdict(one) | {"seconds": one.seconds, "best_for_its_time": one in frontier, "plans": list(one.plans)}
        for one in results
    ]
    return Report(
        title=title,
        columns=(*header, "keys (MB)", "memory (MB)", "seconds", "accuracy (%)", ""),
        rows=rows,
        left=(0, 1, 11),
        notes=bullets("Not planned", [reason for one in results for reason in one.reasons]),
        record={**settings, "designs": records},
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
    axes.step([x for x, _, _ in edge], [y for _, y, _ in edge], where="post", color="#1b9e77", alpha=0.6)
    for seconds, accuracy, one in points(results):
        axes.plot(seconds, accuracy, "o", color="#1b9e77" if one in frontier else "#888888")
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
