"""Draws the rooms of the package and the ways through it, one SVG file each, next to this script.

Run it with `python docs/figures/inside.py` (needs matplotlib).
"""

from pathlib import Path

from architecture import Drawing, Node

# The rooms, from what everything stands on to what a user calls: (name, what lives there).
FLOORS = (
    (("cli", "commands: parse and print"),),
    (
        ("service", "HTTP, workers, the page"),
        ("design", "networks for encryption"),
        ("reproduction", "the paper's tables"),
        ("bench", "speed and memory"),
    ),
    (
        ("encrypted", "plan, client, server"),
        ("ablation", "rows as variants"),
        ("segmentation", "UPerNet on the loop"),
        ("recipes", "one function a run"),
    ),
    (
        ("circuit", "a network as arithmetic"),
        ("training", "the loop and its tasks"),
        ("evaluation", "how often it is right"),
        ("data", "images, varied"),
    ),
    (("models", "networks by name"),),
    (("nn", "the operators"),),
)


def rooms() -> Drawing:
    d = Drawing(13.6, 8.1)
    for floor, names in enumerate(FLOORS):
        y = 7.5 - 1.3 * floor
        for i, (name, what) in enumerate(names):
            x = 7.3 + 3.1 * (i - (len(names) - 1) / 2)
            d.box(x, y, name, what, "poly" if name in ("nn", "models") else "linear", width=2.3)
    for floor in range(len(FLOORS) - 1):
        y = 7.5 - 1.3 * floor
        d.path((0.45, y - 0.3), (0.45, y - 1.0))
    d.text(0.45, 7.55, "imports", 8)
    return d


def chain(d: Drawing, y: float, steps: list[tuple[str, str, str]], width: float = 1.75) -> list[Node]:
    made = [d.box(1.25 + (width + 0.5) * i, y, name, note, kind, width) for i, (name, note, kind) in enumerate(steps)]
    d.link(*made)
    return made


def way_through_training() -> Drawing:
    d = Drawing(13.6, 2.0)
    chain(
        d,
        1.25,
        [
            ("picture", "data/sets.py", "norm"),
            ("transform", "data/transforms.py", "linear"),
            ("batch", "data/loader.py", "linear"),
            ("network", "models/network.py", "poly"),
            ("loss", "training/classification.py", "linear"),
            ("run folder", "training/folder.py", "norm"),
        ],
    )
    return d


def way_through_encryption() -> Drawing:
    d = Drawing(13.6, 2.0)
    chain(
        d,
        1.25,
        [
            ("lower", "circuit/lowering.py", "linear"),
            ("rewrite", "circuit/rewrites.py", "linear"),
            ("pack", "encrypted/packing.py", "linear"),
            ("plan", "encrypted/planner.py", "linear"),
            ("execute", "encrypted/execution.py", "poly"),
            ("decrypt", "encrypted/client.py", "norm"),
        ],
    )
    return d


if __name__ == "__main__":
    for draw in (rooms, way_through_training, way_through_encryption):
        file = Path(__file__).parent / f"{draw.__name__}.svg"
        draw().figure.savefig(file, metadata={"Date": None, "Creator": None})
