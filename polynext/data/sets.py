"""Data sets: labelled images, in memory where they fit."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from polynext.data.config import DataConfig
from polynext.data.images import IMAGE_SUFFIXES, decoded_size, read_image
from polynext.errors import PolyNeXtError

Split = Literal["train", "test"]
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("val", "validation", "test")}


class Examples(ABC):
    """Labelled images: `examples[i]` is a PIL image and its class."""

    def __init__(self, labels: Sequence[int] | np.ndarray, classes: Sequence[str]):
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = list(classes)
        if len(self.labels) == 0:
            raise PolyNeXtError("the data set has no images: check its folder.")
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if lowest < 0 or highest >= len(self.classes):
            raise PolyNeXtError(
                f"the data set has labels from {lowest} to {highest} but {len(self.classes)} classes: "
                f"expected 0 to {len(self.classes) - 1}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.image(index), int(self.labels[index])

    @abstractmethod
    def image(self, index: int) -> Image.Image: ...

    def subset(self, indices: np.ndarray) -> "Examples":
        return Subset(self, indices)


class Subset(Examples):
    """Some of the examples."""

    def __init__(self, examples: Examples, indices: np.ndarray):
        super().__init__(examples.labels[indices], examples.classes)
        self.examples, self.indices = examples, indices

    def image(self, index: int) -> Image.Image:
        return self.examples.image(int(self.indices[index]))


class ArrayExamples(Examples):
    """Images in one uint8 array, (N, H, W) or (N, H, W, 3)."""

    def __init__(self, images: np.ndarray, labels: Sequence[int], classes: Sequence[str]):
        super().__init__(labels, classes)
        if len(images) != len(self.labels) or images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise PolyNeXtError(
                f"got images {images.dtype} {images.shape} for {len(self.labels)} labels: "
                "expected uint8 of shape (N, H, W) or (N, H, W, 3)."
            )
        self.images = images

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])


class FileExamples(Examples):
    """Image files.

    If all images, decoded, fit in `most_memory` gigabytes, they are decoded once, here; worker processes share them.
    """

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], classes: Sequence[str], most_memory: float = 0.0):
        super().__init__(labels, classes)
        self.paths = list(paths)
        self.decoded: list[Image.Image] = []
        if decoded_size(self.paths) <= most_memory * 2**30:
            with ThreadPoolExecutor() as pool:
                self.decoded = list(pool.map(read_image, self.paths))

    def image(self, index: int) -> Image.Image:
        return self.decoded[index] if self.decoded else read_image(self.paths[index])


class FolderExamples(FileExamples):
    """A folder of one folder per class."""

    def __init__(self, root: Path, most_memory: float = 0.0):
        classes = sorted(f.name for f in root.iterdir() if f.is_dir())
        found = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not found:
            raise PolyNeXtError(f"{root} has no images: expected one folder per class with images in it.")
        used = {label for _, label in found}
        empty = [name for label, name in enumerate(classes) if label not in used]
        if empty:
            raise PolyNeXtError(f"{root} has classes without an image: {', '.join(empty[:5])}.")
        super().__init__([path for path, _ in found], [label for _, label in found], classes, most_memory)


def tiny_imagenet_validation(root: Path, most_memory: float) -> FileExamples:
    """As it is distributed: all images in one folder, and a list of their classes."""
    classes = sorted(f.name for f in split_folder(root, "train").iterdir() if f.is_dir())
    lines = (root / "val" / "val_annotations.txt").read_text().splitlines()
    named = [line.split("\t")[:2] for line in lines if line.strip()]
    unknown = [name for _, name in named if name not in classes]
    if unknown:
        raise PolyNeXtError(f"val_annotations.txt names {unknown[0]}, which is no folder of {root / 'train'}.")
    paths = [root / "val" / "images" / file for file, _ in named]
    return FileExamples(paths, [classes.index(name) for _, name in named], classes, most_memory)


class TimmExamples(Examples):
    """Anything with a length that timm's create_dataset reads."""

    def __init__(self, dataset: Sequence[tuple[Image.Image, int]], labels: Sequence[int], classes: Sequence[str]):
        super().__init__(labels, classes)
        self.dataset = dataset

    def image(self, index: int) -> Image.Image:
        return self.dataset[index][0]


def load_examples(config: DataConfig, split: Split) -> Examples:
    """The images of a split, `limit` of them if that is set and this is the training split."""
    examples = read(config, split)
    if config.limit and split == "train":
        if not 0 < config.limit <= len(examples):
            raise PolyNeXtError(f"limit is {config.limit} but {config.name} has {len(examples)} training images.")
        examples = examples.subset(balanced_indices(examples.labels, config.limit))
    return examples


