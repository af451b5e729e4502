"""Damaged and malicious files of every format that is read: a result or one message, never a traceback or a hang."""

import base64
import io
import json
import signal
import tarfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import polynext
from polynext import PolyNeXtError, load_run
from polynext.config import TrainConfig, read_config, to_yaml
from polynext.data import DataConfig, load_examples
from polynext.encrypted import Client, ClientSpec, make_plan, save_server
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.runtime.program_file import load_program
from polynext.encrypted.server import Server
from polynext.models.published import WEIGHTS
from polynext.preprocessing import Preprocessing, open_picture
from polynext.recipes import recipe
from polynext.segmentation.config import SegmentationConfig, SegmentationDataConfig
from polynext.segmentation.data import load_pairs
from polynext.training.folder import RunFolder, read_state
from tests.circuit.conftest import small_network
from tests.encrypted.conftest import SAME_EVERYWHERE
from tests.service.test_vectors import stored

SECONDS = 60  # for one file; all are read in a fraction of a second
WILD = (
    b"nan",
    b"-1",
    b"1e9",
    b"99999999999999999999",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"\xff\xfe",
    b"*a",
    b"&a [*a]",
    b"0",
)

Read = Callable[[Path], object]


def damaged(data: bytes, generator: np.random.Generator) -> bytes:
    """A random change: truncated, altered, zeroed, repeated, or with a number or text replaced by an unusual one."""
    first, last = sorted(int(generator.integers(0, len(data) + 1)) for _ in range(2))
    near = slice(first, min(last, first + int(generator.integers(1, 64))))
    kind = generator.integers(0, 7)
    if kind == 0:
        return data[:first]
    if kind == 1:
        return data[: near.start] + generator.bytes(near.stop - near.start) + data[near.stop :]
    if kind == 2:
        return data[:first] + bytes(last - first) + data[last:]
    if kind == 3:
        return data[:last] + data[first:]
    if kind == 4:
        return data[:first] + data[last:]
    altered = bytearray(data)
    if kind == 5:
        for place in generator.integers(0, len(data), size=3):
            altered[place] ^= 1 << int(generator.integers(0, 8))
        return bytes(altered)
    return data[: near.start] + WILD[generator.integers(0, len(WILD))] + data[near.stop :]


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"a file was not read in {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def encoded(image: Image.Image, name: str) -> bytes:
    file = io.BytesIO()
    image.save(file, name)
    return file.getvalue()


def arrays(**given: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **given)
    return file.getvalue()


