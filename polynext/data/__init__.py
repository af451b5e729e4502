"""Data sets by name and the transforms of the recipes. Start with `sets.py`."""

from polynext.data.config import AugmentConfig, DataConfig
from polynext.data.loader import batches, evaluation_batches
from polynext.data.sets import Examples, load_examples
from polynext.data.transforms import evaluation_transform, training_transform

__all__ = [
    "AugmentConfig",
    "DataConfig",
    "Examples",
    "batches",
    "evaluation_batches",
    "evaluation_transform",
    "load_examples",
    "training_transform",
]
