"""Activations, gradients and scales of each cell during training, to find out why a network does not learn."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import Cell
from polynext.nn import PolyConv, PolyMLP
from polynext.training.folder import RunFolder

CellRecord = dict[str, Any]


class Diagnostics:
    """Records the cells of a network during chosen steps."""

    def __init__(self, model: nn.Module):
        self.cells = {name: module for name, module in model.named_modules() if isinstance(module, Cell)}
        if not self.cells:
            raise PolyNeXtError(f"{type(model).__name__} has no PolyNeXt cells: train it without `diagnostics`.")

    @contextmanager
    def watching(self) -> Iterator[dict[str, CellRecord]]:
        """While inside, a forward and backward pass fills the record of each cell.

        activation: root mean square of the cell's output; gradient: of its gradient; largest_product: largest absolute
        value of a Hadamard product in PolyConv or PolyMLP; scales: the residual scales, averaged over channels.
        """
        records: dict[str, CellRecord] = {name: {"largest_product": 0.0} for name in self.cells}
        handles = []
        for name, cell in self.cells.items():
            record = records[name]
            if hasattr(cell.scale, "scales"):
                scales = cell.scale.scales().detach()
                record["scales"] = scales.reshape(len(scales), -1).mean(dim=1).tolist()

            def note_output(module: nn.Module, inputs: Any, output: Tensor, record: CellRecord = record) -> None:
                record["activation"] = root_mean_square(output)
                if output.requires_grad:
                    output.register_hook(lambda gradient: record.update(gradient=root_mean_square(gradient)))

            def note_product(module: nn.Module, inputs: tuple[Tensor], record: CellRecord = record) -> None:
                largest = inputs[0].detach().abs().max().item()
                record["largest_product"] = max(record["largest_product"], largest)

            handles.append(cell.register_forward_hook(note_output))
            for part in cell.modules():  # the modules whose input is the product
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


TITLES = {
    "activation": "activations (root mean square)",
    "gradient": "gradients (root mean square)",
    "largest_product": "largest product",
    "scales": "residual scales",
}


def draw_diagnostics(runs: dict[str, RunFolder], path: Path) -> None:
    """Draws the cells of runs over their steps: a row of panels for each run, a colour for each cell."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    found = {title: [r for r in folder.records() if "cells" in r] for title, folder in runs.items()}
    found = {title: records for title, records in found.items() if records}
    if not found:
        return
    figure = Figure(figsize=(15, 3.2 * len(found) + 0.4), layout="constrained")
    panels = figure.subplots(len(found), len(TITLES), squeeze=False, sharex=True, sharey="col")
    for row, (title, records) in zip(panels, found.items(), strict=True):
        steps = [record["step"] for record in records]
        names = list(records[0]["cells"])
        for i, name in enumerate(names):
            colour = colormaps["viridis"](i / max(len(names) - 1, 1))
            cells = [record["cells"][name] for record in records]
            for axes, key in zip(row[:3], TITLES, strict=False):
                axes.plot(steps, [cell.get(key, float("nan")) for cell in cells], color=colour, label=name)
            for values in zip(*(cell.get("scales", []) for cell in cells), strict=True):
                row[3].plot(steps, values, color=colour, linewidth=0.9)
        for axes, key in zip(row, TITLES, strict=True):
            axes.set_yscale("linear" if key == "scales" else "log")
            axes.grid(alpha=0.3)
        row[0].set_ylabel(title)
        row[0].legend(fontsize=6)
    for axes, title in zip(panels[0], TITLES.values(), strict=True):
        axes.set_title(title, fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    figure.savefig(path, dpi=110)
