"""What defines a training run, its YAML file, and the network that it trains.

`training.py` has the dataclasses, `files.py` reads and writes them, `network.py` builds the network. Using a trained
network needs this package; training it needs `polynext.training`.
"""

from polynext.config.files import field_values, from_yaml, read_config, to_yaml
from polynext.config.network import build_model
from polynext.config.training import (
    EmaConfig,
    EncryptionConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)

__all__ = [
    "EmaConfig",
    "EncryptionConfig",
    "LoopConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "TrainConfig",
    "build_model",
    "field_values",
    "from_yaml",
    "read_config",
    "to_yaml",
]
