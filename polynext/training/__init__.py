"""The training engine. `config.py` says what a run is, `engine.py` runs it, `folder.py` is what it leaves behind."""

from polynext.extras import require

require("train")

from polynext.training.config import (
    EmaConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    from_yaml,
    to_yaml,
)
from polynext.training.engine import DivergedError, Trainer, build_model, train
from polynext.training.stopping import Interrupted

__all__ = [
    "DivergedError",
    "EmaConfig",
    "Interrupted",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "TrainConfig",
    "Trainer",
    "build_model",
    "from_yaml",
    "to_yaml",
    "train",
]
