"""What to train on, and how its images are varied."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from polynext.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A data set and how it is read.

    Attributes:
        name: of the data set; `polynext.data.sets` lists them, timm:NAME is anything that timm's create_dataset reads.
        root: folder of the data, or a .npz with train_x, train_y, test_x, test_y; not needed for digits.
        download: fetch cifar10 or svhn into root if they are not there.
        preprocessing: how an image becomes what the network takes.
        workers: processes that prepare images beside the one that trains, at most one for each core; 0 for none.
        most_memory: gigabytes up to which decoded images are kept, so that none is decoded twice.
        limit: use this many training images only, the same number of each class as far as that goes; 0 for all.
    """

    name: str = "digits"
    root: Path | None = None
    download: bool = False
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    workers: int = 0
    most_memory: float = 4.0
    limit: int = 0


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How training images are varied.

    Attributes:
        crop: "resized" is a random resized crop, "shift" moves by up to an eighth of the side (at least one pixel),
            "none" leaves images where they are.
        crop_scale: share of the area a resized crop keeps at least.
        interpolation: of a resized crop: bicubic, bilinear, or one of the two at random.
        hflip: probability of a mirrored image.
        rand_augment: timm's name of a RandAugment policy; empty for none.
        erasing: probability of erasing a random rectangle with random pixels.
        mixup: alpha of Mixup, 0 for none.
        cutmix: alpha of CutMix, 0 for none. With both, each batch gets one of the two, at even odds.
        label_smoothing: share of a label's weight spread over all classes.
    """

    crop: Literal["resized", "shift", "none"] = "resized"
    crop_scale: float = 0.08
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    hflip: float = 0.5
    rand_augment: str = "rand-m9-mstd0.5-inc1"
    erasing: float = 0.25
    mixup: float = 0.8
    cutmix: float = 1.0
    label_smoothing: float = 0.1
