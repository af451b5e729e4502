"""Augmentation and preprocessing of images and masks."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from polynext.segmentation.config import (
    SegmentationDataConfig,
)
from polynext.segmentation.data import IGNORED
from polynext.segmentation.transforms import TrainingTransform, fitted_size


def test_training_crops_keep_image_and_mask_together() -> None:
    """Each pixel's colour tells its label, before and after."""
    mask = np.random.default_rng(0).integers(0, 4, (10, 14)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    image = Image.fromarray(np.stack([60 * mask] * 3, axis=2))
    config = SegmentationDataConfig(
        resize=(112, 80), factors=(1.0, 1.0), crop=48, distortion=False, mean=(0.0,) * 3, std=(1.0,) * 3
    )
    transform = TrainingTransform(config)
    for seed in range(20):
        random.seed(seed)
        pixels, labels = transform(image, mask)
        assert pixels.shape == (3, 48, 48)
        torch.testing.assert_close((pixels[0] * 255).round().long(), 60 * labels)


def test_small_images_are_padded_and_the_padding_does_not_count() -> None:
    config = SegmentationDataConfig(resize=(20, 20), factors=(1.0, 1.0), crop=32)
    pixels, labels = TrainingTransform(config)(Image.new("RGB", (20, 10)), np.zeros((10, 20), np.uint8))
    assert pixels.shape == (3, 32, 32)
    assert (labels == IGNORED).sum() == 32 * 32 - 20 * 10
    assert (pixels[:, 10:] == 0).all()


def test_a_crop_of_one_class_is_drawn_again() -> None:
    mask = np.zeros((40, 400), np.uint8)
    mask[:, 380:] = 1
    config = SegmentationDataConfig(resize=(400, 40), factors=(1.0, 1.0), crop=40)
    kept = []
    for seed in range(60):
        random.seed(seed)
        _, labels = TrainingTransform(config).crop(np.zeros((40, 400, 3)), mask)
        kept.append((labels == 1).any())
    free = []
    for seed in range(60):
        random.seed(seed)
        start = random.randint(0, 0), random.randint(0, 360)
        free.append(start[1] > 340)
    assert sum(kept) > 2 * sum(free)


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_resized_images_fit_both_edges(width: int, height: int) -> None:
    new = fitted_size((width, height), 2048, 512)
    assert max(new) <= 2048
    assert min(new) <= 512
    assert max(new) == 2048 or min(new) == 512
