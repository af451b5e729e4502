"""Training.

`config.py` says what a run is, `loop.py` runs it, `classification.py` is what it learns, `folder.py` what it leaves.

"""

from polynext.extras import require

require("train")

from polynext.training.classification import Classification, build_model, train
from polynext.training.config import (
    EmaConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    from_yaml,
    to_yaml,
)
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
