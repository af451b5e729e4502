"""Gradient clipping at each cell, besides that of the global norm."""

from typing import Any

from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import Cell


def limit_cell_gradients(model: nn.Module, limit: float) -> None:
    """Scales the gradient at each cell's output down to this norm, if it is larger."""
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    if not cells:
        raise PolyNeXtError("`optimizer.clip_cells` needs a PolyNeXt backbone: this one has no cells.")

    def limited(gradient: Tensor) -> Tensor:
        return gradient * (limit / gradient.norm().clamp_min(limit))

    def limit_output(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(limited)

    for cell in cells:
        cell.register_forward_hook(limit_output)
