"""Data sets and transforms."""

import io
import json
import shutil
import struct
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from polynext.data import (
    AugmentConfig,
    DataConfig,
    Preprocessing,
    batches,
    evaluation_batches,
    load_examples,
    training_transform,
)
from polynext.data.drawings import PREPARED
from polynext.data.examples import ArrayExamples, balanced_indices
from polynext.data.loader import Prepared, epoch_order, load, of_images
from polynext.data.sets import Split
from polynext.errors import PolyNeXtError
from polynext.memory import keep_freed_memory, resident_memory
from polynext.preprocessing import open_picture

PIXELS = Preprocessing(mean=(0.0,), std=(1 / 255,))
COLOUR = Preprocessing(size=32, resize=32, mean=(0.5,) * 3, std=(0.5,) * 3)


def examples(count: int = 20, size: int = 8) -> ArrayExamples:
    images = np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((1, size, size), dtype=np.uint8)
    return ArrayExamples(images, [i % 4 for i in range(count)], list("abcd"))


def test_the_split_of_digits_is_fixed() -> None:
    train, test = (load_examples(DataConfig(), split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1433, 364)
    assert np.bincount(test.labels).min() >= 34
    assert train.images.max() == 255
    overlap = {i.tobytes() for i in train.images} & {i.tobytes() for i in test.images}
    assert not overlap


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 40), processes=st.integers(1, 5), batch=st.integers(1, 7))
def test_evaluation_sees_every_image_once(count: int, processes: int, batch: int) -> None:
    seen = []
    for rank in range(processes):
        for images, _ in evaluation_batches(examples(count), PIXELS, batch, (rank, processes)):
            seen += [round(v) for v in images[:, 0, 0, 0].tolist()]
    assert sorted(seen) == list(range(count))


def test_processes_share_each_training_batch() -> None:
    plain = training_transform(PIXELS, AugmentConfig(crop="none", hflip=0.0, rand_augment="", erasing=0.0))

    def order(share: tuple[int, int], start: int = 0) -> list[list[int]]:
        varied = Prepared(examples(), of_images(plain), (3, 1))
        loader = batches(varied, 8, range(start, 2), epoch_order(20, seed=3, epoch=1), share)
        return [[round(v) for v in images[:, 0, 0, 0].tolist()] for images, _ in loader]

    whole, first, second = order((0, 1)), order((0, 2)), order((1, 2))
    assert [a + b for a, b in zip(first, second, strict=True)] == whole
    assert len(whole) == 2 and len({image for batch in whole for image in batch}) == 16
    assert order((0, 1), start=1) == whole[1:]


def test_the_papers_augmentation_runs_on_colour_images() -> None:
    transform = training_transform(COLOUR, AugmentConfig())
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 36, 3), dtype=np.uint8))
    assert transform(image).shape == (3, 32, 32)


def test_a_shift_can_be_combined_with_rand_augment() -> None:
    colour = replace(COLOUR, mean=(0.0,) * 3, std=(1.0,) * 3)
    augment = AugmentConfig(crop="shift", hflip=0.0, rand_augment="", erasing=1e-9)
    values = np.full((32, 32, 3), 255, dtype=np.uint8)
    shifted = torch.stack([training_transform(colour, augment)(Image.fromarray(values)) for _ in range(20)])
    assert shifted.shape == (20, 3, 32, 32)
    edges = [shifted[..., 0, :], shifted[..., -1, :], shifted[..., 0], shifted[..., -1]]
    assert all((edge < 0.1).any() for edge in edges)  # what came in from outside is black
    assert (shifted[..., 8:-8, 8:-8] > 0.9).all()


