"""Draws the packages and the paths of training and encryption through them, one SVG file each, next to this script.

Run it with `python docs/figures/inside.py` (needs matplotlib).
"""

from pathlib import Path

from architecture import Drawing, Node

# The packages by layer, from the top to the bottom: (name, content, column). Each imports only from layers below it, as
# `tests/test_architecture.py` checks.
LAYERS = (
    (("cli", "commands", 2.5),),
    (("experiments", "sweeps, speed, the paper's tables", 1.5), ("service", "HTTP, workers, the page", 4)),
    (
        ("segmentation", "UPerNet", 1),
        ("evaluation", "accuracy and robustness", 2),
        ("encrypted/compiler", "plans and cost estimates", 4),
    ),
    (
        ("training", "the loop and its tasks", 1),
        ("recipes", "configs of runs, by name", 2),
        ("runs", "trained networks", 3),
    ),
    (("config", "what defines a run", 1.5), ("export", "ONNX, torch.export", 3)),
    (("acceleration", "speed and memory", 1),),
    (("models", "networks by name", 1), ("encrypted", "client and server", 4)),
    (
        ("nn", "the operators", 1),
        ("data", "data sets and transforms", 2),
        ("circuit", "networks as arithmetic", 3),
        ("encrypted/runtime", "programs and backends", 4),
    ),
)
PITCH = 1.15  # between layers


def packages() -> Drawing:
    top = 0.9 + PITCH * (len(LAYERS) - 1)
    d = Drawing(13.6, top + 0.5)
    for layer, entries in enumerate(LAYERS):
        for name, content, column in entries:
            x, kind = 3.1 * column - 0.5, "poly" if name in ("nn", "models") else "linear"
            d.box(x, top - PITCH * layer, name, content, kind, width=2.3)
        if layer:
            d.path((0.45, top - PITCH * (layer - 1) - 0.25), (0.45, top - PITCH * layer + 0.15))
    d.text(0.45, top, "imports", 8)
    return d


def chain(d: Drawing, y: float, steps: list[tuple[str, str, str]], width: float = 1.75) -> list[Node]:
    """Boxes with arrows between them. A step is (label, file, kind of box); long paths have two lines."""
    made = [d.box(1.25 + (width + 0.5) * i, y, name, "", kind, width) for i, (name, _, kind) in enumerate(steps)]
    for node, (_, file, _) in zip(made, steps, strict=True):
        d.text(node.x, node.bottom[1] - (0.35 if "\n" in file else 0.22), file)
    d.link(*made)
    return made


def way_through_training() -> Drawing:
    d = Drawing(13.6, 2.0)
    chain(
        d,
        1.25,
        [
            ("image", "data/sets.py", "norm"),
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
            ("pack", "encrypted/\ncompiler/packing.py", "linear"),
            ("plan", "encrypted/\ncompiler/planner.py", "linear"),
            ("execute", "encrypted/\nruntime/execution.py", "poly"),
            ("decrypt", "encrypted/client.py", "norm"),
        ],
    )
    return d


if __name__ == "__main__":
    for draw in (packages, way_through_training, way_through_encryption):
        file = Path(__file__).parent / f"{draw.__name__}.svg"
        draw().figure.savefig(file, metadata={"Date": None, "Creator": None})
