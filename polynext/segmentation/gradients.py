"""Limiting gradients where they are made, not only in the sum."""

from typing import Any

from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import Cell


def limit_cell_gradients(model: nn.Module, limit: float) -> None:
    """In backward, the gradient at each cell's output is scaled down to this norm if it is larger."""
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    if not cells:
        raise PolyNeXtError("the backbone has no cells to limit gradients at: leave --optimizer.clip-cells out.")

    def limited(gradient: Tensor) -> Tensor:
        return gradient * (limit / gradient.norm().clamp_min(limit))

    def watch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(limited)

    for cell in cells:
        cell.register_forward_hook(watch)
