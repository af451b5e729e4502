"""Gradient clipping at cells."""

import pytest
import torch
from torch import nn

import polynext
from polynext.errors import PolyNeXtError
from polynext.models.network import Cell
from polynext.segmentation.task import limit_cell_gradients


def parameter_gradients(limit: float | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = polynext.create_model("cpolynext_micro", num_classes=4)
    if limit:
        limit_cell_gradients(model, limit)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def test_small_gradients_stay_as_they_are() -> None:
    pairs = zip(parameter_gradients(1e9), parameter_gradients(None), strict=True)
    assert all(torch.equal(limited, free) for limited, free in pairs)


def test_large_gradients_are_clipped() -> None:
    seen: list[float] = []
    model = polynext.create_model("cpolynext_micro", num_classes=4)
    limit_cell_gradients(model, 5.0)
    for cell in (m for m in model.modules() if isinstance(m, Cell)):
        cell.register_forward_hook(
            lambda m, x, y: y.register_hook(lambda g: seen.append(g.norm().item())) and None
        )  # after the limit
    (1e6 * model(torch.randn(2, 3, 16, 16)).square().sum()).backward()
    assert len(seen) == 3
    assert max(seen) <= 5.0 * (1 + 1e-5)
    assert max(seen) > 4.9
    with pytest.raises(PolyNeXtError, match="this one has no cells"):
        limit_cell_gradients(nn.Linear(2, 2), 5.0)
