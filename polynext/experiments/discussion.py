"""The explanations of the paper's Section 5, measured. `polynext ablate discussion` trains for it.

Four questions, each with a report and a table of ablation rows of the same name:

    coupling       does each branch learn through its sibling, and does GELU block it?
    scales         does Sigmoid-Scale tie the size of a scale's updates to the scale?
    amplification  do products amplify, and what bounds them?
    sensitivity    how sensitive are PolyNeXt and a MetaFormer of its size to learning rate and batch size?
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polynext import paper
from polynext.experiments.ablation.report import Outcome, collect, over_seeds
from polynext.experiments.ablation.rows import FACTORS, SENSITIVITY
from polynext.experiments.report import Report
from polynext.experiments.sweep import Sweep, Trial
from polynext.training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE = "cpolynext"
COMPARISON = ("accuracy (%)", "difference", "paper's")
FUSIONS = {
    BASELINE: "a * b",
    "gelu-one-branch": "gelu(a) * b",
    "gelu-both-branches": "gelu(a) * gelu(b)",
    "gelu-after-product": "gelu(a * b)",
    "addition": "a + b",
}
SCALES = {
    BASELINE: "Sigmoid-Scale",
    "learnable-scale": "free scalar",
    "layerscale-small": "LayerScale from 1e-6",
    "layerscale-one": "LayerScale from 1",
}
STABILISERS = {
    BASELINE: "all",
    "layerscale-one": "no Sigmoid-Scale",
    "single-input": "no multi-input skip",
    "no-cell-norm": "no cell norm",
}
COLOURS = ("#222222", "#d95f02", "#7570b3", "#1b9e77", "#e7298a")


@dataclass(frozen=True)
class Measured:
    """The outcome of a row, and what diagnostics recorded in its runs, by seed."""

    outcome: Outcome
    runs: list[list[dict[str, Any]]]  # a list of records for each seed; a record has "step" and "cells"

    @property
    def accuracy(self) -> str:
        return self.outcome.remark or over_seeds(list(self.outcome.accuracies.values()))

    def compared_with(self, baseline: "Measured") -> tuple[str, str, str]:
        """Accuracy, difference from the baseline, and the paper's difference: the cells below `COMPARISON`."""
        if self is baseline:
            return self.accuracy, "-", "-"
        differences = over_seeds(self.outcome.differences(baseline.outcome), "+")
        return self.accuracy, differences, paper.ablation_difference(self.outcome.name)

    def steps(self) -> list[int]:
        return [record["step"] for record in min(self.runs, key=len)]

    def curve(self, value: Callable[[dict[str, Any]], float]) -> np.ndarray:
        """A value of a record's cells at each step, averaged over seeds."""
        count = len(self.steps())
        return np.mean([[value(record["cells"]) for record in run[:count]] for run in self.runs], axis=0)


def discussion_reports(sweep: Sweep, trials: Sequence[Trial], out: Path) -> dict[str, Report]:
    """The report on each question whose rows were trained, from the folder of a sweep with diagnostics."""
    measured = {}
    for outcome in collect(sweep, trials, out):
        folders = [RunFolder(trial.folder(out)) for trial in trials if trial.name == outcome.name]
        runs = [[record for record in folder.records() if "cells" in record] for folder in folders]
        measured[outcome.name] = Measured(outcome, [run for run in runs if run])
    questions: dict[str, tuple[Iterable[str], Callable[[dict[str, Measured]], Report]]] = {
        "coupling": (FUSIONS, coupling),
        "scales": (SCALES, scale_updates),
        "amplification": (STABILISERS, amplification),
        "sensitivity": ((*FAMILIES, *(row.name for row in SENSITIVITY)), sensitivity),
    }
    return {
        question: report({name: measured[name] for name in names})
        for question, (names, report) in questions.items()
        if measured.keys() >= set(names)
    }


# Coupling


def branch_mean(key: str) -> Callable[[dict[str, Any]], float]:
    """The mean of a branch statistic over all operators of a network."""

    def value(cells: dict[str, Any]) -> float:
        return statistics.fmean(operator[key] for cell in cells.values() for operator in cell["branches"])

    return value


