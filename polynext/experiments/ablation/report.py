"""What a sweep found: means and differences from the baseline, as a table, JSON and a picture."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polynext import paper
from polynext.experiments.ablation.baselines import costs
from polynext.experiments.ablation.rows import ROWS
from polynext.experiments.ablation.sweep import AblationSweep
from polynext.experiments.sweep import Trial

PAPER_TABLES = ("3", "4", "5", "dropin", "dropout")


@dataclass(frozen=True)
class Outcome:
    """A row, or a family's baseline: what it costs, and what came of each seed."""

    name: str
    family: str
    what: str
    parameters: int
    macs: int
    accuracies: dict[int, float] = field(default_factory=dict)
    diverged: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies.values()) if self.accuracies else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return deviation(list(self.accuracies.values()))

    def differences(self, baseline: "Outcome") -> list[float]:
        """From the baseline with the same seed, for each seed that both have."""
        return [a - baseline.accuracies[seed] for seed, a in self.accuracies.items() if seed in baseline.accuracies]


def deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def collect(sweep: AblationSweep, rows: Sequence[str], seeds: int, out: Path) -> list[Outcome]:
    """The baseline of each family before its rows."""
    families = dict.fromkeys(ROWS[name].family for name in rows)
    outcomes = []
    for family in families:
        outcomes.append(outcome(sweep, family, family, "baseline", seeds, out))
        outcomes += [
            outcome(sweep, name, family, ROWS[name].what, seeds, out) for name in rows if ROWS[name].family == family
        ]
    return outcomes


def outcome(sweep: AblationSweep, name: str, family: str, what: str, seeds: int, out: Path) -> Outcome:
    parameters, macs = costs(sweep.config(name))
    result = Outcome(name, family, what, parameters, macs)
    for seed in range(seeds):
        one = Trial(name, seed).result(out) or {}
        if "accuracy" in one:
            result.accuracies[seed] = one["accuracy"]
        elif "diverged" in one:
            result.diverged[seed] = one["diverged"]
        elif "error" in one:
            result.errors[seed] = one["error"]
    return result


def paper_difference(name: str) -> str:
    printed = {row["row"]: row["difference"] for table in PAPER_TABLES for row in paper.rows(table)}
    return printed.get(name, "-")


def baseline_of(one: Outcome, outcomes: Sequence[Outcome]) -> Outcome:
    return next(o for o in outcomes if o.name == one.family)


def table_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in outcomes:
        baseline = baseline_of(one, outcomes)
        changed = one is not baseline
        differences = one.differences(baseline)
        rows.append(
            (
                one.name,
                one.what,
                f"{one.parameters:,}" + relative(one.parameters, baseline.parameters),
                f"{one.macs / 1e6:.4g}" + relative(one.macs, baseline.macs),
                with_spread(one.mean, one.spread) if one.accuracies else "-",
                with_spread(statistics.fmean(differences), deviation(differences), "+")
                if changed and differences
                else "-",
                paper_difference(one.name),
                remark(one),
            )
        )
    return rows


HEADER = ("row", "what changes", "parameters", "MMACs", "accuracy (%)", "difference", "paper's", "")


def relative(value: int, baseline: int) -> str:
    return "" if value == baseline else f" ({100 * (value / baseline - 1):+.1f}%)"


def with_spread(mean: float, spread: float, sign: str = "") -> str:
    return f"{mean:{sign}.2f}" + ("" if math.isnan(spread) else f" ± {spread:.2f}")


def remark(one: Outcome) -> str:
    """What there is to say of runs without an accuracy."""
    parts = []
    if one.diverged:
        steps = ", ".join(str(step) for step in one.diverged.values())
        parts.append(f"diverged at step {steps}")
    if one.errors:
        parts.append(f"{len(one.errors)} failed: {next(iter(one.errors.values()))}")
    return "; ".join(parts)


def to_json(sweep: AblationSweep, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "recipe": sweep.recipe,
        "steps": sweep.steps,
        "images": sweep.images,
        "rows": [
            {
                "name": one.name,
                "family": one.family,
                "what": one.what,
                "parameters": one.parameters,
                "macs": one.macs,
                "accuracies": one.accuracies,
                "differences": one.differences(baseline_of(one, outcomes)),
                "diverged_at_step": one.diverged,
                "errors": one.errors,
                "paper_difference": paper_difference(one.name),
            }
            for one in outcomes
        ],
    }


def draw(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Differences from the baseline as bars, with the deviation over seeds; the paper's as diamonds."""
    from matplotlib.figure import Figure

    changed = [one for one in outcomes if one is not baseline_of(one, outcomes)][::-1]
    figure = Figure(figsize=(9, 0.36 * len(changed) + 1.5), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(changed):
        differences = one.differences(baseline_of(one, outcomes))
        if differences:
            spread = deviation(differences)
            axes.barh(
                place,
                statistics.fmean(differences),
                xerr=None if math.isnan(spread) else spread,
                color="#7570b3" if one.family.startswith("a") else "#d95f02",
                alpha=0.75,
                error_kw={"elinewidth": 1},
            )
        if note := remark(one):
            axes.text(0.02, place, note[:60], va="center", fontsize=7, color="#b00000")
        if number := re.match(r"[-+][\d.]+", paper_difference(one.name)):
            axes.plot(float(number[0]), place, "D", color="black", markersize=5, fillstyle="none")
    axes.plot([], [], "D", color="black", markersize=5, fillstyle="none", linestyle="", label="the paper, on ImageNet")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1.0)
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10) if low <= tick <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(changed)), [f"{one.what} ({one.family[0].upper()})" for one in changed], fontsize=8)
    axes.set_xlabel("difference from the baseline in accuracy (points, logarithmic beyond 1)")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, loc="lower left", fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
