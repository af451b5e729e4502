"""Trained networks: from the folder of a run, a weights file, or a model's name."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo

from polynext.config import TrainConfig, build_model, from_yaml, read_config
from polynext.data import DataConfig, load_examples
from polynext.data.examples import balanced_indices
from polynext.data.sets import DATA_SETS, Split
from polynext.errors import PolyNeXtError, suggest
from polynext.files import reading
from polynext.models import PUBLISHED, create_model, is_polynext, list_models, load_weights, read_weights
from polynext.models.checkpoints import identify, model_for, read_checkpoint, read_metadata, stored_classes
from polynext.models.published import SHIPPED, WEIGHTS, check_same_entries, is_published, shipped_weights
from polynext.preprocessing import Preprocessing


@dataclass(frozen=True)
class Run:
    """A network in eval mode, with its preprocessing and classes.

    Attributes:
        name: the model's name.
        model: the network.
        preprocessing: how an image becomes its input.
        classes: the names of the classes; None if they are unknown.
        weights: a hash of the weights file, or "published" or "untrained".
        checkpoint: the weights file, if there is one.
        config: the config of its training run, if it is known.
        tag: the tag of published weights, as in `cpolynext_small.in1k`; None for others.
    """

    name: str
    model: Any
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None = None
    weights: str = "untrained"
    checkpoint: Path | None = None
    config: TrainConfig | None = None
    tag: str | None = None

    @property
    def tagged_name(self) -> str:
        """The model's name, with the tag of published weights."""
        return f"{bare(self.name)}.{self.tag}" if self.tag else self.name

    def require_trained(self) -> None:
        """Raises if the network has no trained weights."""
        if self.weights == "untrained":
            raise PolyNeXtError(
                f"{self.name} has no trained weights: give `checkpoint`, `pretrained` or the folder of a training run."
            )

    @property
    def data(self) -> DataConfig:
        """The data of its training run; ImageNet without one."""
        return self.config.data if self.config else DataConfig(name="imagenet", preprocessing=self.preprocessing)

    def images(self, split: Split, count: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """`count` images of its data, balanced over classes: the network's input, labels and pixels."""
        examples = load_examples(self.data, split)
        chosen = balanced_indices(examples.labels, min(count, len(examples)))
        images = [examples.image(i) for i in chosen]
        prepared = np.stack([self.preprocessing(image).astype(np.float64) for image in images])
        return prepared, examples.labels[chosen], [np.asarray(image) for image in images]

    @property
    def class_names(self) -> list[str]:
        """The names of the classes if they are known, ImageNet's for 1000 classes, and numbers otherwise."""
        if self.classes:
            return list(self.classes)
        if self.model.num_classes == 1000:
            return [str(name).split(",")[0] for name in ImageNetInfo().label_descriptions()]
        return [str(i) for i in range(self.model.num_classes)]

    @torch.inference_mode()
    def classify(self, image: Image.Image) -> list[tuple[str, float]]:
        """The classes and their probabilities, the most likely first."""
        batch = torch.from_numpy(self.preprocessing(image))[None]
        device = next(self.model.parameters()).device
        probabilities = self.model(batch.to(device)).float().softmax(dim=1)[0].tolist()
        return sorted(zip(self.class_names, probabilities, strict=True), key=lambda guess: -guess[1])


def load_run(
    source: str | Path,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    device: torch.device | str = "cpu",
) -> Run:
    """Loads a network.

    Args:
        source: the folder of a training run, a weights file of polynext or of the paper's authors, the name of a
            model of polynext or timm, or a shipped network, which has its weights: mnist, digits, cifar10 or
            cifar10-deep, or with its model's name, as cpolynext_mnist_bn.mnist.
        checkpoint: weights for a named model, or weights of a run instead of its best.
        pretrained: download the published weights of a named model.
        device: the device of the network.
    """
    path = Path(source)
    if checkpoint is not None and pretrained:
        raise PolyNeXtError("both `checkpoint` and `pretrained` were given: give one of them.")
    if path.is_dir() or path.is_file():
        if pretrained:
            raise PolyNeXtError(f"{source} has its own weights: leave out `pretrained`.")
        run = from_folder(path, checkpoint) if path.is_dir() else from_file(path)
    else:
        run = from_name(str(source), checkpoint, pretrained)
    run.model.to(device).eval()
    return run


def from_folder(folder: Path, checkpoint: Path | None) -> Run:
    weights, config_file = checkpoint or folder / "best.safetensors", folder / "config.yaml"
    if not weights.is_file() or not config_file.is_file():
        raise PolyNeXtError(f"{folder} is not a finished run: give a folder with config.yaml and best.safetensors.")
    return trained(read_config(config_file, TrainConfig), weights)


def from_file(path: Path) -> Run:
    """The network of a weights file, by its metadata or, for files of the authors, by its shapes."""
    name = stated_model(path)
    if name is None:
        raise PolyNeXtError(f"{path} does not name its network: give the model's name, and {path} as `checkpoint`.")
    return from_name(name, path)


def from_name(name: str, checkpoint: Path | None = None, pretrained: bool = False) -> Run:
    shipped = shipped_weights(name)
    if shipped and checkpoint is None and (pretrained or name not in list_models()):
        # Its file has the config of its run.
        return replace(from_name(bare(shipped.stem), shipped), checkpoint=None, tag=shipped.stem.split(".")[1])
    if not timm.is_model(bare(name)):
        hint = suggest(bare(name), [*SHIPPED.values(), *list_models()], "see `polynext models`.")
        raise PolyNeXtError(f"{name!r} is not a model, the folder of a run or a weights file: {hint}")
    if checkpoint is None:
        model: Any = create_model(name, pretrained=pretrained)
        weights, tag = ("published", model.pretrained_cfg.get("tag")) if pretrained else ("untrained", None)
        return Run(name, model, own_preprocessing(model), weights=weights, tag=tag)
    stated, metadata = stated_model(checkpoint), read_metadata(checkpoint)
    if stated is not None and bare(stated) != bare(name):
        raise PolyNeXtError(f"{checkpoint} holds weights of {stated}, not of {name}.")
    if "config" in metadata:
        config = from_yaml(metadata["config"], str(checkpoint), TrainConfig)
        return trained(replace(config, data=without_downloads(config.data)), checkpoint)
    classes = stored_classes(metadata)
    if is_polynext(name):
        model = model_for(bare(name), read_weights(checkpoint), device="cpu")
    else:
        options: dict[str, Any] = {"num_classes": len(classes)} if classes else {}
        model = create_model(name, **options)
    load_weights(model, checkpoint)
    preprocessing, tag = own_preprocessing(model), published_tag(bare(name), checkpoint)
    return Run(name, model, preprocessing, classes, digest(checkpoint), checkpoint, tag=tag)


def without_downloads(data: DataConfig) -> DataConfig:
    """The data of a config in a weights file, which may come from someone else. timm downloads missing data sets."""
    if data.name.startswith("timm:"):
        data = replace(data, name="folder", root=None)
    return replace(data, download=False)


def stated_model(path: Path) -> str | None:
    """The model in the metadata of a weights file, or that of a file of the authors; None for others."""
    if "model" in (metadata := read_metadata(path)):
        return metadata["model"]
    return identify(read_weights(path)) if is_published(read_checkpoint(path)) else None


def published_tag(model: str, path: Path) -> str | None:
    """The tag of published weights: from the metadata of a converted file, or by the name of the authors' file."""
    if "tag" in (metadata := read_metadata(path)):
        return metadata["tag"]
    if not is_published(read_checkpoint(path)):
        return None
    files = {file: tagged.split(".")[1] for tagged, file in PUBLISHED.items() if tagged.split(".")[0] == model}
    return next(iter(files.values())) if len(files) == 1 else files.get(path.name)


def bare(name: str) -> str:
    """A model's name without the tag of its weights."""
    return name.split(".")[0]


def own_preprocessing(model: Any) -> Preprocessing:
    return Preprocessing.of_model(timm.data.resolve_model_data_config(model))


def trained(config: TrainConfig, weights: Path) -> Run:
    """The network of a config with weights from a file. Weights in the package use the data sample in the package."""
    sample = f"{config.data.name}-sample"
    if weights.parent == WEIGHTS and sample in DATA_SETS:
        config = replace(config, data=replace(config.data, name=sample, limit=0, validation=0))
    classes = stored_classes(read_metadata(weights)) or tuple(load_examples(config.data, "test").classes)
    as_built = replace(config, model=replace(config.model, pretrained=False, initial_weights=None))
    with reading(f"the config of {weights} describes no network that can be built: train or download it again."):
        shapes = build_model(as_built, len(classes), device="meta").state_dict()
    check_same_entries(read_weights(weights), shapes, config.model.name)  # before memory for the network is allocated
    model = build_model(as_built, len(classes))
    load_weights(model, weights)
    preprocessing = config.data.preprocessing
    return Run(config.model.name, model, preprocessing, classes, digest(weights), weights, config)


def digest(path: Path) -> str:
    """A short hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