def coupling(measured: dict[str, Measured]) -> Report:
    keys = ("dead_a", "dead_b", "dead_both", "passed_a", "passed_b", "coupling")
    means = {name: {key: float(one.curve(branch_mean(key)).mean()) for key in keys} for name, one in measured.items()}
    rows = [
        (
            FUSIONS[name],
            *(f"{100 * means[name][key]:.1f}" for key in keys[:3]),
            *(f"{means[name][key]:.2f}" for key in keys[3:5]),
            f"{means[name]['coupling']:.2f}",
            *one.compared_with(measured[BASELINE]),
        )
        for name, one in measured.items()
    ]
    return Report(
        title="Gradients of the two branches",
        columns=(
            "f(a, b)",
            "dead for W_a (%)",
            "for W_b (%)",
            "for both (%)",
            "passed to W_a",
            "to W_b",
            "coupling",
            *COMPARISON,
        ),
        rows=rows,
        notes=[
            "An element is dead for a branch if it gives the branch less than a tenth of the gradient that a product "
            "would give it. Passed is the sum of the gradient's absolute values in units of the sum that a product "
            "would give. Coupling is the correlation between the size of a branch's derivative and that of its "
            "sibling. All are means over all operators, steps and seeds."
        ],
        record={"rows": means},
        draw=lambda: draw_coupling(measured),
    )


