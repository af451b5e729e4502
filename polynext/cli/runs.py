"""A trained network from its run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polynext.data import load_examples
from polynext.data.transforms import evaluation_transform
from polynext.errors import PolyNeXtError
from polynext.models.checkpoints import identify, load_weights, model_for, read_weights
from polynext.training import TrainConfig, from_yaml


@dataclass(frozen=True)
class Run:
    """A trained model in eval mode and the config it was trained by."""

    model: Any
    config: TrainConfig

    def images(self, split: Any, count: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The first so many images of a split as the network takes them, their labels, and the pixels."""
        examples = load_examples(self.config.data, split)
        transform = evaluation_transform(self.config.data)
        chosen = range(min(count, len(examples)))
        pixels = [np.asarray(examples.image(i)) for i in chosen]
        prepared = np.stack([transform(examples.image(i)).double().numpy() for i in chosen])
        return prepared, np.asarray([examples.labels[i] for i in chosen]), pixels

    @property
    def classes(self) -> list[str]:
        return list(load_examples(self.config.data, "test").classes)


def load_run(folder: Path) -> Run:
    """The best weights of a run."""
    weights, config = folder / "best.safetensors", folder / "config.yaml"
    if not weights.is_file() or not config.is_file():
        raise PolyNeXtError(
            f"{folder} is no finished run: give a folder with config.yaml and best.safetensors, as `polynext train` "
            "leaves it."
        )
    state = read_weights(weights)
    model = model_for(identify(state), state, device="cpu")
    load_weights(model, weights)
    return Run(model.eval(), from_yaml(config.read_text(), str(config)))
