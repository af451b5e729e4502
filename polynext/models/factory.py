"""Models by name."""

import difflib
from typing import Any

import timm
from torch import nn

from polynext.errors import PolyNeXtError
from polynext.models.polynext import CONFIGS


def list_models(fully_polynomial: bool | None = None) -> list[str]:
    """The names of our models; only, or without, the fully polynomial ones if that is given."""
    names = [*CONFIGS, *(f"{name}_bn" for name in CONFIGS)]
    return [name for name in names if fully_polynomial in (None, name.endswith("_bn"))]


def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
    """`timm.create_model` for our models and timm's, with a helpful answer to a name that neither has."""
    if not timm.is_model(name.split(".")[0]):
        close = difflib.get_close_matches(name, [*list_models(), *timm.list_models()], n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`polynext models` lists ours."
        raise PolyNeXtError(f"there is no model named {name!r}: {hint}")
    return timm.create_model(name, pretrained=pretrained, **options)
