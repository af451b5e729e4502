"""Images with a label for each pixel."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from PIL import Image, UnidentifiedImageError

from polynext.errors import PolyNeXtError
from polynext.preprocessing import IMAGE_SUFFIXES, read_image
from polynext.segmentation.classes import ADE20K, CAMVID
from polynext.segmentation.config import SegmentationDataConfig

IGNORED = 255
Split = Literal["train", "val"]


class Pairs(ABC):
    """Images and masks of labels from 0 to the number of classes; IGNORED where a pixel does not count."""

    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str: ...

    @abstractmethod
    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        """The image in RGB and the mask as it is stored."""

    def relabel(self, stored: np.ndarray) -> np.ndarray:
        """Stored labels to ours, and to -1 where a pixel does not count."""
        return np.where(stored == IGNORED, -1, stored)

    def __getitem__(self, index: int) -> tuple[Image.Image, np.ndarray]:
        image, stored = self.read(index)
        where = self.name(index)
        if stored.ndim != 2:
            raise PolyNeXtError(f"{where} has a mask with colours: expected one label for each pixel, not RGB.")
        if stored.shape != (image.height, image.width):
            sizes = f"{image.width}x{image.height} and a mask of {stored.shape[1]}x{stored.shape[0]}"
            raise PolyNeXtError(f"{where} has an image of {sizes} pixels: they must be the same.")
        mask = self.relabel(stored.astype(np.int64))
        wrong = stored[(mask < -1) | (mask >= len(self.classes))]
        if wrong.size:
            raise PolyNeXtError(f"{where} has the label {int(wrong[0])}, of none of the {len(self.classes)} classes.")
        return image, np.where(mask < 0, IGNORED, mask).astype(np.uint8)


class FilePairs(Pairs):
    """An image file and a mask file of the same name for each."""

    def __init__(self, images: Path, masks: Path, classes: tuple[str, ...], prefix: str = ""):
        for folder in (images, masks):
            if not folder.is_dir():
                raise PolyNeXtError(f"there is no folder {folder}: expected images and masks of the same names.")
        self.classes = classes
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
        try:
            with Image.open(mask) as file:
                return read_image(image), np.array(file)
        except (UnidentifiedImageError, OSError) as error:
            raise PolyNeXtError(f"{mask} cannot be read as an image: repair or remove it.") from error


class AdePairs(FilePairs):
    """ADE20K's 150 classes: stored from 1 on, 0 being anything else, which does not count."""

    def relabel(self, stored: np.ndarray) -> np.ndarray:
        return stored - 1


class CamvidFiles(FilePairs):
    """CamVid in SegNet's layout: the label after the last class is void."""

    def relabel(self, stored: np.ndarray) -> np.ndarray:
        return void_last(stored, len(self.classes))


class ArrayPairs(Pairs):
    """Images and masks in arrays; the label after the last class is void."""

    def __init__(self, images: np.ndarray, masks: np.ndarray, classes: tuple[str, ...], source: str):
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(masks):
            raise PolyNeXtError(
                f"{source} has images {images.dtype} {images.shape} for {len(masks)} masks: "
                "expected uint8 (N, H, W, 3) and a mask for each."
            )
        self.images, self.masks, self.classes, self.source = images, masks, classes, source

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"{self.source}, number {index},"

    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        return Image.fromarray(self.images[index]), self.masks[index]

    def relabel(self, stored: np.ndarray) -> np.ndarray:
        return void_last(stored, len(self.classes))


def void_last(stored: np.ndarray, classes: int) -> np.ndarray:
    return np.where(stored == classes, -1, stored)


def class_names(config: SegmentationDataConfig) -> tuple[str, ...]:
    if config.name == "folder":
        return folder_classes(existing_root(config))
    return {"ade20k": ADE20K, "camvid": CAMVID}[config.name]


def existing_root(config: SegmentationDataConfig) -> Path:
    if config.root is None or not config.root.exists():
        raise PolyNeXtError(f"there is no {config.name} at {config.root}: give its folder as the data's root.")
    return config.root


def load_pairs(config: SegmentationDataConfig, split: Split) -> Pairs:
    root = existing_root(config)
    if config.name == "ade20k":
        return load_ade20k(root, split)
    if config.name == "camvid":
        if root.suffix == ".npz":
            return load_camvid_arrays(root, split)
        return CamvidFiles(root / split, root / f"{split}annot", CAMVID)
    return FilePairs(root / "images" / split, root / "masks" / split, folder_classes(root))


def load_ade20k(root: Path, split: Split) -> Pairs:
    """`images/training` and so on, or all in one folder, where the names tell."""
    folder, prefix = {"train": ("training", "ADE_train_"), "val": ("validation", "ADE_val_")}[split]
    if (root / "images" / folder).is_dir():
        return AdePairs(root / "images" / folder, root / "annotations" / folder, ADE20K)
    return AdePairs(root / "images", root / "annotations", ADE20K, prefix)


def load_camvid_arrays(path: Path, split: Split) -> Pairs:
    try:
        with path.open("rb") as file, np.load(file) as data:  # numpy would leave a broken file open
            images, masks = data[f"{split}_x"], data[f"{split}_y"]
    except (KeyError, ValueError, OSError, EOFError, BadZipFile) as error:
        raise PolyNeXtError(f"{path} cannot be used: expected an .npz with train_x, train_y, val_x, val_y.") from error
    return ArrayPairs(images, masks, CAMVID, str(path))


def folder_classes(root: Path) -> tuple[str, ...]:
    file = root / "classes.txt"
    if not file.is_file():
        raise PolyNeXtError(f"{root} has no classes.txt: write the name of each class there, a line each, from 0 on.")
    names = tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    if not 0 < len(names) <= IGNORED:
        raise PolyNeXtError(f"{file} names {len(names)} classes: expected 1 to {IGNORED}, a line each.")
    return names
