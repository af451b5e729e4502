"""The paper's Figure 1: accuracy against parameters, FLOPs and, if measured, speed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polynext import paper
from polynext.experiments.speed.timing import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Families related to ours have colours; all others are grey.
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

Points = dict[str, list[tuple[float, float, str]]]


def families(column: str) -> Points:
    """Table 1 by family: (column, top-1, model), from small to large."""
    found: Points = {}
    for row in paper.main_results():
        found.setdefault(row["model"].split("-")[0], []).append((row[column], row["top1"], row["model"]))
    return {family: sorted(points) for family, points in found.items()}


def measured_families(measured: Sequence[Measurement]) -> dict[str, Points]:
    """For each engine, the measured models with an accuracy in the paper: (images per second, top-1, model)."""
    accuracy = {paper.timm_name(row["model"]): row for row in paper.main_results()}
    found: dict[str, Points] = {}
    for one in measured:
        if row := accuracy.get(one.candidate.model.split(".")[0]):
            points = found.setdefault(one.candidate.engine, {}).setdefault(row["model"].split("-")[0], [])
            points.append((one.throughput, row["top1"], row["model"]))
    return found


def draw(measured: Sequence[Measurement] = (), where: str = "", found: Mapping[str, float] | None = None) -> "Figure":
    """Accuracy against size and cost; with measurements also against speed, and the speeds as bars.

    Crosses mark `found`: accuracies measured here, by the paper's model names.
    """
    from matplotlib.figure import Figure

    heights = [4.6, max(4.6, 0.17 * len(measured))] if measured else [4.6]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for i, (column, label) in enumerate((("params", "parameters (M)"), ("flops", "FLOPs (G)"))):
        axes = figure.add_subplot(grid[0, i])
        scatter(axes, families(column), label)
        printed = {row["model"]: row[column] for row in paper.main_results()}
        ours = [(printed[model], top1) for model, top1 in (found or {}).items() if model in printed]
        if ours:
            axes.plot(*zip(*ours, strict=True), "kx", label="measured here", zorder=4)
    if measured:
        by_engine = measured_families(measured)
        speed = f"measured images/s{where}"
        if by_engine:
            axes = figure.add_subplot(grid[1, 0])
            for number, (engine, points) in enumerate(by_engine.items()):
                scatter(axes, points, speed, dashes=number, note=engine)
        bars(figure.add_subplot(grid[1, 1] if by_engine else grid[1, :]), measured, speed)
    figure.suptitle("ImageNet-1K accuracy as published (Table 1 of the PolyNeXt paper)", fontsize=11)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=9, frameon=False, fontsize=8, columnspacing=1.2)
    return figure


def scatter(axes: Any, points: Points, xlabel: str, dashes: int = 0, note: str = "") -> None:
    """Accuracy against another quantity, with a line for each family; `note` is the legend of the line style."""
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
    """Labels a logarithmic axis 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def bars(axes: Any, measured: Sequence[Measurement], xlabel: str) -> None:
    """Median images per second, with the interquartile range as a whisker."""
    ordered = sorted(measured, key=lambda one: one.throughput)
    names = [f"{one.candidate.model}, {one.candidate.engine}" for one in ordered]
    known = {paper.timm_name(row["model"]): row["model"].split("-")[0] for row in paper.main_results()}
    colours = [COLOURS.get(known.get(one.candidate.model, ""), OTHERS) for one in ordered]
    spread = [one.throughput * one.batch.spread / 2 for one in ordered]
    axes.barh(names, [one.throughput for one in ordered], xerr=spread, color=colours, error_kw={"elinewidth": 0.8})
    axes.set_xlabel(xlabel)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
