"""From a PIL image to the input of the network in training. In evaluation that is `Preprocessing`."""

import math
import random
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageFilter, ImageOps
from timm.data import auto_augment, create_transform
from torchvision.transforms import Compose

from polynext.data.config import AugmentConfig
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Pixels, Preprocessing

GREY = 128

Transform = Callable[[Image.Image], Any]  # to (C, H, W), numpy or torch


class Warp:
    """Resizes, then shifts, rotates, stretches and thickens as the augmentation says.

    The crop "shift" moves an image by up to an eighth of its side, at least one pixel.
    """

    def __init__(self, preprocessing: Preprocessing, augment: AugmentConfig):
        self.preprocessing, self.augment = preprocessing, augment
        self.size = (preprocessing.size, preprocessing.size)
        self.reach = max(1, preprocessing.size // 8) if augment.crop == "shift" else 0

    def __call__(self, image: Image.Image) -> Image.Image:
        image = self.preprocessing.coloured(image)
        if self.preprocessing.crop == "drawing":
            image = self.preprocessing.resized(image)
        elif image.size != self.size:
            image = image.resize(self.size, self.preprocessing.resampling)
        dx, dy = random.randint(-self.reach, self.reach), random.randint(-self.reach, self.reach)
        if self.augment.rotation or self.augment.scaling:
            matrix = self.turned_and_stretched(dx, dy)
            image = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        elif self.reach:
            image = image.transform(image.size, Image.Transform.AFFINE, (1, 0, dx, 0, 1, dy))
        return with_line_width(image, self.augment.line_width * random.uniform(-1, 1))

    def turned_and_stretched(self, dx: float, dy: float) -> tuple[float, ...]:
        """Pillow's matrix from the new image to the old one, around the centre."""
        angle = math.radians(self.augment.rotation * random.uniform(-1, 1))
        across, down = (1 + self.augment.scaling * random.uniform(-1, 1) for _ in range(2))
        a, b = math.cos(angle) / across, math.sin(angle) / across
        d, e = -math.sin(angle) / down, math.cos(angle) / down
        centre = self.preprocessing.size / 2
        return a, b, centre + dx - (a + b) * centre, d, e, centre + dy - (d + e) * centre


def with_line_width(image: Image.Image, change: float) -> Image.Image:
    """Bright lines thicker or, with a negative change, thinner, by up to two pixels for a change of 1."""
    if change == 0:
        return image
    return Image.blend(
        image, image.filter(ImageFilter.MaxFilter(3) if change > 0 else ImageFilter.MinFilter(3)), abs(change)
    )


class Light:
    """Warp, mirror and normalise."""

    def __init__(self, preprocessing: Preprocessing, augment: AugmentConfig):
        self.warp, self.hflip, self.normalise = Warp(preprocessing, augment), augment.hflip, preprocessing.normalise

    def __call__(self, image: Image.Image) -> Pixels:
        image = self.warp(image)
        return self.normalise(ImageOps.mirror(image) if random.random() < self.hflip else image)


def training_transform(preprocessing: Preprocessing, augment: AugmentConfig) -> Transform:
    """The transform of a recipe: timm's, or `Light` if no augmentation needs timm."""
    resized = augment.crop == "resized"
    if resized and (augment.rotation or augment.scaling or augment.line_width):
        raise PolyNeXtError(
            "`augment.rotation`, `augment.scaling` and `augment.line_width` do not go with resized crops: give "
            "`augment.crop` shift or none."
        )
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
            f"timm has no policy {augment.rand_augment!r}: give `augment.rand_augment` rand-m9-mstd0.5-inc1, say."
        ) from error
    fill = (GREY,) * preprocessing.channels if augment.rand_augment_as == "authors" else None
    parts = [
        auto_augment.RandAugment([Operation(op, fill) for op in part.ops], part.num_layers, part.choice_weights)
        if isinstance(part, auto_augment.RandAugment)
        else part
        for part in transform.transforms
    ]
    return Compose([preprocessing.coloured if resized else Warp(preprocessing, augment), *parts])


class Operation(auto_augment.AugmentOp):
    """timm's operation; posterizing to 0 bits, which RandAugment may draw, gives black instead of Pillow's error.

    With a fill colour, geometric operations use it and resample bilinearly or bicubically at random.
    """

    aug_fn: Any

    def __init__(self, operation: auto_augment.AugmentOp, fill: tuple[int, ...] | None = None):
        options = operation.hparams
        if fill is not None:
            options = {name: value for name, value in options.items() if name != "interpolation"} | {"img_mean": fill}
        super().__init__(operation.name, operation.prob, operation.magnitude, options)
        if self.aug_fn is auto_augment.posterize:
            self.aug_fn = posterize


def posterize(image: Image.Image, bits_to_keep: int, **options: Any) -> Image.Image:
    if bits_to_keep < 1:
        return Image.new(image.mode, image.size)
    return auto_augment.posterize(image, bits_to_keep, **options)
