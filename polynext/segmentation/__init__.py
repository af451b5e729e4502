"""Semantic segmentation: UPerNet on any backbone (Section 4.5).

Read `upernet.py` for the network, `config.py` for the config of a run, `task.py` for its training.
"""

from polynext.extras import require

require("segment")

from polynext.segmentation.checkpoints import load_segmentation_weights
from polynext.segmentation.config import (
    SegmentationConfig,
    SegmentationDataConfig,
    SegmentationModelConfig,
    SegmentationOptimizerConfig,
)
from polynext.segmentation.recipes import RECIPES, segmentation_recipe
from polynext.segmentation.runs import load_segmentation_run
from polynext.segmentation.scores import SegmentationScores
from polynext.segmentation.sliding import predict
from polynext.segmentation.task import evaluate, train_segmentation
from polynext.segmentation.upernet import UPerNet

__all__ = [
    "RECIPES",
    "SegmentationConfig",
    "SegmentationDataConfig",
    "SegmentationModelConfig",
    "SegmentationOptimizerConfig",
    "SegmentationScores",
    "UPerNet",
    "evaluate",
    "load_segmentation_run",
    "load_segmentation_weights",
    "predict",
    "segmentation_recipe",
    "train_segmentation",
]
