"""Augmentation and preprocessing of images and masks. Random numbers are Python's, seeded by the loader."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from polynext.segmentation.config import SegmentationDataConfig
from polynext.segmentation.data import IGNORED

CROP_TRIES = 10


def fitted_size(size: tuple[int, int], longer: int, shorter: int) -> tuple[int, int]:
    """The largest (width, height) of the same proportions whose edges are at most `longer` and `shorter`."""
    factor = min(longer / max(size), shorter / min(size))
    return max(1, int(size[0] * factor + 0.5)), max(1, int(size[1] * factor + 0.5))


def resized(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Pixels (H, W, 3) of another (width, height), bilinearly and without antialiasing, as OpenCV resizes."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0).float()
    made = F.interpolate(pixels, size=size[::-1], mode="bilinear", align_corners=False)
    return made[0].permute(1, 2, 0).round().byte().numpy()


def resized_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A mask (H, W) of another (width, height), as OpenCV's nearest: pixel i is pixel floor(i * old / new)."""
    columns, rows = (nearest(old, new) for old, new in zip(mask.shape[::-1], size, strict=True))
    return mask[rows[:, None], columns]


def nearest(old: int, new: int) -> np.ndarray:
    """The source index of each of `new` pixels. The factor is rounded twice, as OpenCV rounds it."""
    return np.minimum((np.arange(new) * (1.0 / (new / old))).astype(int), old - 1)


def normalised(image: np.ndarray, config: SegmentationDataConfig) -> Tensor:
    """Pixels (H, W, 3) from 0 to 255 to a normalised tensor (3, H, W)."""
    mean, std = np.asarray(config.mean, np.float32), np.asarray(config.std, np.float32)
    return torch.from_numpy((image.astype(np.float32) / 255 - mean) / std).permute(2, 0, 1).contiguous()


class TrainingTransform:
    """Resize by a random factor, crop, flip, distort colours, normalise, pad to the crop's size."""

    def __init__(self, config: SegmentationDataConfig):
        self.config = config

    def __call__(self, image: Image.Image, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        config = self.config
        factor = random.uniform(*config.factors)
        size = fitted_size(image.size, int(factor * config.resize[0]), int(factor * config.resize[1]))
        pixels, labels = self.crop(resized(image, size), resized_mask(mask, size))
        if random.random() < config.hflip:
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        if config.distortion:
            pixels = distort(pixels)
        height, width = labels.shape
        x = torch.zeros(3, config.crop, config.crop)
        y = torch.full((config.crop, config.crop), IGNORED, dtype=torch.long)
        x[:, :height, :width] = normalised(pixels, config)
        y[:height, :width] = torch.from_numpy(labels.astype(np.int64))
        return x, y

    def crop(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A random crop in which no class takes more than its share; the last one if CROP_TRIES do not find any."""
        side = self.config.crop
        for _ in range(CROP_TRIES):
            top = random.randint(0, max(labels.shape[0] - side, 0))
            left = random.randint(0, max(labels.shape[1] - side, 0))
            chosen = labels[top : top + side, left : left + side]
            counts = np.bincount(chosen[chosen != IGNORED], minlength=1)
            if (counts > 0).sum() > 1 and counts.max() < self.config.most_of_a_class * counts.sum():
                break
        return pixels[top : top + side, left : left + side], chosen


def distort(pixels: np.ndarray) -> np.ndarray:
    """Brightness, contrast (before or after the colours), saturation and hue, each with probability 1/2."""
    x = pixels.astype(np.float32)
    if random.random() < 0.5:
        x = clipped(x + random.uniform(-32, 32))
    contrast_first = random.random() < 0.5
    if contrast_first and random.random() < 0.5:
        x = clipped(x * random.uniform(0.5, 1.5))
    hsv = np.asarray(Image.fromarray(x.astype(np.uint8)).convert("HSV")).astype(np.float32)
    if random.random() < 0.5:
        hsv[..., 1] = clipped(hsv[..., 1] * random.uniform(0.5, 1.5))
    if random.random() < 0.5:
        hsv[..., 0] = (hsv[..., 0] + random.uniform(-18, 18) * 256 / 180) % 256  # 18 of 180 steps of hue
    x = np.asarray(Image.fromarray(hsv.astype(np.uint8), "HSV").convert("RGB")).astype(np.float32)
    if not contrast_first and random.random() < 0.5:
        x = clipped(x * random.uniform(0.5, 1.5))
    return x.astype(np.uint8)


def clipped(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 255)


class TestTransform:
    """Resize and normalise the image. The mask keeps its size: predictions are resized to it."""

    __test__ = False

    def __init__(self, config: SegmentationDataConfig):
        self.config = config

    def __call__(self, image: Image.Image, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.image(image), torch.from_numpy(mask.astype(np.int64))

    def image(self, image: Image.Image) -> Tensor:
        return normalised(resized(image, fitted_size(image.size, *self.config.resize)), self.config)
