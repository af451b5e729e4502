"""Data sets by name, and the transforms of the recipes. Start with `sets.py`."""

from polynext.data.config import AugmentConfig, DataConfig
from polynext.data.examples import Examples
from polynext.data.loader import batches, evaluation_batches
from polynext.data.sets import DATA_SETS, DataSet, load_examples
from polynext.data.transforms import training_transform
from polynext.preprocessing import Preprocessing

__all__ = [
    "DATA_SETS",
    "AugmentConfig",
    "DataConfig",
    "DataSet",
    "Examples",
    "Preprocessing",
    "batches",
    "evaluation_batches",
    "load_examples",
    "training_transform",
]
