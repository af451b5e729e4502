"""Labelled images in arrays, in files, or in a data set of timm."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from polynext.errors import PolyNeXtError
from polynext.files import reading
from polynext.preprocessing import IMAGE_SUFFIXES, as_rgb, open_picture, opened, upright

MOST_CLASSES = 1_000_000


class Examples(ABC):
    """Labelled images: `examples[i]` is a PIL image and its class. Without names, classes are numbered.

    `named` is False if the classes are unknown, as those of a .npz file without `names`.
    """

    def __init__(self, labels: Sequence[int] | np.ndarray, classes: Sequence[str] | None = None):
        given = np.asarray(labels)
        if given.size == 0:
            raise PolyNeXtError("the data set has no images: check its folder.")
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise PolyNeXtError(
                f"the data set has labels {given.dtype} {given.shape}: expected one integer for each image."
            )
        lowest, highest = int(given.min()), int(given.max())
        number = min(highest + 1, MOST_CLASSES) if classes is None else len(classes)
        if lowest < 0 or highest >= number:
            raise PolyNeXtError(
                f"the data set has labels from {lowest} to {highest} but {number} classes: expected 0 to {number - 1}."
            )
        self.labels = given.astype(np.int64)
        self.named = classes is not None
        self.classes = [str(i) for i in range(number)] if classes is None else list(classes)

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
        self.named = examples.named
        self.examples, self.indices = examples, indices

    def image(self, index: int) -> Image.Image:
        return self.examples.image(int(self.indices[index]))


class Concatenated(Examples):
    """Several sets of examples of the same classes, one after the other."""

    def __init__(self, parts: Sequence[Examples]):
        super().__init__(np.concatenate([part.labels for part in parts]), parts[0].classes)
        self.named = parts[0].named
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part) for part in parts[:-1])])

    def image(self, index: int) -> Image.Image:
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[part].image(index - int(self.starts[part]))


class ArrayExamples(Examples):
    """Images in one uint8 array, (N, H, W) or (N, H, W, 3)."""

    def __init__(self, images: np.ndarray, labels: Sequence[int] | np.ndarray, classes: Sequence[str] | None = None):
        super().__init__(labels, classes)
        fits = images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)
        if not fits or len(images) != len(self.labels) or images.dtype != np.uint8 or not images.size:
            raise PolyNeXtError(
                f"got images {images.dtype} {images.shape} for {len(self.labels)} labels: "
                "expected uint8 of shape (N, H, W) or (N, H, W, 3)."
            )
        self.images = images

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])


class FileExamples(Examples):
    """Image files. If all of them, decoded, take at most `most_memory` gigabytes, they are decoded once and shared."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], classes: Sequence[str], most_memory: float = 0.0):
        super().__init__(labels, classes)
        # One array is shared by forked workers; a list would be copied to each, as its reference counts change.
        self.names = np.array([os.fsencode(path) for path in paths])
        self.decoded: list[Image.Image] = []
        if decoded_size(paths) <= most_memory * 2**30:
            with ThreadPoolExecutor() as pool:
                self.decoded = list(pool.map(open_picture, paths))

    def path(self, index: int) -> Path:
        return Path(os.fsdecode(self.names[index]))

    def image(self, index: int) -> Image.Image:
        return self.decoded[index] if self.decoded else open_picture(self.path(index))


class FolderExamples(FileExamples):
    """A folder with one folder for each class."""

    def __init__(self, root: Path, most_memory: float = 0.0):
        classes = sorted(f.name for f in root.iterdir() if f.is_dir())
        images = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not images:
            raise PolyNeXtError(f"{root} has no images: expected one folder of images for each class.")
        used = {label for _, label in images}
        empty = [name for label, name in enumerate(classes) if label not in used]
        if empty:
            raise PolyNeXtError(f"{root} has classes without images: {', '.join(empty[:5])}.")
        super().__init__([path for path, _ in images], [label for _, label in images], classes, most_memory)


class TimmExamples(Examples):
    """Any data set with a length that timm's create_dataset reads."""

    def __init__(self, dataset: Sequence[tuple[Image.Image, int]], labels: Sequence[int]):
        super().__init__(labels)
        self.dataset = dataset

    def image(self, index: int) -> Image.Image:
        with reading(f"image {index} of timm's data set cannot be read: repair or remove it."):
            return as_rgb(upright(self.dataset[index][0]), f"image {index}")


def decoded_size(paths: Sequence[Path], sample: int = 64) -> float:
    """Bytes of all images once decoded, estimated from the headers of some."""
    some = paths[:: max(1, len(paths) // sample)]
    total = 0
    for path in some:
        with reading(f"{path} cannot be read as an image: repair or remove it."), opened(path) as file:
            total += 3 * file.width * file.height
    return total * len(paths) / len(some)


def balanced_indices(labels: np.ndarray, count: int) -> np.ndarray:
    """`count` indices with equal numbers of each class as far as possible, in the order of the data set."""
    rank = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        rank[of_class] = np.arange(len(of_class))
    return np.sort(np.argsort(rank, kind="stable")[:count])


def balanced_sample(labels: np.ndarray, count: int) -> np.ndarray:
    """`balanced_indices` of a random order, always the same: from all parts of the data set."""
    order = np.random.default_rng(0).permutation(len(labels))
    return np.sort(order[balanced_indices(labels[order], count)])
