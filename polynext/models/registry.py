"""The package's models: their kinds, and their entries in timm's registry."""

import sys
from collections.abc import Callable
from typing import Any, Literal

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import register_model
from torch import nn

# Fully polynomial: inference is additions and multiplications only. Activation-free: no activation functions, but norms
# that divide by statistics of their input. Polynomial mixers: another network's mixers replaced; its other parts have
# activation functions.
Kind = Literal["fully polynomial", "activation-free", "polynomial mixers"]

KINDS: dict[str, Kind] = {}

# The end of a model's name, by kind.
SUFFIXES: dict[Kind, str] = {"activation-free": "", "fully polynomial": "_bn"}


def register(module: str, name: str, kind: Kind, doc: str, build: Callable[..., nn.Module]) -> None:
    """Registers `build(name, pretrained, **options)` with timm, as the function `name` of a module."""

    def create(pretrained: bool = False, **options: Any) -> nn.Module:
        return build(name, pretrained, **options)

    create.__module__, create.__name__, create.__qualname__, create.__doc__ = module, name, name, doc
    setattr(sys.modules[module], name, create)  # timm and pickle find the function by its name
    register_model(create)
    KINDS[name] = kind


def default_cfg(size: int = 224, pool: int = 7, **overrides: Any) -> dict[str, Any]:
    """timm's default config: the images a model takes, and the names of its first and last layer."""
    return {
        "input_size": (3, size, size),
        "pool_size": (pool, pool),
        "num_classes": 1000,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "stem",
        "classifier": "head.fc",
        "license": "apache-2.0",  # of the authors' release and of this package
        **overrides,
    }
