"""Training.

`polynext.config` defines a run, `loop.py` runs it, `classification.py` is its task (an implementation of that in
`task.py`), `folder.py` its files.
"""

import warnings
from typing import Any

from polynext.extras import require

require("train")

from polynext.config import (
    EmaConfig,
    EncryptionConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    build_model,
    from_yaml,
    to_yaml,
)
from polynext.training.classification import Classification, train
from polynext.training.dry_run import DryRunReport, dry_run
from polynext.training.loop import DivergedError, TrainingLoop, run
from polynext.training.stopping import Interrupted
from polynext.training.task import Task

__all__ = [
    "Classification",
    "DivergedError",
    "DryRunReport",
    "EmaConfig",
    "EncryptionConfig",
    "Interrupted",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "Task",
    "TrainConfig",
    "TrainingLoop",
    "build_model",
    "dry_run",
    "from_yaml",
    "run",
    "to_yaml",
    "train",
]


def __getattr__(name: str) -> Any:
    renamed: dict[str, Any] = {"rehearse": dry_run, "Rehearsal": DryRunReport}
    if name not in renamed:
        raise AttributeError(f"module 'polynext.training' has no attribute {name!r}")
    warnings.warn(f"{name} is now {renamed[name].__name__}.", DeprecationWarning, stacklevel=2)
    return renamed[name]
