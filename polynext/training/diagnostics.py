"""What happens inside each cell during training: activations, gradients, scales, and how its branches learn.

`--diagnostics` records it, to find out why a network does not learn. `polynext ablate discussion` uses it to measure
the mechanisms of the paper's Section 5.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import Cell
from polynext.models.substitutes import UnflippedConv
from polynext.nn import PolyConv, PolyMLP
from polynext.training.folder import RunFolder

CellRecord = dict[str, Any]

# An element is dead for a branch if it gives the branch less than this share of the gradient of a product.
DEAD_SHARE = 0.1


class Diagnostics:
    """Records the cells of a network during chosen steps."""

    def __init__(self, model: nn.Module):
        self.cells = {name: module for name, module in model.named_modules() if isinstance(module, Cell)}
        if not self.cells:
            raise PolyNeXtError(f"{type(model).__name__} has no PolyNeXt cells: train it without `diagnostics`.")

    @contextmanager
    def watching(self) -> Iterator[dict[str, CellRecord]]:
        """While inside, a forward and backward pass is recorded. The record of each cell is complete afterwards.

        activation, gradient: root mean square of the cell's output and of its gradient.
        stack_activations, stack_gradients: largest absolute value of each stack's output and of its gradient.
        largest_product: largest absolute value of a fused map in PolyConv or PolyMLP.
        branches: `BranchGradients.summary` of each PolyConv and PolyMLP.
        scales: the residual scales, averaged over channels.
        """
        records: dict[str, CellRecord] = {name: {} for name in self.cells}
        maps: dict[str, list[Watched]] = {}
        operators: dict[str, list[BranchGradients]] = {}
        for name, cell in self.cells.items():
            if hasattr(cell.scale, "scales"):
                scales = cell.scale.scales().detach()
                records[name]["scales"] = scales.reshape(len(scales), -1).mean(dim=1).tolist()
            maps[name] = [Watched(module) for module in (cell, *cell.stacks)]
            operators[name] = [BranchGradients(part) for part in cell.modules() if isinstance(part, PolyConv | PolyMLP)]
        try:
            yield records
        finally:
            for name, record in records.items():
                output, *stacks = maps[name]
                record["activation"], record["gradient"] = (
                    root_mean_square(output.value),
                    root_mean_square(output.gradient),
                )
                record["stack_activations"] = [largest(stack.value) for stack in stacks]
                record["stack_gradients"] = [largest(stack.gradient) for stack in stacks]
                record["largest_product"] = max((largest(one.fused.value) for one in operators[name]), default=0.0)
                record["branches"] = [one.summary() for one in operators[name] if one.complete]
                for watched in (*maps[name], *(part for one in operators[name] for part in one.parts)):
                    watched.handle.remove()


class Watched:
    """A module's output, or its input, in a forward pass, and its gradient in the backward pass."""

    def __init__(self, module: nn.Module, entering: bool = False):
        self.value: Tensor | None = None
        self.gradient: Tensor | None = None
        if entering:
            self.handle = module.register_forward_pre_hook(lambda module, inputs: self.keep(inputs[0]))
        else:
            self.handle = module.register_forward_hook(lambda module, inputs, output: self.keep(output))

    def keep(self, value: Tensor) -> None:
        self.value = value.detach()
        if value.requires_grad:
            value.register_hook(self.keep_gradient)

    def keep_gradient(self, gradient: Tensor) -> None:
        self.gradient = gradient.detach().clone()  # autograd may add to it in place


class BranchGradients:
    """How the branches a and b of an operator, a PolyConv or PolyMLP, learn, whatever function f(a, b) fuses them.

    A product gives a the gradient g b and b the gradient g a, where g is the gradient of the fused map: each branch
    learns through its sibling (Section 5).
    """

    def __init__(self, operator: Any):
        convolves = isinstance(operator, PolyConv)
        sources = [operator.k_coarse, operator.k_fine] if convolves else [operator.w_ab]
        self.branches = [Watched(source) for source in sources]
        self.fused = Watched(operator.k if convolves else operator.norm, entering=True)
        self.parts = [*self.branches, self.fused]
        self.flipped = convolves and not isinstance(operator, UnflippedConv)

    @property
    def complete(self) -> bool:
        return all(part.gradient is not None for part in self.parts)

    def pair(self, maps: list[Any]) -> tuple[Tensor, Tensor]:
        """The maps of branches a and b, in the order in which they are fused."""
        a, b = maps[0].chunk(2, dim=1) if len(maps) == 1 else maps
        return a.float(), (b.flip(1) if self.flipped else b).float()

    def summary(self) -> dict[str, float]:
        """Both branches compared with those of a product, as shares of all elements or as a correlation.

        dead_a, dead_b: elements that give the branch less than a tenth of the gradient of a product.
        dead_both: elements that are dead for both.
        passed_a, passed_b: the sum of the gradient's absolute values, as a multiple of the sum that a product gives.
        coupling: correlation between the size of a branch's derivative and that of its sibling; 1 for a product.
        """
        a, b = self.pair([part.value for part in self.branches])
        gradient_a, gradient_b = self.pair([part.gradient for part in self.branches])
        assert self.fused.gradient is not None
        g = self.fused.gradient.float()
        of_product_a, of_product_b = (g * b).abs(), (g * a).abs()
        dead_a = gradient_a.abs() < DEAD_SHARE * of_product_a
        dead_b = gradient_b.abs() < DEAD_SHARE * of_product_b
        live = g != 0
        derivatives = torch.cat([(gradient_a[live] / g[live]).abs(), (gradient_b[live] / g[live]).abs()])
        siblings = torch.cat([b[live].abs(), a[live].abs()])
        return {
            "dead_a": share(dead_a),
            "dead_b": share(dead_b),
            "dead_both": share(dead_a & dead_b),
            "passed_a": ratio(gradient_a.abs().sum(), of_product_a.sum()),
            "passed_b": ratio(gradient_b.abs().sum(), of_product_b.sum()),
            "coupling": correlation(derivatives, siblings),
        }


def share(condition: Tensor) -> float:
    return condition.float().mean().item()


def ratio(numerator: Tensor, denominator: Tensor) -> float:
    return (numerator / denominator).item() if denominator > 0 else 0.0


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's correlation; 0 if one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    norms = x.norm() * y.norm()
    return (x @ y / norms).item() if norms > 1e-6 * x.numel() ** 0.5 * y.norm() else 0.0


def largest(x: Tensor | None) -> float:
    return x.abs().max().item() if x is not None else 0.0


def root_mean_square(x: Tensor | None) -> float:
    return x.float().square().mean().sqrt().item() if x is not None else 0.0


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
