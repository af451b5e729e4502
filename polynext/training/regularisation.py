"""The penalty for encryption, and whether a network takes the dropout and stochastic depth of a recipe, asked before
anything is read or trained."""

from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models import create_model
from polynext.nn import PolyConv


def spread_of_singular_values(model: nn.Module) -> Tensor:
    """How unequal the squared singular values of PolyConv's W_in are: the logarithm of their arithmetic over their
    geometric mean, averaged over all PolyConvs.

    Zero for multiples of orthogonal matrices, infinite for singular ones. An encrypted plan computes h = W_in x and
    takes x back as W_in^-1 h, where the condition number multiplies the noise.
    """
    weights = [m.w_in.weight.flatten(1).float() for m in model.modules() if isinstance(m, PolyConv)]
    if not weights:
        raise PolyNeXtError(f"{type(model).__name__} has no PolyConv: give `model.conditioning` 0.")
    with torch.autocast(weights[0].device.type, enabled=False):
        squares = [w @ w.T if len(w) <= w.shape[1] else w.T @ w for w in weights]
        return torch.stack([(g.trace() / len(g)).log() - g.logdet() / len(g) for g in squares]).mean()


def check_regularisation(name: str, drop_path: float, dropout: float) -> None:
    """Raises unless the model of this name can have so much stochastic depth, and dropout in its head."""
    if dropout and not head_dropouts(create_model(name, device="meta", drop_rate=dropout)):
        raise PolyNeXtError(f"{name} has no dropout in its head: give `model.dropout` 0.")
    if drop_path and not has_stochastic_depth(name, drop_path):
        raise PolyNeXtError(f"{name} has no stochastic depth: give `model.drop_path` 0.")


def head_dropouts(model: Any) -> list[nn.Dropout]:
    """The dropouts in a network's head; the last one is that of the classifier's input."""
    head = getattr(model, "head", None)
    return [m for m in head.modules() if isinstance(m, nn.Dropout)] if isinstance(head, nn.Module) else []


def has_stochastic_depth(name: str, rate: float) -> bool:
    try:
        model = create_model(name, device="meta", drop_path_rate=rate)
    except TypeError:  # it takes no such argument
        return False
    return any(isinstance(m, DropPath) for m in model.modules())
