"""What a sweep of designs found: accuracy beside the bill, as a table, JSON and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.experiments.architectures.sweep import BASE, DesignSweep
from polynext.experiments.sweep import Trial
from polynext.models.costs import count_macs, count_parameters
from polynext.training import build_model


@dataclass(frozen=True)
class Design:
    """A design: its network, its accuracy after a short training, and a plan for each ring degree.

    Attributes:
        name: the base, or the variant of it.
        stages: channels and positions of each, in words.
        stacks: in all stages together.
        parameters: of the network.
        macs: multiply-accumulates for an image in the clear.
        accuracy: of the test images, in per cent; None if there is none.
        plans: for each ring degree a bill, or the sentence why there is none.
        problem: why there is no accuracy or no plan at all, as a sentence; empty if there are both.
    """

    name: str
    stages: str
    stacks: int
    parameters: int
    macs: int
    accuracy: float | None
    plans: tuple[dict[str, Any], ...]
    problem: str

    @property
    def plan(self) -> dict[str, Any] | None:
        """The fastest."""
        planned = [plan for plan in self.plans if "cost" in plan]
        return min(planned, key=lambda plan: plan["cost"]["seconds"], default=None)

    @property
    def seconds(self) -> float | None:
        """Planned for an image on one core of this machine."""
        return self.plan["cost"]["seconds"] if self.plan else None

    @property
    def reasons(self) -> list[str]:
        """What there is to say where something is missing."""
        why_not = [f"2^{p['ring_degree'].bit_length() - 1}: {p['why_not']}" for p in self.plans if "why_not" in p]
        return [self.problem] * bool(self.problem) + why_not


def collect(sweep: DesignSweep, trials: Sequence[Trial], out: Path) -> list[Design]:
    """What there is of each design, in their order."""
    return [design(sweep, trial, out) for trial in trials]


def design(sweep: DesignSweep, trial: Trial, out: Path) -> Design:
    config = sweep.config(trial.name)
    size = config.data.preprocessing.input_size
    model: Any = build_model(config, 10, device="meta")
    stages, side = model.config.stages, size[-1] // model.config.stem_stride
    result = trial.result(out)
    problem = "not trained yet" if result is None else result.get("error", "")
    if result and "diverged" in result:
        problem = f"its training diverged at step {result['diverged']}"
    return Design(
        trial.name,
        ", ".join(f"{stage.width} at {side >> i}x{side >> i}" for i, stage in enumerate(stages)),
        sum(stage.cells * stage.stacks for stage in stages),
        count_parameters(model),
        count_macs(model, size),
        (result or {}).get("accuracy"),
        tuple((result or {}).get("plans", ())),
        problem,
    )


def points(designs: Sequence[Design]) -> list[tuple[float, float, Design]]:
    """Seconds and accuracy of the designs that have both."""
    return [(one.seconds, one.accuracy, one) for one in designs if one.seconds is not None and one.accuracy is not None]


def pareto(designs: Sequence[Design]) -> list[Design]:
    """Those that no other one beats: none is as accurate in less time, or more accurate in the same. Fastest first."""
    best, highest = [], -1.0
    for _, accuracy, one in sorted(points(designs), key=lambda point: (point[0], -point[1])):
        if accuracy > highest:
            highest = accuracy
            best.append(one)
    return best


HEADER = (
    "design",
    "channels",
    "stacks",
    "parameters",
    "MMACs",
    "ring",
    "rotations / plain / ct products",
    "keys (MB)",
    "memory (MB)",
    "seconds",
    "accuracy (%)",
    "",
)
LEFT = (0, 1, 11)


def table_rows(designs: Sequence[Design]) -> list[tuple[str, ...]]:
    best = pareto(designs)
    return [
        (
            one.name,
            one.stages,
            str(one.stacks),
            f"{one.parameters:,}",
            f"{one.macs / 1e6:.1f}",
            *planned(one),
            "-" if one.accuracy is None else f"{one.accuracy:.2f}",
            "best for its time" if one in best else "",
        )
        for one in designs
    ]


def planned(one: Design) -> tuple[str, ...]:
    if one.plan is None:
        return ("-",) * 5
    cost = one.plan["cost"]
    return (
        f"2^{one.plan['ring_degree'].bit_length() - 1}",
        f"{cost['rotations']} / {cost['plaintext_products']} / {cost['ciphertext_products']}",
        f"{cost['key_bytes'] / MEBIBYTE:,.0f}",
        f"{cost['peak_bytes'] / MEBIBYTE:,.0f}",
        f"{cost['seconds']:.1f}",
    )


def sentences(designs: Sequence[Design]) -> list[str]:
    """A sentence for each plan or accuracy that is missing."""
    return [f"{one.name}, {reason}" for one in designs for reason in one.reasons]


def markdown(sweep: DesignSweep, designs: Sequence[Design]) -> str:
    """A page with the table, the figure, and why plans are missing."""
    rule = ["---" if i in LEFT else "---:" for i in range(len(HEADER))]
    lines = ["| " + " | ".join(row) + " |" for row in (HEADER, rule, *table_rows(designs))]
    page = [title(sweep), "", *lines, "", "![Accuracy against planned seconds](report.png)", ""]
    if missing := sentences(designs):
        page += ["Not planned:", "", *(f"- {sentence}" for sentence in missing), ""]
    return "\n".join(page)


def title(sweep: DesignSweep) -> str:
    images = f"{sweep.images:,}" if sweep.images else "all"
    return f"CIFAR-10, {images} training images, {sweep.epochs} epochs; one image in a ciphertext, one core"


def to_json(sweep: DesignSweep, designs: Sequence[Design]) -> dict[str, Any]:
    best = pareto(designs)
    return {
        "images": sweep.images,
        "epochs": sweep.epochs,
        "limits": sweep.limits,
        "designs": [
            {
                "name": one.name,
                "variant": "" if one.name == BASE else one.name,
                "stages": one.stages,
                "stacks": one.stacks,
                "parameters": one.parameters,
                "macs": one.macs,
                "accuracy": one.accuracy,
                "seconds": one.seconds,
                "best_for_its_time": one in best,
                "plans": list(one.plans),
                "problem": one.problem,
            }
            for one in designs
        ],
    }


def draw(sweep: DesignSweep, designs: Sequence[Design], path: Path) -> None:
    """Accuracy against planned seconds, with the designs that none beats joined."""
    from matplotlib.figure import Figure

    best = pareto(designs)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    edge = points(best)
    axes.step([x for x, _, _ in edge], [y for _, y, _ in edge], where="post", color="#1b9e77", alpha=0.6)
    for seconds, accuracy, one in points(designs):
        axes.plot(seconds, accuracy, "o", color="#1b9e77" if one in best else "#888888")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="minor", labelsize=7)
    axes.set_xlabel("planned seconds an image, on one core")
    axes.set_ylabel("accuracy after a short training (%)")
    axes.set_title(title(sweep), fontsize=10)
    axes.margins(x=0.15, y=0.1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    name_points(axes, [(seconds, accuracy, one.name) for seconds, accuracy, one in points(designs)])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def name_points(axes: Any, named: Sequence[tuple[float, float, str]]) -> None:
    """Writes names beside points, each on the first side where it covers neither a point nor another name."""
    from matplotlib.transforms import Bbox

    figure = axes.figure
    figure.draw_without_rendering()  # places are known only then
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform([p[:2] for p in named])]
    sides = [(True, 4), (True, -10), (False, 4), (False, -10)]
    for x, y, name in sorted(named):
        for right, up in sides:
            label = axes.annotate(
                name,
                (x, y),
                xytext=(6 if right else -6, up),
                textcoords="offset points",
                ha="left" if right else "right",
                fontsize=7,
            )
            box = label.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            if (inside and not any(box.overlaps(other) for other in taken)) or (right, up) == sides[-1]:
                taken.append(box)
                break
            label.remove()
