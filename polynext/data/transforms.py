"""From a PIL image to what the network gets, for training and for evaluation."""

import random
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import create_transform
from torch import Tensor

from polynext.data.config import AugmentConfig, DataConfig

Transform = Callable[[Image.Image], Tensor]


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Grey or RGB, whichever the network takes."""
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


class Plain:
    """Resize the shorter edge, crop the centre, normalise: nothing random."""

    def __init__(self, data: DataConfig):
        self.resize, self.crop, self.channels = data.evaluation_resize, data.image_size, len(data.mean)
        self.interpolation = Image.Resampling[data.evaluation_interpolation.upper()]
        self.normalise = Normalise(data)

    def __call__(self, image: Image.Image) -> Tensor:
        image = to_channels(image, self.channels)
        if min(image.size) != self.resize:
            factor = self.resize / min(image.size)
            size = (max(self.resize, round(image.width * factor)), max(self.resize, round(image.height * factor)))
            image = image.resize(size, self.interpolation)
        left, top = round((image.width - self.crop) / 2), round((image.height - self.crop) / 2)
        if image.size != (self.crop, self.crop):
            image = image.crop((left, top, left + self.crop, top + self.crop))
        return self.normalise(image)


class Shift:
    """Resize, and move by up to an eighth of the side (at least one pixel) if asked: for small images."""

    def __init__(self, data: DataConfig, augment: AugmentConfig):
        self.size, self.channels = data.image_size, len(data.mean)
        self.reach = max(1, data.image_size // 8) if augment.crop == "shift" else 0
        self.interpolation = Image.Resampling[data.evaluation_interpolation.upper()]

    def __call__(self, image: Image.Image) -> Image.Image:
        image = to_channels(image, self.channels)
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), self.interpolation)
        if self.reach:
            dx, dy = random.randint(-self.reach, self.reach), random.randint(-self.reach, self.reach)
            image = image.transform(image.size, Image.Transform.AFFINE, (1, 0, dx, 0, 1, dy))
        return image


class Light:
    """Shift, mirror, normalise."""

    def __init__(self, data: DataConfig, augment: AugmentConfig):
        self.shift, self.hflip, self.normalise = Shift(data, augment), augment.hflip, Normalise(data)

    def __call__(self, image: Image.Image) -> Tensor:
        image = self.shift(image)
        return self.normalise(ImageOps.mirror(image) if random.random() < self.hflip else image)


class Normalise:
    """Pixel values to (value - mean) / std, channels first."""

    def __init__(self, data: DataConfig):
        self.mean = np.asarray(data.mean, dtype=np.float32) * 255
        self.scale = 1 / (np.asarray(data.std, dtype=np.float32) * 255)

    def __call__(self, image: Image.Image) -> Tensor:
        values = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1)
        return torch.from_numpy(np.ascontiguousarray(((values - self.mean) * self.scale).transpose(2, 0, 1)))


def evaluation_transform(data: DataConfig) -> Transform:
    return Plain(data)


def training_transform(data: DataConfig, augment: AugmentConfig) -> Transform:
    """The recipe's transform: timm's where it has the operation, our light ones for tiny images."""
    resized = augment.crop == "resized"
    if not resized and not augment.rand_augment and not augment.erasing:
        return Light(data, augment)
    transform = create_transform(
        (len(data.mean), data.image_size, data.image_size),
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
        mean=data.mean,
        std=data.std,
    )
    if resized:
        return lambda image: transform(to_channels(image, len(data.mean)))
    shift = Shift(data, augment)
    return lambda image: transform(shift(image))
