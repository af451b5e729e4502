"""Images and masks: how they are read, varied, and refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polynext.errors import PolyNeXtError
from polynext.segmentation.classes import CAMVID
from polynext.segmentation.config import (
    SegmentationDataConfig,
)
from polynext.segmentation.data import IGNORED, load_pairs


def write_pairs(root: Path, count: int = 3, size: tuple[int, int] = (40, 30)) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (root / "images" / split).mkdir(parents=True)
        (root / "masks" / split).mkdir(parents=True)
        for i in range(count):
            mask = rng.integers(0, 3, (size[1] // 10, size[0] // 10)).repeat(10, 0).repeat(10, 1).astype(np.uint8)
            image = (80 * mask[..., None] + rng.integers(0, 60, (*mask.shape, 3))).astype(np.uint8)
            mask[:2] = IGNORED
            Image.fromarray(image).save(root / "images" / split / f"{i}.png")
            Image.fromarray(mask).save(root / "masks" / split / f"{i}.png")
    (root / "classes.txt").write_text("one\ntwo\nthree\n")


def folder(root: Path, **options) -> SegmentationDataConfig:
    return SegmentationDataConfig(name="folder", root=root, resize=(40, 30), crop=32, stride=16, workers=0, **options)


def test_folders_of_images_and_masks(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    pairs = load_pairs(folder(tmp_path), "train")
    image, mask = pairs[0]
    assert (len(pairs), pairs.classes) == (3, ("one", "two", "three"))
    assert image.size == (40, 30)
    assert mask.dtype == np.uint8
    assert set(np.unique(mask)) <= {0, 1, 2, IGNORED}


def break_label(root: Path) -> None:
    Image.fromarray(np.full((30, 40), 3, np.uint8)).save(root / "masks" / "train" / "1.png")


def break_size(root: Path) -> None:
    Image.fromarray(np.zeros((30, 41), np.uint8)).save(root / "masks" / "train" / "1.png")


def break_colour(root: Path) -> None:
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(root / "masks" / "train" / "1.png")


def break_file(root: Path) -> None:
    (root / "masks" / "train" / "1.png").write_bytes(b"no image")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (break_label, r"train/1\.png has the label 3, but there are 3 classes"),
        (break_size, r"train/1\.png has 41x30 pixels and its image 40x30"),
        (break_colour, r"train/1\.png is a mask with colours"),
        (break_file, r"train/1\.png cannot be read as an image"),
        (lambda root: (root / "masks" / "train" / "1.png").unlink(), r"train/1\.png has no mask in .*masks/train"),
        (lambda root: (root / "classes.txt").unlink(), r"has no classes\.txt"),
    ],
)
def test_bad_pairs_are_named(tmp_path: Path, harm, message: str) -> None:
    write_pairs(tmp_path)
    harm(tmp_path)
    with pytest.raises(PolyNeXtError, match=message):
        load_pairs(folder(tmp_path), "train")[1]


def test_ade20k_counts_from_one(tmp_path: Path) -> None:
    (tmp_path / "images" / "training").mkdir(parents=True)
    (tmp_path / "annotations" / "training").mkdir(parents=True)
    stored = np.array([[0, 1, 150]], np.uint8)
    Image.fromarray(np.zeros((1, 3, 3), np.uint8)).save(tmp_path / "images" / "training" / "ADE_train_1.jpg")
    Image.fromarray(stored).save(tmp_path / "annotations" / "training" / "ADE_train_1.png")
    pairs = load_pairs(SegmentationDataConfig(root=tmp_path), "train")
    assert pairs[0][1].tolist() == [[IGNORED, 0, 149]]
    assert (pairs.classes[0], pairs.classes[149]) == ("wall", "flag")
    Image.fromarray(np.array([[0, 1, 151]], np.uint8)).save(tmp_path / "annotations" / "training" / "ADE_train_1.png")
    with pytest.raises(PolyNeXtError, match="has the label 151"):
        pairs[0]


def test_camvid_arrays(tmp_path: Path) -> None:
    images, masks = np.zeros((2, 4, 5, 3), np.uint8), np.full((2, 4, 5), 11, np.uint8)
    masks[0, 0] = 3
    np.savez(tmp_path / "camvid.npz", train_x=images, train_y=masks)
    config = SegmentationDataConfig(name="camvid", root=tmp_path / "camvid.npz")
    pairs = load_pairs(config, "train")
    assert pairs.classes == CAMVID
    assert set(np.unique(pairs[0][1])) == {3, IGNORED}
    with pytest.raises(PolyNeXtError, match=r"give an \.npz file with train_x"):
        load_pairs(config, "val")
    with pytest.raises(PolyNeXtError, match="there is no camvid at"):
        load_pairs(replace(config, root=tmp_path / "absent"), "train")


@pytest.mark.parametrize("names", ["", "one\n" * 256])
def test_masks_have_at_most_255_classes(tmp_path: Path, names: str) -> None:
    write_pairs(tmp_path)
    (tmp_path / "classes.txt").write_text(names)
    with pytest.raises(PolyNeXtError, match="give 1 to 255, one on each line"):
        load_pairs(folder(tmp_path), "train")


def test_a_broken_array_file_has_a_message(tmp_path: Path) -> None:
    (tmp_path / "camvid.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(PolyNeXtError, match=r"camvid\.npz cannot be read"):
        load_pairs(SegmentationDataConfig(name="camvid", root=tmp_path / "camvid.npz"), "train")