def test_evaluation_resizes_and_crops_the_centre() -> None:
    prepare = Preprocessing(size=224, resize=232, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    values = np.zeros((464, 696, 3), dtype=np.uint8)
    values[:, :, 0] = np.arange(696) * 255 // 696
    out = prepare(Image.fromarray(values))
    assert out.shape == (3, 224, 224)
    centre = out[0].mean(axis=0)
    assert centre[111:113].mean().item() == pytest.approx(127, abs=1)
    assert centre[0].item() == pytest.approx((348 / 2 - 112) / 348 * 255, abs=1.5)


def test_normalisation() -> None:
    prepare = Preprocessing(size=2, resize=2, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    out = prepare(Image.fromarray(np.full((2, 2, 3), 255, dtype=np.uint8)))
    np.testing.assert_allclose(out[:, 0, 0], [1.0, 3.0, 1.0], rtol=1e-6)


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (10, 12), (i * 40, 0, 0)).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_a_folder_of_classes(folder) -> None:
    train = load_examples(DataConfig(name="folder", root=folder), "train")
    assert train.classes == ["cat", "dog"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.image(4) is train.image(4)  # decoded once
    small = load_examples(DataConfig(name="imagenet", root=folder, most_memory=0.0), "test")
    assert small.image(4) is not small.image(4)


def test_tiny_imagenet_as_it_is_distributed(folder) -> None:
    images = folder / "val" / "images"
    images.mkdir()
    for i in range(2):
        (folder / "val" / "dog" / f"{i}.png").rename(images / f"val_{i}.png")
    shutil.rmtree(folder / "val" / "cat")
    shutil.rmtree(folder / "val" / "dog")
    (folder / "val" / "val_annotations.txt").write_text("val_0.png\tdog\t0\t0\t9\t9\nval_1.png\tcat\t0\t0\t9\t9\n")
    test = load_examples(DataConfig(name="tiny-imagenet", root=folder), "test")
    assert (test.classes, test.labels.tolist()) == (["cat", "dog"], [1, 0])


def test_pixels_of_unknown_range_are_refused(tmp_path) -> None:
    Image.fromarray(np.random.default_rng(0).random((8, 8), dtype=np.float32)).save(tmp_path / "real.tiff")
    Image.fromarray(np.full((8, 8), 2**30, np.int32)).save(tmp_path / "long.tiff")
    for name, what in (("real", "floating-point numbers"), ("long", "32-bit integers")):
        with pytest.raises(PolyNeXtError, match=f"{name}.tiff has {what} as pixels.*save it with 8 or 16 bits"):
            open_picture(tmp_path / f"{name}.tiff")


def test_a_npz_file(tmp_path) -> None:
    images = np.zeros((6, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", train_x=images, train_y=np.arange(6) % 2, test_x=images, test_y=np.arange(6) % 2)
    data = load_examples(DataConfig(name="cifar10", root=tmp_path / "x.npz", limit=4), "train")
    assert len(data) == 4 and np.bincount(data.labels).tolist() == [2, 2]


def test_torchvision_sets_are_downloaded_only_on_request(tmp_path) -> None:
    for name in ("cifar10", "svhn", "mnist", "mnist-drawings"):
        with pytest.raises(PolyNeXtError, match=r"with `data\.download`"):
            load_examples(DataConfig(name=name, root=tmp_path), "train")


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # timm's
def test_data_sets_of_timm(folder) -> None:
    data = load_examples(DataConfig(name="timm:", root=folder), "train")
    assert len(data) == 6 and len(data.classes) == 2


def write_shard(path, count, start=0, labels=True) -> None:
    with tarfile.open(path, "w") as archive:
        for i in range(start, start + count):
            picture = io.BytesIO()
            Image.new("RGB", (6, 5), (i, 0, 0)).save(picture, "png")
            parts = {"png": picture.getvalue()} | ({"cls": str(i % 3).encode()} if labels else {})
            for suffix, data in parts.items():
                member = tarfile.TarInfo(f"{i:06}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def test_shards_are_read_by_number(tmp_path) -> None:
    for name, start in (("train-0", 0), ("train-1", 4), ("val-0", 8)):
        write_shard(tmp_path / f"x-{name}.tar", 4, start)
    data = load_examples(DataConfig(name="webdataset", root=tmp_path), "train")
    assert data.labels.tolist() == [i % 3 for i in range(8)] and len(data.classes) == 3
    assert [data.image(i).getpixel((0, 0))[0] for i in (6, 1)] == [6, 1]
    info = {"splits": {"validation": {"filenames": ["x-train-1.tar"]}}}
    (tmp_path / "_info.json").write_text(json.dumps(info))
    assert load_examples(DataConfig(name="timm:wds/x", root=tmp_path), "test").labels.tolist() == [1, 2, 0, 1]


def test_bad_shards_are_reported(tmp_path) -> None:
    config = DataConfig(name="webdataset", root=tmp_path)
    with pytest.raises(PolyNeXtError, match="has no train or training shards"):
        load_examples(config, "train")
    write_shard(tmp_path / "train.tar", 2, labels=False)
    with pytest.raises(PolyNeXtError, match=r"train\.tar has images without a label: 000000, 000001"):
        load_examples(config, "train")
    (tmp_path / "train.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(PolyNeXtError, match=r"train\.tar cannot be read as a shard"):
        load_examples(config, "train")


def test_bad_data_is_reported_in_a_message(folder, tmp_path) -> None:
    def load(split="train", **options):
        return load_examples(DataConfig(**options), split)

    (folder / "train" / "dog" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(PolyNeXtError, match=r"torn\.jpg cannot be read as an image"):
        load(name="folder", root=folder)
    (folder / "train" / "owl").mkdir()
    with pytest.raises(PolyNeXtError, match="classes without images: owl"):
        load(name="folder", root=folder)
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(PolyNeXtError, match="has no images"):
        load(name="folder", root=tmp_path / "empty")
    with pytest.raises(PolyNeXtError, match="has no folder named val"):
        load("test", name="folder", root=tmp_path / "empty")
    with pytest.raises(PolyNeXtError, match="there is no folder"):
        load(name="imagenet", root=tmp_path / "absent")
    with pytest.raises(PolyNeXtError, match="there is no data set 'cats'"):
        load(name="cats", root=folder)
    with pytest.raises(PolyNeXtError, match=r"`data\.limit` is 5000"):
        load(limit=5000)
    with pytest.raises(PolyNeXtError, match="labels from 0 to 5 but 2 classes"):
        ArrayExamples(np.zeros((6, 4, 4), dtype=np.uint8), range(6), ["a", "b"])
    with pytest.raises(PolyNeXtError, match="expected uint8"):
        ArrayExamples(np.zeros((6, 4, 4)), [0] * 6, ["a"])


def test_an_unreadable_image_in_a_worker_is_one_message(folder) -> None:
    data = load_examples(DataConfig(name="folder", root=folder, most_memory=0.0), "train")
    (folder / "train" / "dog" / "1.png").write_bytes(b"no image any more")
    prepare = Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(PolyNeXtError, match=r"^\S*1\.png cannot be read as an image: repair or remove it\.$"):
        list(evaluation_batches(data, prepare, 2, workers=1))


def write_idx(path: Path, values: np.ndarray) -> None:
    """A file of MNIST as it is distributed."""
    path.write_bytes(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


def test_mnist_comes_as_arrays_or_in_torchvisions_folder(tmp_path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = (np.arange(20) % 10).astype(np.uint8)
    np.savez(tmp_path / "x.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        write_idx(raw / f"{split}-images-idx3-ubyte", images)
        write_idx(raw / f"{split}-labels-idx1-ubyte", labels)
    for root in (tmp_path, tmp_path / "x.npz"):
        found = load_examples(DataConfig(name="mnist", root=root), "test")
        assert (np.asarray(found.image(13)) == images[13]).all() and found.labels[13] == 3
        assert found.classes == list("0123456789")
        both = load_examples(DataConfig(name="mnist-drawings", root=root), "train")
        assert (np.asarray(both.image(19)) == images[19]).all() and both.labels[20] == 0
        drawn = load_examples(DataConfig(name="drawings"), "train")
        assert len(both) == 20 + len(drawn) and both.image(25).tobytes() == drawn.image(5).tobytes()


def test_validation_images_are_training_images_that_are_not_trained_on(tmp_path) -> None:
    images = np.arange(40, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", train_x=images, train_y=np.arange(40) % 4, test_x=images[:4], test_y=np.arange(4))
    data = DataConfig(name="folder", root=tmp_path / "x.npz", validation=12)

    def seen(config: DataConfig, split: Split) -> set[int]:
        examples = load_examples(config, split)
        return {int(np.asarray(examples.image(i))[0, 0]) for i in range(len(examples))}

    held_out, trained = seen(data, "validation"), seen(data, "train")
    assert len(held_out) == 12 and held_out | trained == set(range(40)) and not held_out & trained
    assert np.bincount(load_examples(data, "validation").labels).tolist() == [3] * 4
    assert len(seen(replace(data, limit=8), "train") & trained) == 8
    assert seen(data, "test") == set(range(4))
    for wrong in (replace(data, limit=29), replace(data, validation=40), replace(data, validation=41)):
        with pytest.raises(PolyNeXtError, match="40 training images"):
            load_examples(wrong, "train")


def test_drawings_are_prepared_like_mnist_and_differ() -> None:
    """The longer side has 20 pixels, and the central pixel contains the centre of mass."""
    drawings = load_examples(DataConfig(name="drawings"), "test")
    seen = set()
    for index in range(100):
        pixels = np.asarray(drawings.image(index), dtype=np.float64)
        seen.add(pixels.tobytes())
        for axis in (0, 1):
            ink = pixels.sum(axis=axis)
            assert 14 <= (ink * (np.arange(28) + 0.5)).sum() / ink.sum() < 15
        rows, columns = np.nonzero(pixels >= 16)
        assert max(np.ptp(rows), np.ptp(columns)) in (18, 19)  # interpolation may leave a faint edge
        assert drawings.image(index).tobytes() == drawings.image(index).tobytes()
    assert len(seen) == 100 and drawings.labels[:10].tolist() == list(range(10))


def test_preparing_a_drawing_keeps_images_of_mnist() -> None:
    data = DataConfig(name="mnist-drawings-sample")
    test = load_examples(data, "test")
    unchanged = [PREPARED.resized(test.image(i)).tobytes() == test.image(i).tobytes() for i in range(len(test))]
    assert np.mean(unchanged) > 0.85  # elsewhere a faint edge is cut off
    assert not np.asarray(PREPARED.resized(Image.new("L", (50, 40)))).any()


def test_handwriting_is_turned_stretched_and_thickened() -> None:
    still = AugmentConfig(crop="none", hflip=0.0, rand_augment="", erasing=0.0)
    bar = np.zeros((28, 28), dtype=np.uint8)
    bar[4:24, 13:15] = 255
    image, field = Image.fromarray(bar), Preprocessing(size=28, resize=28, mean=(0.0,), std=(1 / 255,))

    def moments(augment: AugmentConfig) -> np.ndarray:
        """Tilt, height and ink of the augmented bar, each time."""
        made = []
        for _ in range(40):
            pixels = training_transform(field, augment)(image)[0]
            rows, columns = np.mgrid[:28, :28] - 13.5
            across, down = (np.average(each, weights=pixels) for each in (columns, rows))
            tilt = np.average((columns - across) * (rows - down), weights=pixels)
            made.append((tilt, np.average((rows - down) ** 2, weights=pixels), pixels.sum() / bar.sum()))
        return np.ptp(np.array(made), axis=0)

    assert np.allclose(moments(still), 0)
    tilt, height, ink = moments(replace(still, rotation=15.0))
    assert tilt > 8 and height < 8 and ink < 0.2
    tilt, height, ink = moments(replace(still, scaling=0.2))
    assert tilt < 0.5 and height > 10
    tilt, height, ink = moments(replace(still, line_width=0.5))
    assert tilt < 0.5 and ink > 0.5
    with pytest.raises(PolyNeXtError, match=r"augment\.crop` shift or none"):
        training_transform(field, replace(still, crop="resized", rotation=5.0))


def test_a_limit_is_balanced_over_classes() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    assert balanced_indices(labels, 5).tolist() == [0, 1, 4, 5, 6]


class MemoryOfTheReader:
    """In place of an image, the memory of the process that reads it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[int, int]:
        return resident_memory(), 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no freed memory is kept")
def test_workers_hold_no_copy_of_memory_that_was_freed() -> None:
    """Or a training on a CPU would take its feature maps' memory twice from the second epoch on."""

    def memory_of_a_worker() -> float:
        (memory, _), *_ = load(Prepared(MemoryOfTheReader(), lambda *pair: pair), [[0]], workers=1)
        return memory.item()

    keep_freed_memory()
    before = memory_of_a_worker()
    maps = [torch.ones(2**20) for _ in range(100)]
    del maps
    assert memory_of_a_worker() < before + 200e6
