"""The explanations of the paper's Section 5, measured. `polynext ablate discussion` trains for it.

Four questions, each with a report and a table of ablation rows of the same name:

    coupling       does each branch learn through its sibling, and does GELU block it?
    scales         does Sigmoid-Scale tie the size of a scale's updates to the scale?
    amplification  do products amplify, and what bounds them?
    sensitivity    how sensitive are PolyNeXt and a MetaFormer of its size to learning rate and batch size?
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    from matplotlib.figure import Figure

BASELINE = "cpolynext"
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
FAMILIES = {"cpolynext-s": "CPolyNeXt", "peer": "ConvFormer of its size"}
COLOURS = ("#222222", "#d95f02", "#7570b3", "#1b9e77", "#e7298a")


@dataclass(frozen=True)
class Measured:
    """The outcome of a row, and what diagnostics recorded in its runs, by seed."""

    outcome: Outcome
    runs: list[list[dict[str, Any]]]  # a list of records for each seed; a record has "step" and "cells"

    @property
    def accuracy(self) -> str:
        return self.outcome.remark or over_seeds(list(self.outcome.accuracies.values()))

    def steps(self) -> list[int]:
        return [record["step"] for record in min(self.runs, key=len)]

    def branches(self, key: str) -> np.ndarray:
        """A branch statistic at each step, averaged over operators and seeds."""

        def mean(record: dict[str, Any]) -> float:
            return statistics.fmean(operator[key] for cell in record["cells"].values() for operator in cell["branches"])

        count = len(self.steps())
        return np.mean([[mean(record) for record in run[:count]] for run in self.runs], axis=0)

    def largest(self, key: str, records: slice = slice(None)) -> list[float]:
        """The largest absolute value at each stack in these records, averaged over seeds."""
        stacks = [
            [[value for cell in record["cells"].values() for value in cell[key]] for record in run[records]]
            for run in self.runs
        ]
        return np.mean([np.max(run, axis=0) for run in stacks], axis=0).tolist()

    def scale_points(self) -> np.ndarray:
        """The mean scale and the mean absolute change between two records, of each scale that changes."""
        points: list[tuple[float, float]] = []
        for run in self.runs:
            for cell in run[0]["cells"]:
                path = np.array([record["cells"][cell]["scales"] for record in run])  # (records, sublayers)
                points += zip(np.abs(path).mean(axis=0), np.abs(np.diff(path, axis=0)).mean(axis=0), strict=True)
        return np.array([point for point in points if min(point) > 0])


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure: series of x, y and standard deviations or None, and options of matplotlib's axes."""

    series: Mapping[str, tuple[Sequence[Any], Any, Sequence[float] | None]]
    axes: dict[str, Any]


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


def coupling(measured: dict[str, Measured]) -> Report:
    columns = {
        "dead_a": "dead for W_a (%)",
        "dead_b": "for W_b (%)",
        "dead_both": "for both (%)",
        "passed_a": "passed to W_a",
        "passed_b": "to W_b",
        "coupling": "coupling",
    }
    means = {name: {key: float(one.branches(key).mean()) for key in columns} for name, one in measured.items()}
    cells = {
        name: [f"{100 * value:.1f}" if key.startswith("dead") else f"{value:.2f}" for key, value in values.items()]
        for name, values in means.items()
    }
    titles = {"dead_a": "dead for $W_a$", "dead_b": "dead for $W_b$", "dead_both": "dead for both at once"}
    limits = {"xlabel": "step", "ylabel": "share of elements", "ylim": (-0.03, 0.6)}
    drawn = {key: limits | {"title": title} for key, title in titles.items()}
    drawn["coupling"] = {"title": "coupling", "xlabel": "step", "ylabel": "correlation", "ylim": (-0.03, 1.03)}
    return compared(
        measured,
        FUSIONS,
        cells,
        title="Gradients of the two branches",
        columns=("f(a, b)", *columns.values()),
        notes=[
            "An element is dead for a branch if it gives the branch less than a tenth of the gradient that a product "
            "would give it. Passed is the sum of the gradient's absolute values in units of the sum that a product "
            "would give. Coupling is the correlation between the size of a branch's derivative and that of its "
            "sibling. All are means over all operators, steps and seeds."
        ],
        record={"rows": means},
        draw=lambda: draw(
            FUSIONS,
            *(
                Panel(
                    series={name: (one.steps(), one.branches(key), None) for name, one in measured.items()}, axes=axes
                )
                for key, axes in drawn.items()
            ),
            style="-",
        ),
    )


def exponent(scales: np.ndarray, updates: np.ndarray) -> float | None:
    """p of a fit `update = c s^p`; None if the scales are too alike to tell."""
    if len(scales) < 2 or scales.max() < 2 * scales.min():
        return None
    return float(np.polyfit(np.log(scales), np.log(updates), 1)[0])


