"""Reports on measured speed: all candidates side by side, or beside the paper's Table S4."""

from collections.abc import Sequence

from polynext import paper
from polynext.experiments.report import Report
from polynext.experiments.speed.figures import measured_families
from polynext.experiments.speed.paper_table import REFERENCE
from polynext.experiments.speed.timing import Measurement
from polynext.tables import gigamacs

# Accuracies (top-1, %) for which the fastest model is reported.
REGIONS = (80.0, 81.0, 82.0, 83.0, 83.5, 84.0, 84.5, 85.0)


def comparison(title: str, measured: Sequence[Measurement]) -> Report:
    """All candidates; ratios are to the first."""
    rows = []
    for m in measured:
        latency = ("-", "-") if m.single is None else (f"{1000 * m.single.median:.4g}", percent(m.single.spread))
        accuracy = paper.published_figure(m.candidate.model, "imagenet")
        rows.append(
            (
                m.candidate.model,
                m.candidate.engine,
                f"{m.parameters / 1e6:.2f}",
                gigamacs(m.macs),
                f"{m.throughput:.4g}",
                percent(m.batch.spread),
                f"{m.throughput / measured[0].throughput:.2f}",
                *latency,
                megabytes(m),
                "-" if accuracy is None else str(accuracy),
            )
        )
    header = ("model", "engine", "params (M)", "GMACs", "images/s", "spread", "ratio", "latency (ms)", "spread")
    return Report(title=title, columns=(*header, "memory (MB)", "paper's top-1"), rows=rows, left=(0, 1))


def paper_comparison(title: str, measured: Sequence[Measurement]) -> Report:
    """Table S4 beside our figures. Ratios to the reference are comparable; the paper's machine is another one."""
    ours = {m.candidate.model: m for m in measured}
    published = {row["model"]: row for row in paper.rows("S4")}
    reference = ours.get(str(paper.timm_name(REFERENCE)))
    rows = []
    for model, row in published.items():
        ratio = f"{row['throughput'] / published[REFERENCE]['throughput']:.2f}"
        printed = (str(row["throughput"]), ratio, str(row["memory"]))
        m = ours.get(str(paper.timm_name(model)))
        if m is None:
            rows.append((model, f"{row['params']:g}", f"{row['flops']:g}", *printed, "not measured", "", "", ""))
            continue
        ratio = f"{m.throughput / reference.throughput:.2f}" if reference else "-"
        found = (f"{m.throughput:.4g}", percent(m.batch.spread), ratio)
        rows.append((model, f"{m.parameters / 1e6:.1f}", f"{m.macs / 1e9:.1f}", *printed, *found, megabytes(m)))
    header = ("model", "params (M)", "GMACs", "paper images/s", "ratio", "MB", "here images/s", "spread", "ratio", "MB")
    return Report(title=title, columns=header, rows=rows, notes=["\n".join(leaders(measured))])


def leaders(measured: Sequence[Measurement]) -> list[str]:
    """A sentence for each accuracy that names the fastest model which has at least this accuracy."""
    points = [p for of_engine in measured_families(measured).values() for family in of_engine.values() for p in family]
    sentences = []
    for least in REGIONS:
        ranked = sorted((p for p in points if p[1] >= least), reverse=True)
        if not ranked:
            continue
        speed, top1, model = ranked[0]
        second = f", {speed / ranked[1][0]:.2f} times as fast as {ranked[1][2]}" if len(ranked) > 1 else ""
        lead = f"{model} ({top1:g}%) is the fastest at {speed:.4g} images/s"
        sentences.append(f"Of at least {least:g}% top-1, {lead}{second}.")
    return sentences


def percent(share: float) -> str:
    return "-" if share != share else f"{100 * share:.0f}%"


def megabytes(m: Measurement) -> str:
    return "-" if m.memory is None else f"{m.memory / 2**20:.0f}"