def shard() -> bytes:
    file = io.BytesIO()
    picture = encoded(Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)), "PNG")
    with tarfile.open(fileobj=file, mode="w") as archive:
        for i in range(3):
            for suffix, content in (("png", picture), ("cls", str(i).encode())):
                member = tarfile.TarInfo(f"{i}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def shipped() -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The weights of the digits network, and their metadata."""
    path = WEIGHTS / "cpolynext_nano_bn.digits.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        return safetensors.torch.load_file(path), file.metadata()


def first_image(name: str) -> Read:
    def read(path: Path) -> object:
        root = path if name == "folder" else path.parent
        return load_examples(DataConfig(name=name, root=root), "test")[0]

    return read


def first_pair(path: Path) -> object:
    return load_pairs(SegmentationDataConfig(name="camvid", root=path), "val")[0]


def small_model() -> Any:
    return polynext.create_model("cpolynext_nano")


def loaded_into_network(path: Path) -> None:
    polynext.load_weights(small_model(), path)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a client and a server, and a request with its answer."""
    root = tmp_path_factory.mktemp("encrypted")
    torch.manual_seed(1)
    examples = np.random.default_rng(3).normal(size=(32, 1, 4, 4))
    plan = replace(make_plan(small_network_circuit(), examples, 1, costs=SAME_EVERYWHERE), backend="seal")
    save_server(plan.program, client_spec_for(plan, Preprocessing(size=4, resize=4), ("a", "b", "c")), root / "server")
    client = Client.keygen(ClientSpec.load(root / "server" / "client_spec.json"), root / "client")
    client.write_request(examples[:1], root / "request.enc")
    Server.load(root / "server", root / "client" / "evaluation.keys").answer_request(
        root / "request.enc", root / "answer.enc"
    )
    return root


def small_network_circuit() -> Any:
    from polynext.circuit import lower

    return lower(small_network())


def of_encrypted(root: Path, name: str) -> tuple[bytes, Read]:
    """A file of encrypted inference, and what reads it."""
    folder = root / "client"

    def client(path: Path) -> object:
        for file in folder.iterdir():
            if file.name != path.name:
                (path.parent / file.name).write_bytes(file.read_bytes())
        return Client.load(path.parent)

    readers: dict[str, tuple[Path, Read]] = {
        "program": (root / "server" / "program.npz", load_program),
        "secret": (folder / "secret.key", client),
        "evaluation": (folder / "evaluation.keys", lambda path: Server.load(root / "server", path)),
        "request": (
            root / "request.enc",
            lambda path: Server.load(root / "server", folder / "evaluation.keys").answer_request(
                path, path.with_suffix(".answer")
            ),
        ),
        "answer": (root / "answer.enc", lambda path: Client.load(folder).read_answer(path)),
    }
    path, read = readers[name]
    return path.read_bytes(), read


def formats() -> dict[str, tuple[str, Callable[[], bytes], Read]]:
    """The name of a file, an intact one, and what reads it."""
    uint8 = {"dtype": np.uint8}
    pictures = {one["name"]: base64.b64decode(one["file"]) for one in stored("pictures")}
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    weights, metadata = shipped()
    return {
        "config": ("config.yaml", lambda: to_yaml(recipe("digits")).encode(), lambda p: read_config(p, TrainConfig)),
        "segmentation config": (
            "config.yaml",
            lambda: to_yaml(SegmentationConfig()).encode(),
            lambda p: read_config(p, SegmentationConfig),
        ),
        "safetensors": ("x.safetensors", lambda: safetensors.torch.save(weights, metadata), load_run),
        "state dict": (
            "x.pt",
            lambda: saved(polynext.create_model("cpolynext_nano").state_dict()),
            loaded_into_network,
        ),
        "state": ("x.pt", lambda: saved({"version": 2, "model": weights, "progress": {"step": 1}}), read_state),
        "npz": (
            "x.npz",
            lambda: arrays(test_x=np.zeros((4, 8, 8, 3), **uint8), test_y=np.arange(4), names=list("abcd")),
            first_image("folder"),
        ),
        "segmentation npz": (
            "x.npz",
            lambda: arrays(val_x=np.zeros((2, 8, 8, 3), **uint8), val_y=np.zeros((2, 8, 8), **uint8)),
            first_pair,
        ),
        "shard": ("val.tar", shard, first_image("webdataset")),
        "metrics": (
            "metrics.jsonl",
            lambda: b"".join(b'{"step": %d, "loss": 0.5}\n' % i for i in range(9)),
            lambda p: RunFolder(p.parent).forget_after(5),
        ),
        **{
            f"picture {name}": (name, lambda data=data: data, open_picture)  # type: ignore[misc]
            for name, data in pictures.items()
            if not name.startswith("turned-") or name in ("turned-6.jpg", "turned-6.webp", "turned-6.png")
        },
        "picture grey.tiff": ("x.tiff", lambda: encoded(grey, "TIFF"), open_picture),
        "picture grey.ppm": ("x.ppm", lambda: encoded(grey, "PPM"), open_picture),
    }


FORMATS = formats()
ENCRYPTED = ("program", "secret", "evaluation", "request", "answer")


def check(name: str, data: bytes, read: Read, folder: Path, cases: range) -> None:
    path = folder / name
    path.write_bytes(data)
    with warnings.catch_warnings(), time_limit():
        warnings.simplefilter("ignore")
        read(path)  # the intact file
        for case in cases:
            path.write_bytes(damaged(data, np.random.default_rng((case, len(name)))))
            signal.alarm(SECONDS)
            try:
                read(path)
            except PolyNeXtError as error:
                assert str(error)
            except Exception as error:
                raise AssertionError(f"case {case} of {name}") from error


@pytest.mark.parametrize("kind", FORMATS)
def test_some_damaged_files(kind: str, tmp_path: Path) -> None:
    name, make, read = FORMATS[kind]
    check(name, make(), read, tmp_path, range(12))


@pytest.mark.parametrize("kind", ENCRYPTED)
def test_some_damaged_files_of_encrypted_inference(kind: str, encrypted: Path, tmp_path: Path) -> None:
    data, read = of_encrypted(encrypted, kind)
    check("secret.key" if kind == "secret" else "file", data, read, tmp_path, range(12))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_many_damaged_files(kind: str, tmp_path: Path) -> None:
    name, make, read = FORMATS[kind]
    check(name, make(), read, tmp_path, range(12, 200))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCRYPTED)
def test_many_damaged_files_of_encrypted_inference(kind: str, encrypted: Path, tmp_path: Path) -> None:
    data, read = of_encrypted(encrypted, kind)
    check("secret.key" if kind == "secret" else "file", data, read, tmp_path, range(12, 200))


# Files that are well-formed and wrong


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB.encode(), "a config has no aliases"),
        (b"a: &a [*a]", "a config has no aliases"),
        (b"[" * 50_000, "cannot be read"),
        (b"epochs: 5\xff", "cannot be read"),
        (b"epochs: 2020-99-99", "cannot be read"),
        (b"x: 1\n" * 50_000, "has 250000 characters"),
        (b"model: 3", "model is 3"),
        (b"1: 2", "not a field in this version"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, text: bytes, message: str) -> None:
    with time_limit(), pytest.raises(PolyNeXtError, match=message):
        read_config(write(tmp_path / "config.yaml", text), TrainConfig)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.0, 1.0]), "labels float64"),
        (np.array([0.0, np.nan]), "labels float64"),
        (np.array(["a", "b"]), "labels <U1"),
        (np.array([0, 10**9]), "labels from 0 to 1000000000 but 1000000 classes"),
        (np.array([-1, 1]), "labels from -1"),
        (np.array([], dtype=np.int64), "has no images"),
        (np.array([[0], [1]]), r"labels int64 \(2, 1\)"),
        (np.array([0]), "for 1 labels"),
    ],
)
def test_labels_that_are_refused(tmp_path: Path, labels: np.ndarray, message: str) -> None:
    images = np.zeros((len(labels) if len(labels) != 1 else 2, 8, 8), np.uint8)
    path = write(tmp_path / "x.npz", arrays(test_x=images, test_y=labels))
    with time_limit(), pytest.raises(PolyNeXtError, match=message):
        load_examples(DataConfig(name="folder", root=path), "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w * torch.nan, "not finite stem.weight"),
        (lambda w: w / 0, "not finite stem.weight"),
        (lambda w: w.to(torch.int8), "of another type stem.weight torch.int8 instead of torch.float32"),
    ],
)
def test_weights_that_are_refused(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    weights, metadata = shipped()
    weights["stem.weight"] = change(weights["stem.weight"])
    path = write(tmp_path / "x.safetensors", safetensors.torch.save(weights, metadata))
    with pytest.raises(PolyNeXtError, match=message):
        load_run(path)


def test_a_network_that_is_larger_than_its_weights_is_never_built(tmp_path: Path) -> None:
    weights, metadata = shipped()
    config = recipe("digits")
    metadata["config"] = to_yaml(
        replace(config, model=replace(config.model, name="cpolynext_nano_bn", widths=(10**6,)))
    )
    path = write(tmp_path / "x.safetensors", safetensors.torch.save(weights, metadata))
    with time_limit(), pytest.raises(PolyNeXtError, match="do not fit"):
        load_run(path)


@pytest.mark.parametrize("name", ["cifar10", "timm:hfds/someone/something", "timm:torch/cifar10"])
def test_metadata_never_starts_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def download(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a download was started")

    monkeypatch.setattr("socket.socket.connect", download)
    monkeypatch.setattr("timm.data.create_dataset", download)
    monkeypatch.setattr("torchvision.datasets.CIFAR10.download", download)
    weights, metadata = shipped()
    config = recipe("digits")
    data = replace(config.data, name=name, download=True, root=tmp_path)
    model = replace(config.model, name="cpolynext_nano_bn", pretrained=True)
    metadata["config"] = to_yaml(replace(config, data=data, model=model))
    named = write(tmp_path / "named.safetensors", safetensors.torch.save(weights, metadata))
    run = load_run(named)
    assert not run.data.download and not run.data.name.startswith("timm:")
    with pytest.raises(PolyNeXtError, match="give"):
        run.images("test", 1)
    del metadata["classes"]
    unnamed = write(tmp_path / "unnamed.safetensors", safetensors.torch.save(weights, metadata))
    with pytest.raises(PolyNeXtError, match="give"):
        load_run(unnamed)


@pytest.mark.parametrize("classes", ["[", '"abc"', "[1, 2]", "[]", "null"])
def test_damaged_class_names_are_refused(tmp_path: Path, classes: str) -> None:
    weights, metadata = shipped()
    path = write(tmp_path / "x.safetensors", safetensors.torch.save(weights, metadata | {"classes": classes}))
    with pytest.raises(PolyNeXtError, match="damaged class names"):
        load_run(path)


def test_a_list_of_shards_that_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{", json.dumps({"splits": {"val": 3}})):
        write(tmp_path / "_info.json", text.encode())
        with pytest.raises(PolyNeXtError, match="the JSON file that timm writes"):
            load_examples(DataConfig(name="webdataset", root=tmp_path), "test")
