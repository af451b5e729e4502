"""What happens inside the cells while a network learns: the first thing to look at when one does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import Cell
from polynext.nn import PolyConv, PolyMLP
from polynext.training.folder import RunFolder

CellRecord = dict[str, Any]


class Diagnostics:
    """Watches a network's cells during chosen steps, and leaves it alone otherwise."""

    def __init__(self, model: nn.Module):
        self.cells = {name: module for name, module in model.named_modules() if isinstance(module, Cell)}
        if not self.cells:
            raise PolyNeXtError(f"{type(model).__name__} has no cells to look into: train it without --diagnostics.")

    @contextmanager
    def watching(self) -> Iterator[dict[str, CellRecord]]:
        """While inside, a forward and backward pass fills the record of each cell.

        activation: root mean square of the cell's output; gradient: of the loss's gradient there; largest_product: the
        largest absolute value of a Hadamard product in PolyConv or PolyMLP; scales: the residual scales.
        """
        records: dict[str, CellRecord] = {name: {"largest_product": 0.0} for name in self.cells}
        handles = []
        for name, cell in self.cells.items():
            record = records[name]
            if hasattr(cell.scale, "scales"):
                record["scales"] = cell.scale.scales().detach().tolist()

            def note_output(module: nn.Module, inputs: Any, output: Tensor, record: CellRecord = record) -> None:
                record["activation"] = root_mean_square(output)
                if output.requires_grad:
                    output.register_hook(lambda gradient: record.update(gradient=root_mean_square(gradient)))

            def note_product(module: nn.Module, inputs: tuple[Tensor], record: CellRecord = record) -> None:
                largest = inputs[0].detach().abs().max().item()
                record["largest_product"] = max(record["largest_product"], largest)

            handles.append(cell.register_forward_hook(note_output))
            for part in cell.modules():  # what takes the product: the consolidating convolution, the inner norm
                if isinstance(part, PolyConv):
                    handles.append(part.k.register_forward_pre_hook(note_product))
                elif isinstance(part, PolyMLP):
                    handles.append(part.norm.register_forward_pre_hook(note_product))
        try:
            yield records
        finally:
            for handle in handles:
                handle.remove()


def root_mean_square(x: Tensor) -> float:
    return x.detach().float().square().mean().sqrt().item()


def draw_diagnostics(folder: RunFolder) -> None:
    """The records of a run's cells over its steps, as a picture in its folder."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    records = [record for record in folder.records() if "cells" in record]
    if not records:
        return
    steps = [record["step"] for record in records]
    names = list(records[0]["cells"])
    colours = [colormaps["viridis"](i / max(len(names) - 1, 1)) for i in range(len(names))]
    figure = Figure(figsize=(15, 3.6), layout="constrained")
    panels = figure.subplots(1, 4)
    titles = {
        "activation": "activations (root mean square)",
        "gradient": "gradients (root mean square)",
        "largest_product": "largest product",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=False):
        for name, colour in zip(names, colours, strict=True):
            axes.plot(steps, [r["cells"][name].get(key, float("nan")) for r in records], color=colour, label=name)
        axes.set_yscale("log")
        axes.set_title(title)
    for name, colour in zip(names, colours, strict=True):
        scales = [r["cells"][name].get("scales", []) for r in records]
        for values in zip(*scales, strict=True):
            panels[3].plot(steps, values, color=colour, linewidth=0.9)
    panels[3].set_title("residual scales")
    for axes in panels:
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=6)
    figure.savefig(folder.path / "diagnostics.png", dpi=110)
