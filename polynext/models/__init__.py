"""PolyNeXt and its variants, and prior polynomial networks.

Read `network.py` for the network, `blocks.py` for its parts, and `polynext.py` for the models by name. `monet.py` and
`dttn.py` are prior networks to compare with; `registry.py` lists all models of the package.
"""

from polynext.extras import require

require("models")

from polynext.models.blocks import Blocks, FullyPolynomialBlocks, PolyNeXtConfig, StageConfig
from polynext.models.checkpoints import from_published, load_weights, read_weights
from polynext.models.dropin import Replacement, replace_mixers
from polynext.models.dttn import DTTN
from polynext.models.factory import check_model, create_model, is_polynext, list_models
from polynext.models.monet import MONet
from polynext.models.network import PolyNeXt
from polynext.models.published import PUBLISHED
from polynext.models.small_baselines import SmallConvFormer, SmallResNet
from polynext.models.variants import VARIANTS, ArchitectureChanges, Variant, create_variant

__all__ = [
    "DTTN",
    "PUBLISHED",
    "VARIANTS",
    "ArchitectureChanges",
    "Blocks",
    "FullyPolynomialBlocks",
    "MONet",
    "PolyNeXt",
    "PolyNeXtConfig",
    "Replacement",
    "SmallConvFormer",
    "SmallResNet",
    "StageConfig",
    "Variant",
    "check_model",
    "create_model",
    "create_variant",
    "from_published",
    "is_polynext",
    "list_models",
    "load_weights",
    "read_weights",
    "replace_mixers",
]
