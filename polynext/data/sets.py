"""The data sets by name. To add one, write its reader and an entry in `DATA_SETS`; help and messages use it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from polynext.data.config import DataConfig
from polynext.data.drawings import DrawnExamples
from polynext.data.examples import (
    ArrayExamples,
    Concatenated,
    Examples,
    FileExamples,
    FolderExamples,
    TimmExamples,
    balanced_indices,
    balanced_sample,
)
from polynext.data.shards import ShardExamples, find_shards
from polynext.errors import PolyNeXtError, suggest
from polynext.extras import require
from polynext.files import reading

Split = Literal["train", "validation", "test"]
FileSplit = Literal["train", "test"]  # as data sets have them
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("val", "validation", "test")}


@dataclass(frozen=True)
class DataSet:
    """A data set: what its root is, how a split is read, and its number of classes if that is fixed."""

    what: str
    read: Callable[[DataConfig, FileSplit], Examples]
    classes: int | None = None
    needs_root: bool = True


def load_examples(config: DataConfig, split: Split) -> Examples:
    """The images of a split. The validation images are a part of the training split, which then excludes them; of the
    rest `limit` images are used, if that is set."""
    data_set = find_data_set(config.name)
    if data_set.needs_root and config.root is None:
        raise PolyNeXtError(f"{config.name} needs `data.root`: give {data_set.what}.")
    if split == "test":
        return data_set.read(config, "test")
    examples = data_set.read(config, "train")
    held_out = balanced_sample(examples.labels, config.validation)
    if split == "validation":
        return examples.subset(held_out)
    if not config.limit + config.validation <= len(examples) or config.validation == len(examples):
        raise PolyNeXtError(
            f"`data.limit` is {config.limit} and `data.validation` {config.validation}: {config.name} has "
            f"{len(examples)} training images."
        )
    if config.validation:
        examples = examples.subset(np.setdiff1d(np.arange(len(examples)), held_out))
    return examples.subset(balanced_indices(examples.labels, config.limit)) if config.limit else examples


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


def read_digits(config: DataConfig, split: FileSplit) -> ArrayExamples:
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
# The same of MNIST and of drawings.
MNIST_SAMPLE = Path(__file__).parent / "mnist_sample.npz"


def read_cifar10_sample(config: DataConfig, split: FileSplit) -> ArrayExamples:
    return read_npz(CIFAR10_SAMPLE, split)


def read_mnist_sample(config: DataConfig, split: FileSplit) -> ArrayExamples:
    return read_npz(MNIST_SAMPLE, split)


DRAWINGS = {"train": 30_000, "test": 2_000}


def read_drawings(config: DataConfig, split: FileSplit) -> DrawnExamples:
    return DrawnExamples(DRAWINGS[split], seed=list(DRAWINGS).index(split))


def read_mnist_and_drawings(config: DataConfig, split: FileSplit) -> Examples:
    """MNIST, with drawings among the training images."""
    mnist = or_arrays(read_torchvision)(config, split)
    return mnist if split == "test" else Concatenated([mnist, read_drawings(config, split)])


def or_arrays(read: Callable[[DataConfig, FileSplit], Examples]) -> Callable[[DataConfig, FileSplit], Examples]:
    """A data set that may also come as arrays in a .npz file."""

    def read_either(config: DataConfig, split: FileSplit) -> Examples:
        root = config.root
        return read_npz(root, split) if root is not None and root.suffix == ".npz" else read(config, split)

    return read_either


def read_npz(path: Path, split: FileSplit) -> ArrayExamples:
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give a .npz with train_x, train_y, test_x and test_y.")
    with (
        reading(f"{path} cannot be used: expected a .npz with train_x, train_y, test_x, test_y."),
        path.open("rb") as file,  # numpy alone leaves a broken file open
        np.load(file) as data,
    ):
        images, labels = data[f"{split}_x"], data[f"{split}_y"]
        names = [str(name) for name in data["names"]] if "names" in data else None
    return ArrayExamples(images, labels, names)


def read_torchvision(config: DataConfig, split: FileSplit) -> ArrayExamples:
    from torchvision.datasets import CIFAR10, MNIST, SVHN

    assert config.root is not None
    try:
        if config.name == "cifar10":
            data = CIFAR10(config.root, train=split == "train", download=config.download)
            return ArrayExamples(data.data, data.targets, data.classes)
        if config.name.startswith("mnist"):
            mnist = MNIST(config.root, train=split == "train", download=config.download)
            return ArrayExamples(mnist.data.numpy(), mnist.targets.numpy(), list("0123456789"))
        svhn = SVHN(config.root, split=split, download=config.download)
        return ArrayExamples(np.ascontiguousarray(svhn.data.transpose(0, 2, 3, 1)), svhn.labels, list("0123456789"))
    except RuntimeError as error:
        raise PolyNeXtError(
            f"{config.name} is not in {config.root}: give its folder or a .npz, or train with `data.download`, which "
            "downloads it."
        ) from error


def read_folders(config: DataConfig, split: FileSplit) -> Examples:
    assert config.root is not None
    if not config.root.is_dir():
        raise PolyNeXtError(f"there is no folder {config.root}: give the folder that holds train and val.")
    if not any((config.root / name).is_dir() for names in SPLIT_FOLDERS.values() for name in names):
        return split_classes(FolderExamples(config.root, config.most_memory), split)
    if split == "test" and (config.root / "val" / "val_annotations.txt").is_file():
        return tiny_imagenet_validation(config.root, config.most_memory)
    return FolderExamples(split_folder(config.root, split), config.most_memory)


def split_classes(examples: FolderExamples, split: FileSplit) -> Examples:
    """Every fifth image of a class is for testing."""
    test = np.concatenate([np.flatnonzero(examples.labels == c)[4::5] for c in range(len(examples.classes))])
    return examples.subset(np.sort(test) if split == "test" else np.setdiff1d(np.arange(len(examples)), test))


def tiny_imagenet_validation(root: Path, most_memory: float) -> FileExamples:
    """Tiny ImageNet as distributed: all images in one folder, and a list of their classes."""
    classes = sorted(f.name for f in split_folder(root, "train").iterdir() if f.is_dir())
    annotations = root / "val" / "val_annotations.txt"
    with reading(f"{annotations} cannot be read: expected lines of a file name, a tab and a class."):
        named = [(line.split("\t")[0], line.split("\t")[1]) for line in annotations.read_text().splitlines() if line]
    unknown = [name for _, name in named if name not in classes]
    if unknown:
        raise PolyNeXtError(f"val_annotations.txt names {unknown[0]}, which is not a folder of {root / 'train'}.")
    paths = [root / "val" / "images" / file for file, _ in named]
    return FileExamples(paths, [classes.index(name) for _, name in named], classes, most_memory)


def split_folder(root: Path, split: FileSplit) -> Path:
    for name in SPLIT_FOLDERS[split]:
        if (root / name).is_dir():
            return root / name
    raise PolyNeXtError(
        f"{root} has no folder named {' or '.join(SPLIT_FOLDERS[split])}: expected one for the {split} images."
    )


def read_shards(config: DataConfig, split: FileSplit) -> ShardExamples:
    assert config.root is not None
    return ShardExamples(find_shards(config.root, SPLIT_FOLDERS[split]))


def read_timm(config: DataConfig, split: FileSplit) -> TimmExamples:
    from timm.data import create_dataset

    names = {"train": "train", "test": "validation"}
    root, chosen = str(config.root or ""), config.name.removeprefix("timm:")
    with reading(f"timm cannot read {config.name} with the root {root or 'none'}: check both."):
        # `TimmExamples` converts the images
        data = create_dataset(chosen, root=root, split=names[split], input_img_mode="")
    if not hasattr(data, "__getitem__"):
        raise PolyNeXtError(
            f"{config.name} is a stream: give a data set with random access, or its shards as webdataset."
        )
    samples = getattr(data.reader, "samples", None)  # without opening images
    labels = [int(label) for _, label in samples] if samples else [int(data[i][1]) for i in range(len(data))]
    return TimmExamples(data, labels)


ARRAYS_OR = "a .npz with train_x, train_y, test_x, test_y, or"
FOLDERS = "a folder with one folder for each class, or with train and val that have such folders"
DATA_SETS = {
    "digits": DataSet("scikit-learn's handwritten digits, 8x8 grey (no root)", read_digits, 10, needs_root=False),
    "cifar10": DataSet(f"{ARRAYS_OR} torchvision's folder", or_arrays(read_torchvision), 10),
    "cifar10-sample": DataSet("456 images in the package (no root)", read_cifar10_sample, 10, needs_root=False),
    "mnist": DataSet(f"{ARRAYS_OR} torchvision's folder", or_arrays(read_torchvision), 10),
    "drawings": DataSet("random digits drawn with strokes (no root)", read_drawings, 10, needs_root=False),
    "mnist-drawings": DataSet(f"mnist with drawings: {ARRAYS_OR} torchvision's folder", read_mnist_and_drawings, 10),
    "mnist-drawings-sample": DataSet("356 images in the package (no root)", read_mnist_sample, 10, needs_root=False),
    "svhn": DataSet(f"{ARRAYS_OR} torchvision's folder", or_arrays(read_torchvision), 10),
    "tiny-imagenet": DataSet(f"{ARRAYS_OR} its folder as distributed", or_arrays(read_folders), 200),
    "imagenet": DataSet(f"{ARRAYS_OR} {FOLDERS}", or_arrays(read_folders), 1000),
    "folder": DataSet(f"{ARRAYS_OR} {FOLDERS}", or_arrays(read_folders)),
    "webdataset": DataSet("a folder of tar shards for train and val", read_shards),
}
TIMM = DataSet("anything that timm's create_dataset reads", read_timm, needs_root=False)
