"""The paper's scaling figure: accuracy against parameters, FLOPs and, if measured, speed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polynext import paper
from polynext.errors import PolyNeXtError
from polynext.experiments.speed.timing import Measurement
from polynext.files import require_place

# Ours stand out, networks like ours have colours, all others are grey.
COLOURS = {
    "CPolyNeXt": "#d95f02",
    "APolyNeXt": "#7570b3",
    "ConvFormer": "#1b9e77",
    "CAFormer": "#66a61e",
    "MONet": "#e7298a",
    "DTTN": "#a6761d",
}
OTHERS = "#a0a0a0"
OTHER_MARKERS = "osD^v<>pPXhd"

# Accuracies (top-1, %) for which the fastest model is named.
REGIONS = (80.0, 81.0, 82.0, 83.0, 83.5, 84.0, 84.5, 85.0)

Points = dict[str, list[tuple[float, float, str]]]


def families(column: str) -> Points:
    """Table 1 by family: (column, top-1, model), from small to large."""
    found: Points = {}
    for row in paper.main_results():
        found.setdefault(row["model"].split("-")[0], []).append((row[column], row["top1"], row["model"]))
    return {family: sorted(points) for family, points in found.items()}


def measured_families(measured: Sequence[Measurement]) -> dict[str, Points]:
    """For each engine, the measured models that the paper has an accuracy for: (images per second, top-1, model)."""
    accuracy = {paper.timm_name(row["model"]): row for row in paper.main_results()}
    found: dict[str, Points] = {}
    for one in measured:
        if row := accuracy.get(one.candidate.model.split(".")[0]):
            points = found.setdefault(one.candidate.engine, {}).setdefault(row["model"].split("-")[0], [])
            points.append((one.throughput, row["top1"], row["model"]))
    return found


def leaders(measured: Sequence[Measurement]) -> list[str]:
    """Who is fastest among the measured models of at least some accuracy, in a sentence for each accuracy."""
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


def require_picture(path: Path) -> None:
    """Raises if nothing can be drawn to a path."""
    from matplotlib.figure import Figure

    require_place(path)
    if path.suffix[1:] not in Figure().canvas.get_supported_filetypes():
        raise PolyNeXtError(f"{path} is not named like a picture: let it end in .png, .svg or .pdf.")


def draw(
    path: Path, measured: Sequence[Measurement] = (), where: str = "", found: Mapping[str, float] | None = None
) -> None:
    """Accuracy against size and cost; with measurements also against speed, and the speeds as bars.

    `found` are accuracies of the paper's models as measured here, drawn as crosses.
    """
    from matplotlib.figure import Figure

    require_picture(path)
    heights = [4.6, max(4.6, 0.17 * len(measured))] if measured else [4.6]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 2, squeeze=False, height_ratios=heights)
    scatter(panels[0][0], families("params"), "parameters (M)")
    scatter(panels[0][1], families("flops"), "FLOPs (G)")
    for axes, column in zip(panels[0], ("params", "flops"), strict=True):
        printed = {row["model"]: row[column] for row in paper.main_results()}
        ours = [(printed[model], top1) for model, top1 in (found or {}).items() if model in printed]
        axes.plot(*zip(*ours, strict=True), "kx", label="measured here", zorder=4) if ours else None
    if measured:
        by_engine = measured_families(measured)
        for number, (engine, points) in enumerate(by_engine.items()):
            scatter(panels[1][0], points, f"measured images/s{where}", dashes=number, note=engine)
        if not by_engine:
            panels[1][0].text(0.5, 0.5, "the paper has no accuracy\nfor the measured models", ha="center", va="center")
            panels[1][0].set_axis_off()
        bars(panels[1][1], measured, f"measured images/s{where}")
    figure.suptitle("ImageNet-1K accuracy as published (Table 1 of the PolyNeXt paper)", fontsize=11)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=9, frameon=False, fontsize=8, columnspacing=1.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def scatter(axes: Any, points: Points, xlabel: str, dashes: int = 0, note: str = "") -> None:
    style = ("-", "--", ":", "-.")[dashes % 4]
    others = [family for family in families("params") if family not in COLOURS]
    for family, values in sorted(points.items(), key=lambda item: (item[0] not in COLOURS, item[0])):
        ours = family in ("CPolyNeXt", "APolyNeXt")
        marker = "*" if ours else "o" if family in COLOURS else OTHER_MARKERS[others.index(family)]
        x, y, _ = zip(*sorted(values), strict=True)
        axes.plot(
            x,
            y,
            style,
            marker=marker,
            markersize=11 if ours else 5,
            linewidth=1.8 if ours else 1.0 if family in COLOURS else 0.4,
            color=COLOURS.get(family, OTHERS),
            label=family,
            zorder=3 if ours else 2 if family in COLOURS else 1,
        )
    if note:
        axes.plot([], [], style, color="black", label=note)
        axes.legend(handles=[line for line in axes.lines if line.get_color() == "black"], frameon=False)
    axes.set_xscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("top-1 (%)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    plain_ticks(axes.xaxis)


def plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def bars(axes: Any, measured: Sequence[Measurement], xlabel: str) -> None:
    """Median images per second, with the quartiles as a whisker."""
    ordered = sorted(measured, key=lambda one: one.throughput)
    names = [f"{one.candidate.model}, {one.candidate.engine}" for one in ordered]
    known = {paper.timm_name(row["model"]): row["model"].split("-")[0] for row in paper.main_results()}
    colours = [COLOURS.get(known.get(one.candidate.model, ""), OTHERS) for one in ordered]
    spread = [one.throughput * one.batch.spread / 2 for one in ordered]
    axes.barh(names, [one.throughput for one in ordered], xerr=spread, color=colours, error_kw={"elinewidth": 0.8})
    axes.set_xlabel(xlabel)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
