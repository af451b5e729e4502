"""The data sets by name. To add one, write its reader and an entry in `DATA_SETS`; help and messages use it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from polynext.data.config import DataConfig
from polynext.data.examples import (
    ArrayExamples,
    Examples,
    FileExamples,
    FolderExamples,
    TimmExamples,
    balanced_indices,
)
from polynext.data.shards import ShardExamples, find_shards
from polynext.errors import PolyNeXtError, suggest
from polynext.extras import require

Split = Literal["train", "test"]
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("val", "validation", "test")}


@dataclass(frozen=True)
class DataSet:
    """A data set: what its root is, how a split is read, and its number of classes if that is fixed."""

    what: str
    read: Callable[[DataConfig, Split], Examples]
    classes: int | None = None
    needs_root: bool = True


def load_examples(config: DataConfig, split: Split) -> Examples:
    """The images of a split; of the training split only `limit`, if that is set."""
    data_set = find_data_set(config.name)
    if data_set.needs_root and config.root is None:
        raise PolyNeXtError(f"{config.name} needs `data.root`: give {data_set.what}.")
    examples = data_set.read(config, split)
    if config.limit and split == "train":
        if not 0 < config.limit <= len(examples):
            raise PolyNeXtError(f"`data.limit` is {config.limit}: {config.name} has {len(examples)} training images.")
        examples = examples.subset(balanced_indices(examples.labels, config.limit))
    return examples


def find_data_set(name: str) -> DataSet:
    """The entry of a name in `DATA_SETS`, or that of timm for timm:NAME."""
    if name.startswith("timm:wds/"):
        return DATA_SETS["webdataset"]
    if name.startswith("timm:"):
        return TIMM
    if name not in DATA_SETS:
        hint = suggest(name, DATA_SETS, f"choose one of {', '.join(DATA_SETS)} or timm:NAME.")
        raise PolyNeXtError(f"there is no data set {name!r}: {hint}")
    return DATA_SETS[name]


def read_digits(config: DataConfig, split: Split) -> ArrayExamples:
    """scikit-learn's 1797 handwritten digits, 8x8 grey: every fifth image of a class is for testing."""
    require("train", "sklearn")
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    test = np.zeros(len(images), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(data.target == label)[::5]] = True
    chosen = test if split == "test" else ~test
    return ArrayExamples(images[chosen], data.target[chosen], [str(i) for i in range(10)])


# Images of CIFAR-10, equally many of each class: training images for encrypted plans, test images for demos.
CIFAR10_SAMPLE = Path(__file__).parent / "cifar10_sample.npz"


def read_cifar10_sample(config: DataConfig, split: Split) -> ArrayExamples:
    return read_npz(CIFAR10_SAMPLE, split)


def or_arrays(read: Callable[[DataConfig, Split], Examples]) -> Callable[[DataConfig, Split], Examples]:
    """A data set that may also come as arrays in a .npz file."""

    def read_either(config: DataConfig, split: Split) -> Examples:
        root = config.root
        return read_npz(root, split) if root is not None and root.suffix == ".npz" else read(config, split)

    return read_either


def read_npz(path: Path, split: Split) -> ArrayExamples:
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give a .npz with train_x, train_y, test_x and test_y.")
    try:
        with path.open("rb") as file, np.load(file) as data:  # numpy alone leaves a broken file open
            images, labels = data[f"{split}_x"], data[f"{split}_y"]
            names = [str(n) for n in data["names"]] if "names" in data else None
    except (KeyError, ValueError, OSError, EOFError, BadZipFile) as error:
        raise PolyNeXtError(f"{path} cannot be used: expected a .npz with train_x, train_y, test_x, test_y.") from error
    return ArrayExamples(images, labels, names or [str(i) for i in range(int(labels.max()) + 1)])


def read_torchvision(config: DataConfig, split: Split) -> ArrayExamples:
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
            f"{config.name} is not in {config.root}: give its folder or a .npz, or train with `data.download`, which "
            "downloads it."
        ) from error


def read_folders(config: DataConfig, split: Split) -> FileExamples:
    assert config.root is not None
    if not config.root.is_dir():
        raise PolyNeXtError(f"there is no folder {config.root}: give the folder that holds train and val.")
    if split == "test" and (config.root / "val" / "val_annotations.txt").is_file():
        return tiny_imagenet_validation(config.root, config.most_memory)
    return FolderExamples(split_folder(config.root, split), config.most_memory)


def tiny_imagenet_validation(root: Path, most_memory: float) -> FileExamples:
    """Tiny ImageNet as distributed: all images in one folder, and a list of their classes."""
    classes = sorted(f.name for f in split_folder(root, "train").iterdir() if f.is_dir())
    lines = (root / "val" / "val_annotations.txt").read_text().splitlines()
    named = [line.split("\t")[:2] for line in lines if line.strip()]
    unknown = [name for _, name in named if name not in classes]
    if unknown:
        raise PolyNeXtError(f"val_annotations.txt names {unknown[0]}, which is not a folder of {root / 'train'}.")
    paths = [root / "val" / "images" / file for file, _ in named]
    return FileExamples(paths, [classes.index(name) for _, name in named], classes, most_memory)


def split_folder(root: Path, split: Split) -> Path:
    for name in SPLIT_FOLDERS[split]:
        if (root / name).is_dir():
            return root / name
    raise PolyNeXtError(
        f"{root} has no folder named {' or '.join(SPLIT_FOLDERS[split])}: expected one for the {split} images."
    )


def read_shards(config: DataConfig, split: Split) -> ShardExamples:
    assert config.root is not None
    return ShardExamples(find_shards(config.root, SPLIT_FOLDERS[split]))


def read_timm(config: DataConfig, split: Split) -> TimmExamples:
    from timm.data import create_dataset

    names = {"train": "train", "test": "validation"}
    data = create_dataset(config.name.removeprefix("timm:"), root=str(config.root or ""), split=names[split])
    if not hasattr(data, "__getitem__"):
        raise PolyNeXtError(
            f"{config.name} is a stream: give a data set with random access, or its shards as webdataset."
        )
    samples = getattr(data.reader, "samples", None)  # without opening images
    labels = [int(label) for _, label in samples] if samples else [int(data[i][1]) for i in range(len(data))]
    return TimmExamples(data, labels, [str(i) for i in range(max(labels) + 1)])


ARRAYS_OR = "a .npz with train_x, train_y, test_x, test_y, or"
FOLDERS = "a folder with train and val, each with one folder for each class"
DATA_SETS = {
    "digits": DataSet("scikit-learn's handwritten digits, 8x8 grey (no root)", read_digits, 10, needs_root=False),
    "cifar10": DataSet(f"{ARRAYS_OR} torchvision's folder", or_arrays(read_torchvision), 10),
    "cifar10-sample": DataSet("456 images in the package (no root)", read_cifar10_sample, 10, needs_root=False),
    "svhn": DataSet(f"{ARRAYS_OR} torchvision's folder", or_arrays(read_torchvision), 10),
    "tiny-imagenet": DataSet(f"{ARRAYS_OR} its folder as distributed", or_arrays(read_folders), 200),
    "imagenet": DataSet(f"{ARRAYS_OR} {FOLDERS}", or_arrays(read_folders), 1000),
    "folder": DataSet(f"{ARRAYS_OR} {FOLDERS}", or_arrays(read_folders)),
    "webdataset": DataSet("a folder of tar shards for train and val", read_shards),
}
TIMM = DataSet("anything that timm's create_dataset reads", read_timm, needs_root=False)
