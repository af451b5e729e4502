"""The training engine. `config.py` says what a run is, `engine.py` runs it, `folder.py` is what it leaves behind."""

from polynext.training.config import (
    EmaConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    from_yaml,
    to_yaml,
)
from polynext.training.engine import DivergedError, Trainer, train
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
    "from_yaml",
    "to_yaml",
    "train",
]
