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
    from polynext import nn
    from polynext.models import create_model, from_published, list_models, load_weights, replace_mixers

__version__ = "0.1.0"

__all__ = [
    "PolyNeXtError",
    "create_model",
    "from_published",
    "list_models",
    "load_weights",
    "nn",
    "replace_mixers",
]


# An encrypted server has no use for torch and timm, which take three quarters of a gigabyte:
# what needs them is imported at its first use, and the models are registered as soon as there is a timm to know them.
@when_imported("timm")
def register_models(timm: ModuleType) -> None:
    importlib.import_module("polynext.models")


def __getattr__(name: str) -> Any:
    if name == "nn":
        return importlib.import_module("polynext.nn")
    if name in __all__:
        return getattr(importlib.import_module("polynext.models"), name)
    raise AttributeError(f"module 'polynext' has no attribute {name!r}")
