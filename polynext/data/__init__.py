"""Data sets by name, and the transforms of the recipes. Start with `sets.py`."""

import lazy_loader

# A config needs neither torch nor timm, which the loaders import.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
