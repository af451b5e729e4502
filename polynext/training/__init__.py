"""Training.

`polynext.config` defines a run, `loop.py` runs it, `classification.py` is its task, `folder.py` its files.
"""

from polynext.extras import require

require("train")

from polynext.config import (
    EmaConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    build_model,
    from_yaml,
    to_yaml,
)
from polynext.training.classification import Classification, train
from polynext.training.loop import DivergedError, Task, TrainingLoop, run
from polynext.training.rehearsal import Rehearsal, rehearse
from polynext.training.stopping import Interrupted

__all__ = [
    "Classification",
    "DivergedError",
    "EmaConfig",
    "Interrupted",
    "ModelConfig",
    "OptimizerConfig",
    "Rehearsal",
    "ScheduleConfig",
    "Task",
    "TrainConfig",
    "TrainingLoop",
    "build_model",
    "from_yaml",
    "rehearse",
    "run",
    "to_yaml",
    "train",
]
