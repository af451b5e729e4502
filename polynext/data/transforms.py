"""From a PIL image to what the network gets in training. Evaluation does just what `Preprocessing` says."""

import random
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageOps
from timm.data import auto_augment, create_transform
from torchvision.transforms import Compose

from polynext.data.config import AugmentConfig
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Pixels, Preprocessing

Transform = Callable[[Image.Image], Any]  # to (C, H, W), of numpy or torch


class Shift:
    """Resize, and move by up to an eighth of the side (at least one pixel) if asked: for small images."""

    def __init__(self, preprocessing: Preprocessing, augment: AugmentConfig):
        self.preprocessing = preprocessing
        self.size = (preprocessing.size, preprocessing.size)
        self.reach = max(1, preprocessing.size // 8) if augment.crop == "shift" else 0

    def __call__(self, image: Image.Image) -> Image.Image:
        image = self.preprocessing.coloured(image)
        if image.size != self.size:
            image = image.resize(self.size, self.preprocessing.resampling)
        if self.reach:
            dx, dy = random.randint(-self.reach, self.reach), random.randint(-self.reach, self.reach)
            image = image.transform(image.size, Image.Transform.AFFINE, (1, 0, dx, 0, 1, dy))
        return image


class Light:
    """Shift, mirror, normalise."""

    def __init__(self, preprocessing: Preprocessing, augment: AugmentConfig):
        self.shift, self.hflip, self.normalise = Shift(preprocessing, augment), augment.hflip, preprocessing.normalise

    def __call__(self, image: Image.Image) -> Pixels:
        image = self.shift(image)
        return self.normalise(ImageOps.mirror(image) if random.random() < self.hflip else image)


def training_transform(preprocessing: Preprocessing, augment: AugmentConfig) -> Transform:
    """The recipe's transform: timm's where it has the operation, our light ones for tiny images."""
    resized = augment.crop == "resized"
    if not resized and not augment.rand_augment and not augment.erasing:
        return Light(preprocessing, augment)
    try:
        transform = create_transform(
            preprocessing.input_size,
            is_training=True,
            scale=(augment.crop_scale, 1.0) if resized else (1.0, 1.0),
            ratio=(3 / 4, 4 / 3) if resized else (1.0, 1.0),
            train_crop_mode="rrc",
            interpolation=augment.interpolation,
            hflip=augment.hflip,
            color_jitter=None,
            auto_augment=augment.rand_augment or None,
            re_prob=augment.erasing,
            re_mode="pixel",
            mean=preprocessing.mean,
            std=preprocessing.std,
        )
    except AssertionError as error:
        raise PolyNeXtError(
            f"timm has no policy {augment.rand_augment!r}: give `augment.rand_augment` one as rand-m9-mstd0.5-inc1."
        ) from error
    parts = [
        auto_augment.RandAugment([Operation(op) for op in part.ops], part.num_layers, part.choice_weights)
        if isinstance(part, auto_augment.RandAugment)
        else part
        for part in transform.transforms
    ]
    return Compose([preprocessing.coloured if resized else Shift(preprocessing, augment), *parts])


class Operation(auto_augment.AugmentOp):
    """timm's operation, but for posterizing to no bits at all, which RandAugment may ask for: black, as in older
    Pillows, where newer ones refuse."""

    aug_fn: Any

    def __init__(self, operation: auto_augment.AugmentOp):
        super().__init__(operation.name, operation.prob, operation.magnitude, operation.hparams)
        if self.aug_fn is auto_augment.posterize:
            self.aug_fn = posterize


def posterize(image: Image.Image, bits_to_keep: int, **options: Any) -> Image.Image:
    if bits_to_keep < 1:
        return Image.new(image.mode, image.size)
    return auto_augment.posterize(image, bits_to_keep, **options)