def read(config: DataConfig, split: Split) -> Examples:
    if config.name == "digits":
        return digits(split)
    if config.name.startswith("timm:") and not config.name.startswith("timm:wds/"):
        return from_timm(config, split)
    if config.root is None:
        raise PolyNeXtError(f"{config.name} needs a place: give its root, a folder or a .npz file.")
    if config.name == "webdataset" or config.name.startswith("timm:wds/"):
        from polynext.data.shards import ShardExamples, find_shards

        return ShardExamples(find_shards(config.root, split))
    if config.root.suffix == ".npz":
        return from_npz(config.root, split)
    if config.name in ("cifar10", "svhn"):
        return from_torchvision(config, split)
    if config.name in ("tiny-imagenet", "imagenet", "folder"):
        if not config.root.is_dir():
            raise PolyNeXtError(
                f"there is no folder {config.root}: give the data's root, a folder with train and val in it."
            )
        if split == "test" and (config.root / "val" / "val_annotations.txt").is_file():
            return tiny_imagenet_validation(config.root, config.most_memory)
        return FolderExamples(split_folder(config.root, split), config.most_memory)
    raise PolyNeXtError(
        f"there is no data set {config.name!r}: choose digits, cifar10, svhn, tiny-imagenet, imagenet, "
        "folder, webdataset or timm:NAME."
    )


def digits(split: Split) -> ArrayExamples:
    """scikit-learn's 1797 handwritten digits, 8x8 grey: every fifth image of a class is for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    test = np.zeros(len(images), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(data.target == label)[::5]] = True
    chosen = test if split == "test" else ~test
    return ArrayExamples(images[chosen], data.target[chosen], [str(i) for i in range(10)])


def from_npz(path: Path, split: Split) -> ArrayExamples:
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give a .npz with train_x, train_y, test_x and test_y.")
    try:
        with path.open("rb") as file, np.load(file) as data:  # numpy would leave a broken file open
            images, labels = data[f"{split}_x"], data[f"{split}_y"]
            names = [str(n) for n in data["names"]] if "names" in data else None
    except (KeyError, ValueError, OSError, EOFError, BadZipFile) as error:
        raise PolyNeXtError(f"{path} cannot be used: expected a .npz with train_x, train_y, test_x, test_y.") from error
    return ArrayExamples(images, labels, names or [str(i) for i in range(int(labels.max()) + 1)])


def from_torchvision(config: DataConfig, split: Split) -> ArrayExamples:
    from torchvision.datasets import CIFAR10, SVHN

    assert config.root is not None
    try:
        if config.name == "cifar10":
            data = CIFAR10(config.root, train=split == "train", download=config.download)
            return ArrayExamples(data.data, data.targets, data.classes)
        svhn = SVHN(config.root, split=split, download=config.download)
        return ArrayExamples(np.ascontiguousarray(svhn.data.transpose(0, 2, 3, 1)), svhn.labels, list("0123456789"))
    except RuntimeError as error:
        raise PolyNeXtError(
            f"{config.name} is not in {config.root}: give its folder or a .npz, or let `polynext train` fetch it with "
            "--data.download."
        ) from error


def from_timm(config: DataConfig, split: Split) -> TimmExamples:
    from timm.data import create_dataset

    names = {"train": "train", "test": "validation"}
    data = create_dataset(config.name.removeprefix("timm:"), root=str(config.root or ""), split=names[split])
    if not hasattr(data, "__getitem__"):
        raise PolyNeXtError(
            f"{config.name} is a stream without an order: give a data set whose images have numbers, or its shards as "
            "webdataset."
        )
    samples = getattr(data.reader, "samples", None)  # known without opening an image
    labels = [int(label) for _, label in samples] if samples else [int(data[i][1]) for i in range(len(data))]
    return TimmExamples(data, labels, [str(i) for i in range(max(labels) + 1)])


def split_folder(root: Path, split: Split) -> Path:
    for name in SPLIT_FOLDERS[split]:
        if (root / name).is_dir():
            return root / name
    raise PolyNeXtError(
        f"{root} has no folder named {' or '.join(SPLIT_FOLDERS[split])}: expected one for the {split} images."
    )


def balanced_indices(labels: np.ndarray, count: int) -> np.ndarray:
    """The first `count` indices when classes take turns, in the data set's order."""
    turn = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        turn[of_class] = np.arange(len(of_class))
    return np.sort(np.argsort(turn, kind="stable")[:count])
