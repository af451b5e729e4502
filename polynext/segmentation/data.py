"""Images with a label for each pixel."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from polynext.errors import PolyNeXtError
from polynext.files import reading
from polynext.preprocessing import IMAGE_SUFFIXES, open_picture, opened, upright
from polynext.segmentation.classes import ADE20K, CAMVID
from polynext.segmentation.config import SegmentationDataConfig

IGNORED = 255
Split = Literal["train", "val"]


class Pairs(ABC):
    """Images, and masks with a label from 0 on for each pixel; IGNORED pixels do not count.

    Args:
        classes: the names of the labels.
        void: the stored label of ignored pixels.
        first: the stored label of the first class.
    """

    def __init__(self, classes: tuple[str, ...], void: int = IGNORED, first: int = 0):
        self.classes, self.void, self.first = classes, void, first

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str: ...

    @abstractmethod
    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        """The image in RGB and the mask with its stored labels."""

    def __getitem__(self, index: int) -> tuple[Image.Image, np.ndarray]:
        image, stored = self.read(index)
        where = self.name(index)
        if stored.ndim != 2 or stored.dtype.kind not in "iub":
            raise PolyNeXtError(f"{where} is a mask with colours: give one integer for each pixel instead of RGB.")
        if stored.shape != (image.height, image.width):
            sizes = f"{stored.shape[1]}x{stored.shape[0]} pixels and its image {image.width}x{image.height}"
            raise PolyNeXtError(f"{where} has {sizes}: they must be the same.")
        mask = np.where(stored == self.void, -1, stored.astype(np.int64) - self.first)
        wrong = stored[(mask < -1) | (mask >= len(self.classes))]
        if wrong.size:
            raise PolyNeXtError(f"{where} has the label {int(wrong[0])}, but there are {len(self.classes)} classes.")
        return image, np.where(mask < 0, IGNORED, mask).astype(np.uint8)


class FilePairs(Pairs):
    """Image files, and mask files of the same names."""

    def __init__(self, images: Path, masks: Path, classes: tuple[str, ...], prefix: str = "", **labels: int):
        super().__init__(classes, **labels)
        for folder in (images, masks):
            if not folder.is_dir():
                raise PolyNeXtError(
                    f"there is no folder {folder}: give folders with images and masks of the same names."
                )
        files = sorted(f for f in images.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES and f.name.startswith(prefix))
        if not files:
            raise PolyNeXtError(f"{images} has no images{f' named {prefix}...' if prefix else ''}: check the folder.")
        named = {f.stem: f for f in masks.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES}
        missing = [f for f in files if f.stem not in named]
        if missing:
            raise PolyNeXtError(f"{missing[0]} has no mask in {masks}: expected {missing[0].stem}.png there.")
        self.files = [(f, named[f.stem]) for f in files]

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return str(self.files[index][1])

    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        image, mask = self.files[index]
        with reading(f"{mask} cannot be read as an image: repair or remove it."), opened(mask) as file:
            labels = np.array(upright(file))
        return open_picture(image), labels


class ArrayPairs(Pairs):
    """Images and masks in arrays."""

    def __init__(self, images: np.ndarray, masks: np.ndarray, classes: tuple[str, ...], source: str, **labels: int):
        super().__init__(classes, **labels)
        fits = images.ndim == 4 and images.shape[3] == 3 and images.shape[:3] == masks.shape and images.size
        if not fits or images.dtype != np.uint8 or masks.dtype.kind not in "iu":
            raise PolyNeXtError(
                f"{source} has images {images.dtype} {images.shape} and masks {masks.dtype} {masks.shape}: "
                "expected uint8 (N, H, W, 3) and integers (N, H, W)."
            )
        self.images, self.masks, self.source = images, masks, source

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"{self.source}, mask {index},"

    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        return Image.fromarray(self.images[index]), self.masks[index]


def class_names(config: SegmentationDataConfig) -> tuple[str, ...]:
    if config.name == "folder":
        return folder_classes(existing_root(config))
    return {"ade20k": ADE20K, "camvid": CAMVID}[config.name]


def existing_root(config: SegmentationDataConfig) -> Path:
    if config.root is None or not config.root.exists():
        raise PolyNeXtError(f"there is no {config.name} at {config.root}: give its folder as `data.root`.")
    return config.root


def load_pairs(config: SegmentationDataConfig, split: Split) -> Pairs:
    root = existing_root(config)
    if config.name == "ade20k":
        return load_ade20k(root, split)
    if config.name == "camvid":
        if root.suffix == ".npz":
            return load_camvid_arrays(root, split)
        return FilePairs(root / split, root / f"{split}annot", CAMVID, void=len(CAMVID))
    return FilePairs(root / "images" / split, root / "masks" / split, folder_classes(root))


def load_ade20k(root: Path, split: Split) -> Pairs:
    """From `images/training` and so on, or from one folder with a prefix for each split. Labels start at 1."""
    folder, prefix = {"train": ("training", "ADE_train_"), "val": ("validation", "ADE_val_")}[split]
    if (root / "images" / folder).is_dir():
        return FilePairs(root / "images" / folder, root / "annotations" / folder, ADE20K, void=0, first=1)
    return FilePairs(root / "images", root / "annotations", ADE20K, prefix, void=0, first=1)


def load_camvid_arrays(path: Path, split: Split) -> Pairs:
    with (
        reading(f"{path} cannot be read: give an .npz file with train_x, train_y, val_x and val_y."),
        path.open("rb") as file,  # numpy leaves a broken file open
        np.load(file) as data,
    ):
        images, masks = data[f"{split}_x"], data[f"{split}_y"]
    return ArrayPairs(images, masks, CAMVID, str(path), void=len(CAMVID))


def folder_classes(root: Path) -> tuple[str, ...]:
    file = root / "classes.txt"
    if not file.is_file():
        raise PolyNeXtError(f"{root} has no classes.txt: write one class name on each line, from label 0 on.")
    with reading(f"{file} cannot be read: write one class name on each line, in UTF-8."):
        names = tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    if not 0 < len(names) <= IGNORED:
        raise PolyNeXtError(f"{file} has {len(names)} classes: give 1 to {IGNORED}, one on each line.")
    return names
