"""A network to use, wherever it comes from: a run's folder, a file of weights, or a model's name."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo

from polynext.config import TrainConfig, build_model, from_yaml
from polynext.data import DataConfig, load_examples
from polynext.data.examples import balanced_indices
from polynext.data.sets import DATA_SETS, Split
from polynext.errors import PolyNeXtError, suggest
from polynext.models import PUBLISHED, create_model, is_polynext, list_models, load_weights, read_weights
from polynext.models.checkpoints import identify, model_for, read_checkpoint, read_metadata, stored_classes
from polynext.models.published import WEIGHTS, embedded_weights, is_published
from polynext.preprocessing import Preprocessing


@dataclass(frozen=True)
class Run:
    """A network in eval mode, with all it takes to use it.

    Attributes:
        name: of the model.
        model: the network.
        preprocessing: how a picture becomes its input.
        classes: their names; None where nobody tells.
        weights: a hash of their file, or what they are instead: "published" or "untrained".
        checkpoint: their file, if they come from one.
        config: how it was trained, if it is a run of ours.
        tag: of published weights, as in `cpolynext_small.in1k`; None for others.
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
        """The model, with the tag of its weights if they are published ones."""
        return f"{bare(self.name)}.{self.tag}" if self.tag else self.name

    @property
    def data(self) -> DataConfig:
        """What it was trained on; of a model by its name, ImageNet."""
        return self.config.data if self.config else DataConfig(name="imagenet", preprocessing=self.preprocessing)

    def images(self, split: Split, count: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """So many images of its data, of all classes, as the network takes them, their labels, and the pixels."""
        examples = load_examples(self.data, split)
        chosen = balanced_indices(examples.labels, min(count, len(examples)))
        pictures = [examples.image(i) for i in chosen]
        prepared = np.stack([self.preprocessing(picture).astype(np.float64) for picture in pictures])
        return prepared, examples.labels[chosen], [np.asarray(picture) for picture in pictures]

    @property
    def class_names(self) -> list[str]:
        """The names of the classes where they are known, ImageNet's words for a thousand, otherwise numbers."""
        if self.classes:
            return list(self.classes)
        if self.model.num_classes == 1000:
            return [str(name).split(",")[0] for name in ImageNetInfo().label_descriptions()]
        return [str(i) for i in range(self.model.num_classes)]

    @torch.inference_mode()
    def classify(self, picture: Image.Image) -> list[tuple[str, float]]:
        """The classes and their probabilities, the most likely first."""
        images = torch.from_numpy(self.preprocessing(picture))[None]
        device = next(self.model.parameters()).device
        probabilities = self.model(images.to(device)).float().softmax(dim=1)[0].tolist()
        return sorted(zip(self.class_names, probabilities, strict=True), key=lambda guess: -guess[1])


def load_run(
    source: str | Path,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    device: torch.device | str = "cpu",
) -> Run:
    """The network that `source` names.

    Args:
        source: the folder of a training run, a file of weights (ours, or one that the authors published), or the name
            of a model, ours or timm's.
        checkpoint: other weights than a run's best, or those of a named model.
        pretrained: fetch a named model's published weights.
        device: where the network goes.
    """
    path = Path(source)
    if checkpoint is not None and pretrained:
        raise PolyNeXtError("both `checkpoint` and `pretrained` were given: the weights can be of one only.")
    if path.is_dir() or path.is_file():
        if pretrained:
            raise PolyNeXtError(f"{source} has weights of its own: leave `pretrained` out.")
        run = from_folder(path, checkpoint) if path.is_dir() else from_file(path)
    else:
        run = from_name(str(source), checkpoint, pretrained)
    run.model.to(device).eval()
    return run


def from_folder(folder: Path, checkpoint: Path | None) -> Run:
    weights, config_file = checkpoint or folder / "best.safetensors", folder / "config.yaml"
    if not weights.is_file() or not config_file.is_file():
        raise PolyNeXtError(
            f"{folder} is not a finished run: give a folder with config.yaml and best.safetensors, as "
            "`polynext train` leaves it."
        )
    return trained(from_yaml(config_file.read_text(), str(config_file), TrainConfig), weights)


def from_file(path: Path) -> Run:
    """A file tells its network; only the authors' files are recognised by their shape."""
    name = stated_model(path)
    if name is None:
        raise PolyNeXtError(
            f"{path} does not say what network its weights are of: give the model's name, and {path} as `checkpoint`."
        )
    return from_name(name, path)


def from_name(name: str, checkpoint: Path | None = None, pretrained: bool = False) -> Run:
    if not timm.is_model(bare(name)):
        hint = suggest(bare(name), list_models(), "see `polynext models`.")
        raise PolyNeXtError(f"{name!r} is neither a model nor the folder or file of a run: {hint}")
    if pretrained and (embedded := embedded_weights(name)):  # its file tells the whole run
        return replace(from_name(name, embedded), checkpoint=None, tag=embedded.stem.split(".")[1])
    if checkpoint is None:
        model: Any = create_model(name, pretrained=pretrained)
        weights, tag = ("published", model.pretrained_cfg.get("tag")) if pretrained else ("untrained", None)
        return Run(name, model, own_preprocessing(model), weights=weights, tag=tag)
    stated, metadata = stated_model(checkpoint), read_metadata(checkpoint)
    if stated is not None and bare(stated) != bare(name):
        raise PolyNeXtError(f"{checkpoint} holds weights of {stated}, not of {name}.")
    if "config" in metadata:
        return trained(from_yaml(metadata["config"], str(checkpoint), TrainConfig), checkpoint)
    classes = stored_classes(metadata)
    if is_polynext(name):
        model = model_for(bare(name), read_weights(checkpoint), device="cpu")
    else:
        options: dict[str, Any] = {"num_classes": len(classes)} if classes else {}
        model = create_model(name, **options)
    load_weights(model, checkpoint)
    preprocessing, tag = own_preprocessing(model), published_tag(bare(name), checkpoint)
    return Run(name, model, preprocessing, classes, digest(checkpoint), checkpoint, tag=tag)


def stated_model(path: Path) -> str | None:
    """The model that a file's weights are of, if it says so or is one of the authors'."""
    if "model" in (metadata := read_metadata(path)):
        return metadata["model"]
    return identify(read_weights(path)) if is_published(read_checkpoint(path)) else None


def published_tag(model: str, path: Path) -> str | None:
    """The tag of weights that the authors published: what a converted file says, or what the authors' own is called.

    Their files do not say it, so one of several for a model is known by its name alone.
    """
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
    """The network of a config, with weights from a file; beside those in the package there is a sample of its data."""
    sample = f"{config.data.name}-sample"
    if weights.parent == WEIGHTS and sample in DATA_SETS:
        config = replace(config, data=replace(config.data, name=sample))
    classes = stored_classes(read_metadata(weights)) or tuple(load_examples(config.data, "test").classes)
    as_built = replace(config, model=replace(config.model, pretrained=False, initial_weights=None))
    model = build_model(as_built, len(classes))
    load_weights(model, weights)
    preprocessing = config.data.preprocessing
    return Run(config.model.name, model, preprocessing, classes, digest(weights), weights, config)


def digest(path: Path) -> str:
    """Names a file by its content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
