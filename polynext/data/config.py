"""The data set of a run, and the augmentation of its images."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from polynext.preprocessing import Preprocessing
from polynext.schema import Config, NonNegative, NonNegativeInt, Share, ShareBelowOne


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """A data set and how it is read.

    Attributes:
        name: a data set of `polynext.data.sets`, or timm:NAME for any that timm's create_dataset reads.
        root: folder of the data, or a .npz with train_x, train_y, test_x, test_y; not needed for digits and drawings.
        download: download cifar10, mnist or svhn to root if they are missing.
        preprocessing: how an image becomes the network's input.
        workers: worker processes that prepare images, at most one for each core; 0 for none.
        most_memory: keep decoded images in memory if they take at most this many gigabytes.
        limit: number of training images to use, balanced over the classes; 0 for all.
        validation: number of training images, balanced over the classes, that select the best weights instead of the
            test images, and are not trained on; 0 for none.
    """

    name: str = "digits"
    root: Path | None = None
    download: bool = False
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    workers: NonNegativeInt = 0
    most_memory: NonNegative = 4.0
    limit: NonNegativeInt = 0
    validation: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """The augmentation of training images.

    Attributes:
        crop: "resized" for a random resized crop, "shift" for a shift by up to an eighth of the side (at least one
            pixel), "none" for neither.
        rotation: largest rotation, in degrees; like `scaling` and `line_width` not for resized crops.
        scaling: largest relative change of width and height, each on its own.
        line_width: largest change of the thickness of bright lines on black, as a share of two pixels.
        crop_scale: smallest area of a resized crop, as a share of the image.
        interpolation: interpolation of a resized crop: bicubic, bilinear, or random for one of the two.
        hflip: probability of a horizontal flip.
        rand_augment: timm's name of a RandAugment policy; empty for none.
        rand_augment_as: "authors" fills with grey (128) and resamples bilinearly or bicubically at random, as the
            paper's training scripts do; "timm" fills with the mean colour and resamples as the crop does.
        erasing: probability of erasing a random rectangle with random pixels.
        mixup: alpha of Mixup; 0 for none.
        cutmix: alpha of CutMix; 0 for none. With both, each batch gets one of the two at even odds.
        label_smoothing: share of a label's weight that is spread over all classes.
    """

    crop: Literal["resized", "shift", "none"] = "resized"
    rotation: NonNegative = 0.0
    scaling: ShareBelowOne = 0.0
    line_width: Share = 0.0
    crop_scale: Share = 0.08
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    hflip: Share = 0.5
    rand_augment: str = "rand-m9-mstd0.5-inc1"
    rand_augment_as: Literal["authors", "timm"] = "authors"
    erasing: Share = 0.25
    mixup: NonNegative = 0.8
    cutmix: NonNegative = 1.0
    label_smoothing: Share = 0.1