def scale_updates(measured: dict[str, Measured]) -> Report:
    points = {name: one.scale_points().T for name, one in measured.items()}
    slopes = {name: exponent(scales, updates) for name, (scales, updates) in points.items()}
    cells = {
        name: (
            f"{scales.min():.3g} to {scales.max():.3g}",
            f"{updates.min():.2g} to {updates.max():.2g}",
            "-" if slopes[name] is None else f"{slopes[name]:+.2f}",
        )
        for name, (scales, updates) in points.items()
    }
    axes = {"xscale": "log", "yscale": "log", "xlabel": "scale s", "ylabel": "mean update"}
    series = {name: (scales, updates, None) for name, (scales, updates) in points.items()}
    return compared(
        measured,
        SCALES,
        cells,
        title="Updates of the residual scales",
        columns=("scale", "scales s", "updates", "exponent"),
        notes=[
            "The exponent p is that of a fit `update = c s^p` over all sublayers and seeds: 1 if updates are "
            "proportional to the scale, 0 if they do not depend on it. An update is the mean absolute change between "
            "two records. LayerScale is averaged over channels."
        ],
        record={"exponents": slopes, "points": {name: each.T.tolist() for name, each in points.items()}},
        draw=lambda: draw(
            SCALES, Panel(series=series, axes=axes | {"title": "updates of the residual scales"}), style="o"
        ),
    )


def amplification(measured: dict[str, Measured]) -> Report:
    keys = {"stack_activations": "activation", "stack_gradients": "gradient"}
    first = {name: {key: one.largest(key, slice(1)) for key in keys} for name, one in measured.items()}
    whole = {name: {key: one.largest(key) for key in keys} for name, one in measured.items()}
    cells = {name: [f"{max(found[name][key]):.3g}" for found in (first, whole) for key in keys] for name in measured}
    panels = [
        Panel(
            series={name: (range(1, len(one[key]) + 1), one[key], None) for name, one in whole.items()},
            axes={"title": f"largest {what} of the run", "xlabel": "stack", "yscale": "log"},
        )
        for key, what in keys.items()
    ]
    return compared(
        measured,
        STABILISERS,
        cells,
        title="Largest activations and gradients",
        columns=(
            "stabilisation",
            *(f"{what}, {when}" for when in ("first record", "whole run") for what in keys.values()),
        ),
        notes=["Largest absolute value at the output of any stack, averaged over seeds."],
        record={"whole_run": whole, "first_record": first},
        draw=lambda: draw(STABILISERS, *panels),
    )


def sensitivity(measured: dict[str, Measured]) -> Report:
    settings = [(what, factor) for what, factors in FACTORS.items() for factor in sorted({*factors, 1.0})]

    def of(family: str, what: str, factor: float) -> Measured:
        return measured[family if factor == 1 else f"{family}-{what}-x{factor:g}"]

    accuracies = {
        what: {
            family: {f: list(of(family, what, f).outcome.accuracies.values()) for each, f in settings if each == what}
            for family in FAMILIES
        }
        for what in FACTORS
    }
    return Report(
        title="Sensitivity to learning rate and batch size",
        columns=("setting", "factor", *(f"{title} (%)" for title in FAMILIES.values())),
        rows=[
            (what, f"x {factor:g}", *(of(family, what, factor).accuracy for family in FAMILIES))
            for what, factor in settings
        ],
        left=(0, 1),
        notes=["Factors of the recipe's learning rate, and of its batch size at the same learning rate and epochs."],
        record={"accuracies": accuracies},
        draw=lambda: draw(FAMILIES, *(sensitivity_panel(what, found) for what, found in accuracies.items())),
    )


def sensitivity_panel(what: str, accuracies: dict[str, dict[float, list[float]]]) -> Panel:
    """The factors are powers of two: as categories they are evenly spaced."""
    series = {
        family: (
            [f"{factor:g}" for factor in points],
            [statistics.fmean(values) if values else math.nan for values in points.values()],
            [statistics.stdev(values) if len(values) > 1 else 0.0 for values in points.values()],
        )
        for family, points in accuracies.items()
    }
    title = {"lr": "learning rate", "batch": "batch size"}[what]
    return Panel(series=series, axes={"title": title, "xlabel": "factor", "ylabel": "accuracy (%)"})


def compared(
    measured: dict[str, Measured],
    labels: dict[str, str],
    cells: Mapping[str, Sequence[str]],
    columns: Sequence[str],
    **report: Any,
) -> Report:
    """A report with a row for each variant: its cells, its accuracy, and the difference from the baseline's."""
    baseline, rows = measured[BASELINE], []
    for name, one in measured.items():
        difference = over_seeds(one.outcome.differences(baseline.outcome), "+")
        differences = ("-", "-") if one is baseline else (difference, paper.ablation_difference(one.outcome.name))
        rows.append((labels[name], *cells[name], one.accuracy, *differences))
    return Report(columns=(*columns, "accuracy (%)", "difference", "paper's"), rows=rows, **report)


def draw(labels: dict[str, str], *panels: Panel, style: str = "o-") -> "Figure":
    """The panels side by side, with one legend below all, where it hides no points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(4.0 * len(panels), 5.5), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for colour, (name, (x, y, spread)) in zip(COLOURS, panel.series.items(), strict=False):
            axes.errorbar(x, y, spread, fmt=style, markersize=4, capsize=3, color=colour, label=labels[name])
        axes.set(**panel.axes)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = figure.axes[0].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": len(names)}
    figure.legend(handles, names, **where, columnspacing=1.2, fontsize=8, frameon=False)
    return figure
