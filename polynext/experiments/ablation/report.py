"""The results of an ablation: accuracies, and differences from the baseline beside the paper's."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polynext import paper
from polynext.experiments.ablation.baselines import costs
from polynext.experiments.ablation.rows import ROWS
from polynext.experiments.report import Report
from polynext.experiments.sweep import Sweep, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Outcome:
    """The results of a row, or of a family's baseline, by seed."""

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
        """The mean accuracy over the seeds."""
        return statistics.fmean(self.accuracies.values()) if self.accuracies else math.nan

    def differences(self, baseline: "Outcome") -> list[float]:
        """The differences from the baseline's accuracy with the same seed."""
        return [a - baseline.accuracies[seed] for seed, a in self.accuracies.items() if seed in baseline.accuracies]

    @property
    def remark(self) -> str:
        """Why runs have no accuracy."""
        parts = []
        if self.diverged:
            parts.append(f"diverged at step {', '.join(map(str, self.diverged.values()))}")
        if self.errors:
            parts.append(f"{len(self.errors)} failed: {next(iter(self.errors.values()))}")
        return "; ".join(parts)


def collect(sweep: Sweep, trials: Sequence[Trial], out: Path) -> list[Outcome]:
    """Reads the results of a sweep: each family's baseline, followed by its rows."""
    outcomes: dict[str, Outcome] = {}
    for trial in trials:
        if trial.name not in outcomes:
            parameters, macs = costs(sweep.config(trial.name))
            row = ROWS.get(trial.name)
            family, what = (row.family, row.what) if row else (trial.name, "baseline")
            outcomes[trial.name] = Outcome(trial.name, family, what, parameters, macs)
        one, result = outcomes[trial.name], trial.result(out) or {}
        for key, values in (("accuracy", one.accuracies), ("diverged", one.diverged), ("error", one.errors)):
            if key in result:
                values[trial.seed] = result[key]
    families = list(dict.fromkeys(one.family for one in outcomes.values()))
    return sorted(outcomes.values(), key=lambda one: families.index(one.family))


def baseline_of(one: Outcome, outcomes: Sequence[Outcome]) -> Outcome:
    return next(o for o in outcomes if o.name == one.family)


def ablation_report(title: str, settings: dict[str, Any], outcomes: Sequence[Outcome]) -> Report:
    """The report on outcomes of `collect`."""
    rows, records = [], []
    for one in outcomes:
        baseline = baseline_of(one, outcomes)
        differences = one.differences(baseline)
        paper_difference = paper.ablation_difference(one.name)
        rows.append(
            (
                one.name,
                one.what,
                f"{one.parameters:,}" + relative(one.parameters, baseline.parameters),
                f"{one.macs / 1e6:.4g}" + relative(one.macs, baseline.macs),
                over_seeds(list(one.accuracies.values())) or "-",
                (over_seeds(differences, "+") if one is not baseline else "") or "-",
                paper_difference,
                one.remark,
            )
        )
        record = {name: getattr(one, name) for name in ("name", "family", "what", "parameters", "macs", "accuracies")}
        record |= {"differences": differences, "diverged_at_step": one.diverged, "errors": one.errors}
        records.append(record | {"paper_difference": paper_difference})
    return Report(
        title=title,
        columns=("row", "what changes", "parameters", "MMACs", "accuracy (%)", "difference", "paper's", ""),
        rows=rows,
        left=(0, 1, 7),
        record={**settings, "rows": records},
        draw=lambda: draw(outcomes, title),
    )


def relative(value: int, baseline: int) -> str:
    return "" if value == baseline else f" ({100 * (value / baseline - 1):+.1f}%)"


def over_seeds(values: Sequence[float], sign: str = "") -> str:
    """Mean and standard deviation over seeds; empty if there are no values."""
    if not values:
        return ""
    return f"{statistics.fmean(values):{sign}.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def draw(outcomes: Sequence[Outcome], title: str) -> "Figure":
    """Differences from the baseline as bars with standard deviations; the paper's differences as diamonds."""
    from matplotlib.figure import Figure

    changed = [one for one in outcomes if one is not baseline_of(one, outcomes)][::-1]
    figure = Figure(figsize=(9, 0.36 * len(changed) + 1.5), layout="constrained")
    axes = figure.subplots()
    diamond: dict[str, Any] = {"marker": "D", "color": "black", "markersize": 5, "fillstyle": "none", "linestyle": ""}
    for position, one in enumerate(changed):
        differences = one.differences(baseline_of(one, outcomes))
        if differences:
            axes.barh(
                position,
                statistics.fmean(differences),
                xerr=statistics.stdev(differences) if len(differences) > 1 else None,
                color="#7570b3" if one.family.startswith("a") else "#d95f02",
                alpha=0.75,
                error_kw={"elinewidth": 1},
            )
        axes.text(0.02, position, one.remark[:60], va="center", fontsize=7, color="#b00000")
        if number := re.match(r"[-+][\d.]+", paper.ablation_difference(one.name)):
            axes.plot(float(number[0]), position, **diamond, label="the paper, on ImageNet")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1.0)
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10) if low <= tick <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(changed)), [f"{one.what} ({one.family[0].upper()})" for one in changed], fontsize=8)
    axes.set_xlabel("difference from the baseline's accuracy (points; logarithmic beyond 1)")
    axes.set_title(title, fontsize=10)
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=handles[:1], frameon=False, loc="outside lower left", fontsize=8)  # not without the paper's
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
