"""A network sees the same numbers wherever it is used."""

import base64
import io
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision import transforms

from polynext.cli import main
from polynext.data import DataConfig, Preprocessing, evaluation_batches, load_examples
from polynext.encrypted.client import Client
from polynext.errors import PolyNeXtError
from polynext.evaluation import open_set
from polynext.preprocessing import IMAGE_SUFFIXES, LARGEST_PROPORTION, open_picture
from polynext.segmentation.data import FilePairs
from tests.service.test_vectors import stored

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
    """The pictures, and those of the test vectors, as a data set of folders, of shards, and of timm."""
    root = tmp_path_factory.mktemp("data")
    images = root / "val" / "only"
    images.mkdir(parents=True)
    for name, picture in pictures().items():
        picture.save(images / f"{name}.png")
    for vector in stored("pictures"):
        if (suffix := Path(vector["name"]).suffix) in IMAGE_SUFFIXES:
            name = vector["name"].replace(".", "-")  # with the suffix: shards know an image by its name without it
            (images / f"{name}{suffix}").write_bytes(base64.b64decode(vector["file"]))
    with tarfile.open(root / "val.tar", "w") as shard:
        for path in sorted(images.iterdir()):
            shard.add(path, path.name)
            label = tarfile.TarInfo(f"{path.stem}.cls")
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


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # timm's
def test_data_sets_of_timm_have_the_same_pixels(folder: Path) -> None:
    timms: Any = load_examples(DataConfig(name="timm:", root=folder), "test")
    for i in range(len(timms)):
        same = open_picture(folder / "val" / timms.dataset.filename(i))
        np.testing.assert_array_equal(np.asarray(timms.image(i)), np.asarray(same), timms.dataset.filename(i))


def test_segmentation_reads_the_same_pixels(folder: Path, tmp_path: Path) -> None:
    vectors = [vector for vector in stored("pictures") if Path(vector["name"]).suffix in IMAGE_SUFFIXES]
    for i, vector in enumerate(vectors):
        for kind in ("images", "masks"):
            (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / "images" / f"{i:02}{Path(vector['name']).suffix}").write_bytes(base64.b64decode(vector["file"]))
        Image.new("L", (vector["width"], vector["height"])).save(tmp_path / "masks" / f"{i:02}.png")
    pairs = FilePairs(tmp_path / "images", tmp_path / "masks", ("only",))
    for i, vector in enumerate(vectors):
        assert pairs[i][0].tobytes() == base64.b64decode(vector["pixels"]), vector["name"]


def test_images_of_callers_are_converted_alike() -> None:
    """A client or a run may get an image from Pillow instead of a file."""
    for vector in stored("pictures"):
        with Image.open(io.BytesIO(base64.b64decode(vector["file"]))) as image:
            upright = ImageOps.exif_transpose(image)
        same = Image.frombytes("RGB", (vector["width"], vector["height"]), base64.b64decode(vector["pixels"]))
        np.testing.assert_array_equal(COLOUR(upright), COLOUR(same), vector["name"])


def test_extreme_proportions_are_refused() -> None:
    with pytest.raises(PolyNeXtError, match="60000x1 pixels: give one whose longer edge is at most 100 times"):
        COLOUR(Image.new("RGB", (60000, 1)))


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
    assume(max(width, height) <= LARGEST_PROPORTION * min(width, height))
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


def test_a_drawing_whose_lines_vanish_is_black() -> None:
    dots = Image.new("L", (1000, 1000))
    dots.putpixel((0, 0), 20)
    dots.putpixel((999, 999), 20)
    assert not np.asarray(Preprocessing(size=4, resize=2, crop="drawing").resized(dots)).any()
