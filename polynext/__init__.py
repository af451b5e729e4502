"""Activation-free vision backbones: train them, measure them, run them on encrypted images.

`import polynext` registers the models with timm. Read `polynext/nn` for the operators and `polynext/models` for the
networks.
"""

from polynext import nn
from polynext.errors import PolyNeXtError
from polynext.models import create_model, from_published, list_models, load_weights

__version__ = "0.1.0"

__all__ = ["PolyNeXtError", "create_model", "from_published", "list_models", "load_weights", "nn"]
