"""Draws the operators, the cell and the network as block diagrams, one SVG file each, next to this script.

Run it with `python docs/figures/architecture.py` (needs matplotlib).
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

matplotlib.rcParams.update({"svg.hashsalt": "polynext", "font.family": "DejaVu Sans"})

Point = tuple[float, float]

INCHES = 0.7  # per unit of the drawings
INK, FAINT, LINE, ACCENT = "#1f2937", "#6b7280", "#4b5563", "#e2552d"
# Fill and edge colours of boxes. "poly" boxes multiply functions of the input.
KINDS = {
    "linear": ("#e8f0f8", "#8aa6c1"),
    "norm": ("#f3eee3", "#bba982"),
    "poly": ("#fdebe4", ACCENT),
}
SHAPE = "(B, C, H, W)"
ONE, THREE, FIVE = (f"{k}$\\times${k}" for k in (1, 3, 5))


class Node(NamedTuple):
    """A start or end of arrows: its centre and size."""

    x: float
    y: float
    width: float
    height: float
    is_round: bool = False

    @property
    def left(self) -> Point:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def top(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def bottom(self) -> Point:
        return self.x, self.y - self.height / 2


class Drawing:
    """A block diagram on a white background."""

    def __init__(self, width: float, height: float):
        self.figure = Figure(figsize=(width * INCHES, height * INCHES), facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        self.axes.set_axis_off()

    def text(self, x: float, y: float, label: str, size: float = 8, colour: str = FAINT) -> None:
        style: Any = dict(ha="center", va="center", linespacing=1.35, zorder=4)
        style["math_fontfamily"] = "dejavusans" if colour == FAINT else "cm"
        self.axes.text(x, y, label, size=size, color=colour, **style)

    def rectangle(self, node: Node, fill: str, edge: str, **style: Any) -> None:
        style = {"fc": fill, "ec": edge, "lw": 1.1, "zorder": 2, **style}
        corner, rounded = (node.left[0], node.bottom[1]), "round,pad=0,rounding_size=0.12"
        self.axes.add_patch(FancyBboxPatch(corner, node.width, node.height, rounded, **style))

    def box(self, x: float, y: float, label: str, note: str = "", kind: str = "linear", width: float = 1.0) -> Node:
        """A labelled box centred at (x, y), with a note below it."""
        node = Node(x, y, width, 0.7)
        self.rectangle(node, *KINDS[kind])
        self.text(x, y, label, 13 if "$" in label else 10, INK)
        self.text(x, node.bottom[1] - 0.22, note)
        return node

    def group(self, x0: float, y0: float, x1: float, y1: float, label: str) -> None:
        """A dashed frame with a label above it."""
        self.rectangle(Node((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0), "#fafafa", "#c4c9d1", ls="--", zorder=0)
        self.text((x0 + x1) / 2, y1 + 0.22, label)

    def circle(self, x: float, y: float, symbol: str, fill: str, edge: str, ink: str) -> Node:
        self.axes.add_patch(Circle((x, y), 0.28, fc=fill, ec=edge, lw=1.1, zorder=2))
        self.text(x, y, symbol, 16, ink)
        return Node(x, y, 0.56, 0.56, is_round=True)

    def product(self, x: float, y: float, symbol: str = "$\\ast$") -> Node:
        """The product of two functions of the input."""
        return self.circle(x, y, symbol, ACCENT, ACCENT, "white")

    def plus(self, x: float, y: float) -> Node:
        return self.circle(x, y, "$+$", "white", "#9ca3af", INK)

    def end(self, x: float, y: float, label: str, shape: str = SHAPE, width: float = 0.5) -> Node:
        """An input or output: a name and its shape, without a frame."""
        self.text(x, y, label, 14 if "$" in label else 10, INK)
        self.text(x, y - 0.57, shape)
        return Node(x, y, width, 0)

    def path(self, *points: Point) -> None:
        """An arrow through the points, with rounded corners."""
        vertices, codes = [points[0]], [Curve.MOVETO]
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            vertices += [towards(corner, before), corner, towards(corner, after)]
            codes += [Curve.LINETO, Curve.CURVE3, Curve.CURVE3]
        curve = Curve([*vertices, points[-1]], [*codes, Curve.LINETO])
        style: Any = dict(arrowstyle="-|>,head_length=0.45,head_width=0.18", mutation_scale=12, zorder=1)
        self.axes.add_patch(FancyArrowPatch(path=curve, color=LINE, lw=1.1, **style))

    def link(self, *nodes: Node, fork: float = 0.25) -> None:
        """Arrows from each node to the next: straight, with one corner, or with two corners at a fork."""
        for a, b in pairwise(nodes):
            if a.y == b.y:
                self.path(a.right, b.left)
            elif b.is_round:
                self.path(a.right, (b.x, a.y), b.top if a.y > b.y else b.bottom)
            else:
                turn = a.right[0] + fork
                self.path(a.right, (turn, a.y), (turn, b.y), b.left)


def towards(corner: Point, other: Point, radius: float = 0.1) -> Point:
    """A point near the corner, in the direction of the other point."""
    (x, y), (u, v) = corner, other
    share = min(radius / max(abs(u - x), abs(v - y)), 0.5)
    return x + share * (u - x), y + share * (v - y)


def polymlp() -> Drawing:
    d, row = Drawing(9.2, 2.9), 1.3
    d.group(1.85, 0.2, 3.65, 2.4, f"one {ONE} convolution")
    x, y = d.end(0.8, row, "$x$"), d.end(8.4, row, "$y$")
    product = d.product(4.5, row)
    for name, side in (("$W_a$", 0.55), ("$W_b$", -0.55)):
        d.link(x, d.box(2.75, row + side, name), product, fork=0.4)
    d.link(product, d.box(5.75, row, "norm", kind="norm"), d.box(7.2, row, "$W_o$", ONE), y)
    return d


def polyconv() -> Drawing:
    d, row = Drawing(12.8, 2.8), 1.5
    x, y = d.end(0.8, row, "$x$"), d.end(12.05, row, "$y$")
    inner = d.box(2.25, row, "$W_{\\mathrm{in}}$", ONE)
    product = d.product(6.8, row)
    d.link(x, inner, d.box(4.1, 2.2, "$K_c$", f"{FIVE}, dilation 2"), product)
    d.link(inner, d.box(4.1, 0.8, "$K_f$", THREE), d.box(5.6, 0.8, "flip", "channel order"), product)
    k, out = d.box(8.05, row, "$K$", THREE), d.box(9.5, row, "$W_{\\mathrm{out}}$", ONE)
    d.link(product, k, out, d.box(10.95, row, "norm", kind="norm"), y)
    return d


def polyattention() -> Drawing:
    d, row = Drawing(15.2, 3.7), 1.95
    x, y = d.end(0.8, row, "$x$"), d.end(14.4, row, "$y$")
    norm, qkv = d.box(2.1, row, "norm", kind="norm", width=0.9), d.box(3.5, row, "$W_{qkv}$", ONE)
    d.link(x, norm, qkv)
    scores, weighted = d.product(6.9, row, "$\\times$"), d.product(11.15, row, "$\\times$")
    for shift, name, size, follower, x_label, label in (
        (1.15, "q", FIVE, scores, 6.7, "queries (B, h, N, d)"),
        (0, "k", FIVE, scores, 6.18, "keys"),
        (-1.15, "v", THREE, weighted, 6.7, "values (B, h, N, d)"),
    ):
        d.link(qkv, d.box(5.25, row + shift, f"$K_{name}$", size), follower)
        d.text(x_label, row + shift + 0.22, label)
    d.text(4.05, row + 0.75, "qk")
    d.text(4.12, row - 0.75, "v")
    kernel = d.box(8.25, row, "$(s\\,\\cdot{}+1)^p$", "(B, h, N, N)", kind="poly", width=1.4)
    rows = d.box(9.95, row, "÷ row sum", kind="norm", width=1.3)
    k, out = d.box(12.15, row, "$K$", THREE, width=0.7), d.box(13.3, row, "$W_{\\mathrm{out}}$", ONE, width=0.9)
    d.link(scores, kernel, rows, weighted, k, out, y)
    return d


def cell() -> Drawing:
    d, row = Drawing(15.0, 2.95), 1.3
    d.group(5.1, 0.35, 13.3, 2.45, "stack, repeated $S$ times")
    before = d.plus(3.2, row)
    for shift, name, scale in ((0.6, "$x_{t-2}$", "$s_0$"), (-0.6, "$x_{t-1}$", "$s_1$")):
        y = row + shift
        d.link(d.end(0.8, y, name, "", width=0.8), d.box(2.15, y, scale, width=0.8), before)
    norm = d.box(4.35, row, "norm", kind="norm", width=0.9)
    d.link(before, norm)
    before = norm
    for x, name, index in ((6.4, "mixer", "i"), (10.4, "PolyMLP", "i+1")):
        branch = d.box(x, row, name, kind="poly", width=1.3)
        gate = d.box(x + 1.5, row, f"$\\sigma(\\lambda_{{{index}}})$", width=1.1)
        total = d.plus(x + 2.55, row)
        d.link(before, branch, gate, total)
        d.path((x - 0.95, row), (x - 0.95, row + 0.85), (total.x, row + 0.85), total.top)
        before = total
    d.text(6.4, row - 0.65, "PolyConv or\nPolyAttention")
    d.link(before, d.end(14.15, row, "$x_t$"))
    return d


def network() -> Drawing:
    d, row = Drawing(15.0, 5.7), 4.75
    before = d.box(2.1, row, "stem", "7$\\times$7, stride 4")
    d.link(d.end(0.7, row, "image", "(B, 3, H, W)", width=0.8), before)
    mixers = ("PolyConv\n", "PolyConv or\nPolyAttention")
    for i, width in enumerate(("C", "2C", "4C", "6C")):
        stage = d.box(4.0 + 2.1 * i, row, f"stage {i + 1}", kind="poly", width=1.4)
        d.text(stage.x, row + 0.57, f"(B, {width}, H/{4 * 2**i}, W/{4 * 2**i})")
        d.text(stage.x, row - 0.57, f"$L_{i + 1}$ cells")
        d.text(stage.x, row - 0.97, mixers[i // 2])
        for y in (row + 0.16, row - 0.16):
            d.path((before.right[0], y), (stage.left[0], y))
        before = stage
    norm = d.box(12.0, row, "norm", kind="norm", width=0.9)
    head = d.box(13.25, row, "PolyHead", kind="poly", width=1.1)
    d.link(before, norm, head, d.end(14.4, row, "logits", "(B, classes)", width=0.7))

    older, newer, below = 2.3, 1.35, 0.55
    d.group(2.2, 0.3, 12.6, 2.8, "inside a stage, here with four cells")
    d.text(3.0, 0.82, "from stage 2 on")
    cells = [d.box(4.9 + 2.1 * i, newer, f"cell {i + 1}", kind="poly", width=1.1) for i in range(4)]
    halvings = [d.box(3.0, y, "↓ 2", width=0.8) for y in (older, newer)]
    for halving, name in zip(halvings, ("older", "newer"), strict=True):
        d.link(d.end(1.4, halving.y, name, "", width=0.8), halving)
        d.end(13.4, halving.y, name, "")
    d.link(halvings[1], *cells, Node(13.4, newer, 0.8, 0))
    d.path(halvings[0].right, (cells[0].x, older), cells[0].top)
    for i, (skipped, after) in enumerate(pairwise(cells)):  # the newer input of a cell is the older input of the next
        start, level = skipped.left[0] - 0.5, older if i % 2 else below
        d.path((start, newer), (start, level), (after.x, level), after.top if i % 2 else after.bottom)
    start = cells[-1].left[0] - 0.5
    d.path((start, newer), (start, older), (13.0, older))
    return d


def main(folder: Path = Path(__file__).parent, suffix: str = "svg") -> None:
    for draw in (polymlp, polyconv, polyattention, cell, network):
        metadata = {"Date": None, "Creator": None} if suffix == "svg" else None
        draw().figure.savefig(folder / f"{draw.__name__}.{suffix}", metadata=metadata)


if __name__ == "__main__":
    main()
