"""A network sees the same numbers wherever it is used."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from polynext.cli import main
from polynext.data import DataConfig, Preprocessing, evaluation_batches
from polynext.encrypted.client import Client
from polynext.errors import PolyNeXtError
from polynext.evaluation import open_set

GREY = Preprocessing(size=8, resize=8, mean=(0.3,), std=(0.2,))
COLOUR = Preprocessing(size=24, resize=24, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
SETTINGS = {
    "grey": GREY,
    "grey, resized more": replace(GREY, size=12, resize=17),
    "grey, bilinear": replace(GREY, size=11, resize=13, interpolation="bilinear"),
    "colour": COLOUR,
    "colour, resized more": replace(COLOUR, resize=29),
    "colour, bilinear": replace(COLOUR, resize=27, interpolation="bilinear"),
    "colour, squashed": replace(COLOUR, size=21, resize=24, crop="squash"),
}
SIZES = [(8, 8), (31, 17), (40, 41), (5, 9)]


def pictures() -> dict[str, Image.Image]:
    """Grey and colour, 8 and 16 bits, of odd sizes."""
    generator = np.random.default_rng(0)
    made = {}
    for width, height in SIZES:
        colours = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        made[f"colour-{width}"] = Image.fromarray(colours)
        made[f"grey-{width}"] = Image.fromarray(colours[:, :, 0])
        made[f"deep-{width}"] = Image.fromarray(generator.integers(0, 65536, (height, width), dtype=np.uint16))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures as a data set of folders, and as one of shards."""
    root = tmp_path_factory.mktemp("data")
    (root / "val" / "only").mkdir(parents=True)
    with tarfile.open(root / "val.tar", "w") as shard:
        for name, picture in sorted(pictures().items()):
            picture.save(root / "val" / "only" / f"{name}.png")
            shard.add(root / "val" / "only" / f"{name}.png", f"{name}.png")
            label = tarfile.TarInfo(f"{name}.cls")
            label.size = 1
            shard.addfile(label, io.BytesIO(b"0"))
    return root


def fed_by_evaluation(root: Path, name: str, preprocessing: Preprocessing) -> np.ndarray:
    chosen = open_set(name, DataConfig(name=name, root=root, preprocessing=preprocessing))
    return np.concatenate([images for images, _ in evaluation_batches(chosen.examples, chosen.preprocessing, 5)])


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_client_encrypts_the_same_numbers_as_evaluation(
    setting: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encrypted: list[Any] = []

    def write_request(images: np.ndarray, path: Path) -> None:
        encrypted.append(images)
        path.touch()

    received = Preprocessing.from_json(SETTINGS[setting].to_json())  # as in a client spec
    client = SimpleNamespace(spec=SimpleNamespace(preprocessing=received), write_request=write_request)
    monkeypatch.setattr(Client, "load", lambda path: client)
    files = sorted(map(str, (folder / "val" / "only").iterdir()))
    assert main(["encrypted", "encrypt", *files, "--out", str(tmp_path / "request.enc")]) == 0
    fed = fed_by_evaluation(folder, "folder", SETTINGS[setting])
    np.testing.assert_allclose(encrypted[0], fed, atol=1e-6)
    assert fed.std() > 0.1
    np.testing.assert_array_equal(fed_by_evaluation(folder, "webdataset", SETTINGS[setting]), fed)


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 50),
    height=st.integers(1, 50),
    size=st.integers(1, 20),
    more=st.integers(0, 9),
    crop=st.sampled_from(["centre", "squash"]),
)
def test_images_of_any_size_become_inputs(width: int, height: int, size: int, more: int, crop: Any) -> None:
    preprocessing = Preprocessing(size=size, resize=size + more, crop=crop, mean=(0.0,), std=(1 / 255,))
    flat = Image.new("RGB", (width, height), (77, 77, 77))
    result = preprocessing(flat)
    assert result.shape == preprocessing.input_size and result.dtype == np.float32
    np.testing.assert_allclose(result, 77, rtol=1e-5)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8))


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 120),
    height=st.integers(1, 120),
    size=st.integers(1, 40),
    more=st.integers(0, 9),
    crop=st.sampled_from(["centre", "squash"]),
    interpolation=st.sampled_from(["bicubic", "bilinear"]),
)
@example(640, 427, 224, 8, "centre", "bicubic")
@example(1024, 683, 224, 8, "centre", "bicubic")
@example(213, 320, 224, 8, "centre", "bilinear")
def test_every_pixel_is_torchvisions(
    width: int, height: int, size: int, more: int, crop: Any, interpolation: Any
) -> None:
    resize, mean, std = size + more, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ours = Preprocessing(size=size, resize=resize, crop=crop, interpolation=interpolation, mean=mean, std=std)
    theirs = transforms.Compose(
        [
            transforms.Resize(
                resize if crop == "centre" else (resize, resize), transforms.InterpolationMode(interpolation)
            ),
            transforms.CenterCrop(size),
        ]
    )
    picture = noise(width, height)
    np.testing.assert_array_equal(np.asarray(ours.resized(picture)), np.asarray(theirs(picture)))
    normalised = transforms.Compose([theirs, transforms.ToTensor(), transforms.Normalize(mean, std)])
    np.testing.assert_allclose(ours(picture), normalised(picture).numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["convnext_atto", "vit_base_patch16_siglip_224.webli", "test_resnet"])
def test_timms_own_transform_gives_the_same(name: str) -> None:
    given = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    picture = noise(640, 427)
    ours, theirs = Preprocessing.of_model(given)(picture), timm.data.create_transform(**given)(picture).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean": (0.5, 0.5)}, "one number of each for grey images or three"),
        ({"std": (0.0,)}, "a std above 0"),
        ({"size": 9}, "images of 9 pixels cannot be cropped from 8"),
        ({"size": 0}, "a size of at least 1"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PolyNeXtError, match=message):
        Preprocessing(**fields)