def draw_coupling(measured: dict[str, Measured]) -> "Figure":
    figure, panels = new_figure(4)
    titles = {
        "dead_a": "dead for $W_a$",
        "dead_b": "dead for $W_b$",
        "dead_both": "dead for both at once",
        "coupling": "coupling",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for colour, (name, one) in zip(COLOURS, measured.items(), strict=False):
            axes.plot(one.steps(), one.curve(branch_mean(key)), color=colour, label=FUSIONS[name])
        finish(axes, title, "step", "correlation" if key == "coupling" else "share of elements")
        axes.set_ylim(-0.03, 1.03 if key == "coupling" else 0.6)
    legend_below(figure, panels[0])
    return figure


# Scales


def scale_points(run: list[dict[str, Any]]) -> np.ndarray:
    """The mean scale and the mean absolute change between two records, of each scale that changes."""
    points = []
    for cell in run[0]["cells"]:
        path = np.array([record["cells"][cell]["scales"] for record in run])  # (records, sublayers)
        points += list(zip(np.abs(path).mean(axis=0), np.abs(np.diff(path, axis=0)).mean(axis=0), strict=True))
    return np.array([point for point in points if min(point) > 0])


def exponent(scales: np.ndarray, updates: np.ndarray) -> float | None:
    """p of a fit `update = c s^p`; None if the scales are too alike to tell."""
    if len(scales) < 2 or scales.max() < 2 * scales.min():
        return None
    return float(np.polyfit(np.log(scales), np.log(updates), 1)[0])


def scale_updates(measured: dict[str, Measured]) -> Report:
    points = {name: np.concatenate([scale_points(run) for run in one.runs]) for name, one in measured.items()}
    slopes = {name: exponent(*each.T) for name, each in points.items()}
    rows = []
    for name, one in measured.items():
        scales, updates = points[name].T
        rows.append(
            (
                SCALES[name],
                f"{scales.min():.3g} to {scales.max():.3g}",
                f"{updates.min():.2g} to {updates.max():.2g}",
                "-" if slopes[name] is None else f"{slopes[name]:+.2f}",
                *one.compared_with(measured[BASELINE]),
            )
        )
    return Report(
        title="Updates of the residual scales",
        columns=("scale", "scales s", "updates", "exponent", *COMPARISON),
        rows=rows,
        notes=[
            "The exponent p is that of a fit `update = c s^p` over all sublayers and seeds: 1 if updates are "
            "proportional to the scale, 0 if they do not depend on it. An update is the mean absolute change between "
            "two records. LayerScale is averaged over channels."
        ],
        record={"exponents": slopes, "points": {name: each.tolist() for name, each in points.items()}},
        draw=lambda: draw_scales(points),
    )


def draw_scales(points: dict[str, np.ndarray]) -> "Figure":
    figure, (axes,) = new_figure(1)
    for colour, (name, each) in zip(COLOURS, points.items(), strict=False):
        axes.scatter(each[:, 0], each[:, 1], s=14, color=colour, label=SCALES[name], alpha=0.75)
    axes.set(xscale="log", yscale="log")
    finish(axes, "updates of the residual scales", "scale s", "mean update")
    legend_below(figure, axes)
    return figure


# Amplification


def by_stack(one: Measured, key: str, reduce: Callable[..., Any] = np.max) -> np.ndarray:
    """The largest absolute value at each stack, over all steps, averaged over seeds."""
    return np.mean([reduce([per_stack(record, key) for record in run], axis=0) for run in one.runs], axis=0)


def per_stack(record: dict[str, Any], key: str) -> list[float]:
    return [value for cell in record["cells"].values() for value in cell[key]]


def amplification(measured: dict[str, Measured]) -> Report:
    keys = ("stack_activations", "stack_gradients")
    largest = {name: {key: by_stack(one, key).tolist() for key in keys} for name, one in measured.items()}
    first = {name: {key: by_stack(one, key, first_of).tolist() for key in keys} for name, one in measured.items()}
    rows = [
        (
            STABILISERS[name],
            *(f"{max(first[name][key]):.3g}" for key in keys),
            *(f"{max(largest[name][key]):.3g}" for key in keys),
            *one.compared_with(measured[BASELINE]),
        )
        for name, one in measured.items()
    ]
    return Report(
        title="Largest activations and gradients",
        columns=(
            "stabilisation",
            "activation, first record",
            "gradient, first record",
            "activation, whole run",
            "gradient, whole run",
            *COMPARISON,
        ),
        rows=rows,
        notes=["Largest absolute value at the output of any stack, averaged over seeds."],
        record={"whole_run": largest, "first_record": first},
        draw=lambda: draw_amplification(largest),
    )


def first_of(values: Sequence[Any], axis: int = 0) -> Any:
    return values[0]


def draw_amplification(largest: dict[str, dict[str, list[float]]]) -> "Figure":
    figure, panels = new_figure(2)
    for axes, (key, what) in zip(
        panels, (("stack_activations", "activation"), ("stack_gradients", "gradient")), strict=True
    ):
        for colour, (name, values) in zip(COLOURS, largest.items(), strict=False):
            axes.plot(range(1, len(values[key]) + 1), values[key], "o-", color=colour, label=STABILISERS[name])
        axes.set_yscale("log")
        finish(axes, f"largest {what} of the run", "stack", "")
    legend_below(figure, panels[0])
    return figure


# Sensitivity

FAMILIES = {"cpolynext-s": "CPolyNeXt", "peer": "ConvFormer of its size"}


def sensitivity(measured: dict[str, Measured]) -> Report:
    def outcome(family: str, what: str, factor: float) -> Measured:
        return measured[family if factor == 1 else f"{family}-{what}-x{factor:g}"]

    settings = [(what, factor) for what, factors in FACTORS.items() for factor in sorted({*factors, 1.0})]
    rows = [
        (what, f"x {factor:g}", *(outcome(family, what, factor).accuracy for family in FAMILIES))
        for what, factor in settings
    ]
    accuracies = {
        what: {
            family: {
                factor: list(outcome(family, what, factor).outcome.accuracies.values())
                for of, factor in settings
                if of == what
            }
            for family in FAMILIES
        }
        for what in FACTORS
    }
    return Report(
        title="Sensitivity to learning rate and batch size",
        columns=("setting", "factor", *(f"{title} (%)" for title in FAMILIES.values())),
        rows=rows,
        left=(0, 1),
        notes=["Factors of the recipe's learning rate, and of its batch size at the same learning rate and epochs."],
        record={"accuracies": accuracies},
        draw=lambda: draw_sensitivity(accuracies),
    )


def draw_sensitivity(accuracies: dict[str, dict[str, dict[float, list[float]]]]) -> "Figure":
    figure, panels = new_figure(2)
    for axes, (what, families) in zip(panels, accuracies.items(), strict=True):
        for colour, (family, points) in zip(COLOURS, families.items(), strict=False):
            found = {factor: values for factor, values in points.items() if values}
            means = [statistics.fmean(values) for values in found.values()]
            spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in found.values()]
            axes.errorbar(list(found), means, spread, fmt="o-", capsize=3, color=colour, label=FAMILIES[family])
        axes.set_xscale("log", base=2)
        finish(axes, {"lr": "learning rate", "batch": "batch size"}[what], "factor", "accuracy (%)")
    legend_below(figure, panels[0])
    return figure


def new_figure(panels: int) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(4.0 * panels, 5.5), 3.6), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def finish(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: "Figure", axes: "Axes") -> None:
    """One legend for all panels, where it hides no points."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), columnspacing=1.2, fontsize=8, frameon=False
    )
