"""Augmentation and preprocessing of images and masks."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from polynext.segmentation.config import SegmentationDataConfig
from polynext.segmentation.data import IGNORED
from polynext.segmentation.transforms import TrainingTransform, fitted_size, resized, resized_mask


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


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(SIZES, SIZES)
def test_images_are_resized_bilinearly_without_antialiasing(before: tuple[int, int], after: tuple[int, int]) -> None:
    """Between the two pixels on each axis that are nearest to (i + 0.5) * scale - 0.5, also when shrinking."""
    pixels = np.random.default_rng(0).integers(0, 256, (before[1], before[0], 3), dtype=np.uint8)

    def weights(old: int, new: int) -> np.ndarray:
        matrix = np.zeros((new, old))
        for i in range(new):
            x = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
            low = int(x)
            matrix[i, low] += 1 - (x - low)
            matrix[i, min(low + 1, old - 1)] += x - low
        return matrix

    exact = np.einsum("ay,bx,yxc->abc", weights(before[1], after[1]), weights(before[0], after[0]), pixels)
    assert np.abs(resized(Image.fromarray(pixels), after) - exact).max() < 0.51


@given(SIZES, SIZES)
def test_images_and_masks_are_resized_as_opencv_does(before: tuple[int, int], after: tuple[int, int]) -> None:
    """To the pixel for masks; images within one level, since OpenCV's weights have 11 bits."""
    cv2 = pytest.importorskip("cv2")
    pixels = np.random.default_rng(0).integers(0, 256, (before[1], before[0], 3), dtype=np.uint8)
    theirs = cv2.resize(pixels, after, interpolation=cv2.INTER_LINEAR).reshape(after[1], after[0], 3)
    assert np.abs(resized(Image.fromarray(pixels), after).astype(int) - theirs).max() <= 1
    theirs = cv2.resize(pixels[..., 0], after, interpolation=cv2.INTER_NEAREST).reshape(after[1], after[0])
    np.testing.assert_array_equal(resized_mask(pixels[..., 0], after), theirs)


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_resized_images_fit_both_edges(width: int, height: int) -> None:
    new = fitted_size((width, height), 2048, 512)
    assert max(new) <= 2048
    assert min(new) <= 512
    assert max(new) == 2048 or min(new) == 512
