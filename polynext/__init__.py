"""Activation-free vision backbones: train them, measure them, run them on encrypted images.

`import polynext` registers the models with timm. Read `polynext/nn` for the operators, `polynext/models` for the
networks and `polynext/acceleration` for what makes them fast. `__init__.pyi` lists the public names.
"""

import importlib
from types import ModuleType

import lazy_loader
from wrapt import when_imported

__version__ = "0.4.0"

# An encrypted server has no use for torch and timm, which take three quarters of a gigabyte: everything is imported at
# its first use, and the models are registered as soon as there is a timm to know them.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


@when_imported("timm")
def register_models(timm: ModuleType) -> None:
    importlib.import_module("polynext.models")
