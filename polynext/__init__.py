"""Activation-free vision backbones: train them, measure them, run them on encrypted images.

`import polynext` registers the models with timm. Read `polynext/nn` for the operators and `polynext/models` for the
networks.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wrapt import when_imported

from polynext.errors import PolyNeXtError

if TYPE_CHECKING:
    from polynext import (
        ablation,
        acceleration,
        bench,
        circuit,
        data,
        design,
        encrypted,
        evaluation,
        models,
        nn,
        recipes,
        reproduction,
        segmentation,
        service,
        training,
    )
    from polynext.acceleration import compile
    from polynext.models import create_model, from_published, list_models, load_weights, replace_mixers
    from polynext.preprocessing import Preprocessing
    from polynext.runs import Run, load_run

__version__ = "0.2.0"

__all__ = [
    "PolyNeXtError",
    "Preprocessing",
    "Run",
    "ablation",
    "acceleration",
    "bench",
    "circuit",
    "compile",
    "create_model",
    "data",
    "design",
    "encrypted",
    "evaluation",
    "from_published",
    "list_models",
    "load_run",
    "load_weights",
    "models",
    "nn",
    "recipes",
    "replace_mixers",
    "reproduction",
    "segmentation",
    "service",
    "training",
]


# An encrypted server has no use for torch and timm, which take three quarters of a gigabyte: what needs them is
# imported at its first use, and the models are registered as soon as there is a timm to know them.
@when_imported("timm")
def register_models(timm: ModuleType) -> None:
    importlib.import_module("polynext.models")


HOMES = {
    "Preprocessing": "polynext.preprocessing",
    "Run": "polynext.runs",
    "compile": "polynext.acceleration",
    "create_model": "polynext.models",
    "from_published": "polynext.models",
    "list_models": "polynext.models",
    "load_run": "polynext.runs",
    "load_weights": "polynext.models",
    "replace_mixers": "polynext.models",
}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"polynext.{name}")
    raise AttributeError(f"module 'polynext' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
