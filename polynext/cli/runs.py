"""Networks that commands work with: a training run's, or a model by its name."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

from polynext.data import DataConfig, load_examples
from polynext.data.sets import Split, balanced_indices
from polynext.data.transforms import evaluation_transform
from polynext.errors import PolyNeXtError
from polynext.models import create_model, list_models, load_weights, read_weights
from polynext.models.checkpoints import identify, model_for, stored_classes
from polynext.training import TrainConfig, from_yaml
from polynext.training.engine import build_model


@dataclass(frozen=True)
class Run:
    """A trained model in eval mode and the config it was trained by."""

    model: Any
    config: TrainConfig
    weights: Path

    def images(self, split: Split, count: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """So many images of all classes as the network takes them, their labels, and the pixels."""
        examples = load_examples(self.config.data, split)
        transform = evaluation_transform(self.config.data)
        chosen = balanced_indices(examples.labels, min(count, len(examples)))
        pixels = [np.asarray(examples.image(i)) for i in chosen]
        prepared = np.stack([transform(examples.image(i)).double().numpy() for i in chosen])
        return prepared, examples.labels[chosen], pixels

    @property
    def classes(self) -> list[str]:
        return stored_classes(self.weights) or load_examples(self.config.data, "test").classes


def load_run(folder: Path, checkpoint: Path | None = None) -> Run:
    """A run's network with its best weights, or others."""
    weights, config_file = checkpoint or folder / "best.safetensors", folder / "config.yaml"
    if not weights.is_file() or not config_file.is_file():
        raise PolyNeXtError(
            f"{folder} is no finished run: give a folder with config.yaml and best.safetensors, as "
            "`polynext train` leaves it."
        )
    config: TrainConfig = from_yaml(config_file.read_text(), str(config_file))
    name = config.model.name.split(".")[0]
    if name in list_models():
        model = model_for(name, read_weights(weights), device="cpu")
    else:
        as_built = replace(config, model=replace(config.model, pretrained=False, initial_weights=None))
        classes = stored_classes(weights) or load_examples(config.data, "test").classes
        model = build_model(as_built, len(classes))
    load_weights(model, weights)
    return Run(model.eval(), config, weights)


@dataclass(frozen=True)
class Subject:
    """A network to use: with its weights, how its images are prepared, and its classes where they are known."""

    name: str
    model: Any
    weights: str  # a hash, or what they are instead of trained
    checkpoint: Path | None
    data: DataConfig
    classes: list[str] | None = None


def load_subject(name: str, checkpoint: Path | None, pretrained: bool, device: torch.device | str = "cpu") -> Subject:
    """What a command's `model`, `--checkpoint` and `--pretrained` name, in eval mode."""
    if checkpoint is not None and pretrained:
        raise PolyNeXtError("both --checkpoint and --pretrained were given: the weights can be of one only.")
    if Path(name).is_dir():
        if pretrained:
            raise PolyNeXtError(f"{name} is a run with weights of its own: leave --pretrained out.")
        run = load_run(Path(name), checkpoint)
        model, config = run.model.to(device), run.config
        return Subject(config.model.name, model, digest(run.weights), run.weights, config.data, run.classes)
    bare = name.split(".")[0]
    if not timm.is_model(bare):
        raise PolyNeXtError(f"{name!r} is neither a model nor the folder of a run: see `polynext models`.")
    if checkpoint is not None and bare in list_models():
        weights = read_weights(checkpoint)
        if identify(weights) != bare:
            raise PolyNeXtError(f"{checkpoint} holds weights of {identify(weights)}, not of {name}.")
        model = model_for(bare, weights, device="cpu")
    else:
        model = create_model(name, pretrained=pretrained)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    weights_are = digest(checkpoint) if checkpoint else "published" if pretrained else "untrained"
    classes = stored_classes(checkpoint) if checkpoint else None
    return Subject(name, model.to(device).eval(), weights_are, checkpoint, preprocessing(model), classes)


def preprocessing(model: Any) -> DataConfig:
    """What a timm model says about its images."""
    given = timm.data.resolve_model_data_config(model)
    size = given["input_size"][-1]
    return DataConfig(
        name="imagenet",
        image_size=size,
        evaluation_resize=int(size / given["crop_pct"] + 1e-6),
        evaluation_interpolation=given["interpolation"],
        mean=tuple(given["mean"]),
        std=tuple(given["std"]),
    )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
