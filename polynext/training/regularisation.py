"""Whether a network takes the dropout and stochastic depth of a recipe, asked before anything is read or trained."""

from typing import Any

from timm.layers import DropPath
from torch import nn

from polynext.errors import PolyNeXtError
from polynext.models import create_model


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
