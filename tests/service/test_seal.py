"""Services with the SEAL backend: files of other versions, and what the server can learn from them."""

import re
import socket
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polynext.encrypted import connect, get_backend
from polynext.encrypted.client import SECRET
from polynext.encrypted.files import unpacked
from polynext.encrypted.runtime.backends import seal_files
from polynext.encrypted.runtime.backends.protocol import Part, Ring
from polynext.encrypted.runtime.backends.seal import own_version
from polynext.encrypted.runtime.backends.seal_files import zstd
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError
from tests.encrypted.conftest import logits, promised
from tests.service.conftest import PATIENCE, Start, saved

PARTS = [Part("relinearisation"), Part("rotation", 1), Part("ciphertext")]


@pytest.fixture(scope="module")
def ring() -> Ring:
    return get_backend("seal").ring(Parameters(2**13, (40, 40, 50, 50), 36, 20, 40, 36))


@pytest.fixture(scope="module")
def secret(ring: Ring) -> Any:
    return ring.generate_key()


@pytest.fixture(scope="module")
def files(ring: Ring, secret: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file of each kind, as SEAL writes them."""
    folder, keys = tmp_path_factory.mktemp("seal"), secret.sendable_keys([1, 2])
    made = {
        "relinearisation": keys.relinearisation,
        "rotation-1": keys.rotations[1],
        "rotation-2": keys.rotations[2],
        "ciphertext": secret.encrypt(np.sin(np.arange(ring.parameters.slots))),
        "secret": secret,
        "full": secret.evaluation_keys([1]).rotations[1],
    }
    for name, part in made.items():
        (folder / name).write_bytes(saved(part))
    return {name: folder / name for name in made}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
@pytest.mark.parametrize("compression", [seal_files.PLAIN, seal_files.ZLIB, seal_files.ZSTD])
def test_files_of_another_version_are_read(
    ring: Ring, secret: Any, files: dict[str, Path], part: Part, compression: int, tmp_path: Path
) -> None:
    """A browser's SEAL has version 4.1. It may use any compression."""
    other = (4, own_version()[1] ^ 2)
    expected: Any = ring
    seal_files.rewrite(files[part.name], tmp_path / "plain", expected.expected(part), other)
    body = (tmp_path / "plain").read_bytes()[16:]
    packed = (body, zlib.compress(body), zstd.compress(body))[compression]
    header = seal_files.Header(other, compression, len(packed) + 16)
    (tmp_path / "foreign").write_bytes(header.pack() + packed)
    with pytest.raises((PolyNeXtError, RuntimeError)):  # SEAL itself refuses it
        load(ring, part, tmp_path / "foreign")
    assert ring.receive(tmp_path / "foreign", tmp_path / "own", part) == f"SEAL 4.{other[1]}"
    assert (tmp_path / "own").stat().st_size <= ring.most_bytes(part)
    loaded = load(ring, part, tmp_path / "own")
    if part.kind == "ciphertext":
        np.testing.assert_allclose(secret.decrypt(loaded), np.sin(np.arange(ring.parameters.slots)), atol=1e-6)


def load(ring: Ring, part: Part, path: Path) -> Any:
    if part.kind == "ciphertext":
        return ring.load_ciphertext(path, 0, ring.parameters.input_scale)
    loader: Any = ring
    from polynext.encrypted.runtime.backends.seal import seal

    empty = seal.GaloisKeys() if part.kind == "rotation" else seal.RelinKeys()
    return loader.load(empty, "a key", path, loader.key_context)


def header_with(version: tuple[int, int] = (4, 3), compression: int = 0, length: int = 16) -> bytes:
    return seal_files.Header(version, compression, length).pack()


def test_other_files_are_refused(ring: Ring, files: dict[str, Path], tmp_path: Path) -> None:
    def refused(data: bytes, part: Part, why: str) -> None:
        (tmp_path / "part").write_bytes(data)
        with pytest.raises(
            PolyNeXtError, match=f"part is not a .* for these parameters \\(.*{why}.*\\): make it again"
        ):
            ring.receive(tmp_path / "part", tmp_path / "out", part)

    relinearisation, rotation, ciphertext = PARTS
    assert ring.receive(files["full"], tmp_path / "out", rotation)
    refused(files["rotation-2"].read_bytes(), rotation, "another rotation")
    refused(files["secret"].read_bytes(), ciphertext, "other parameters|another level")
    refused(files["secret"].read_bytes(), relinearisation, "another kind of key")
    refused(files["ciphertext"].read_bytes(), relinearisation, "other parameters")
    refused(files["ciphertext"].read_bytes()[:-1], ciphertext, "longer or shorter than its header says")
    refused(b"GIF89a" * 10, ciphertext, "not a SEAL file")
    refused(b"", ciphertext, "cut short")
    refused(header_with((3, 7)), ciphertext, "SEAL 3.7")
    refused(header_with(compression=9), ciphertext, "unknown")
    for compression, compress in ((seal_files.ZLIB, zlib.compress), (seal_files.ZSTD, zstd.compress)):
        bomb = compress(bytes(2**26))
        refused(header_with(compression=compression, length=16 + len(bomb)) + bomb, ciphertext, "longer than such")
        refused(header_with(compression=compression, length=17) + b"x", ciphertext, "damaged|cut short")
    ring.receive(files["ciphertext"], tmp_path / "plain", ciphertext)
    plain = (tmp_path / "plain").read_bytes()
    longer = struct.pack("<Q", len(plain) + 8)
    refused(plain[:8] + longer + plain[16:] + bytes(8), ciphertext, "longer than such a part|followed by other data")


def test_the_server_learns_neither_key_nor_pixels(
    start: Start, seal_folder: Path, trained: Any, examples: np.ndarray, tmp_path: Path
) -> None:
    running = start(seal_folder)
    with Recorder(running.url) as recorder:
        client = connect(recorder.url, keys=tmp_path / "keys", progress=lambda what, share: None, timeout=PATIENCE)
        result = client.predict(examples[:2])
    wanted = logits(trained, examples[:2])
    assert client.client is not None
    assert np.abs(result.logits - wanted).max() < promised(client.client.spec.cost)
    with unpacked(tmp_path / "keys" / SECRET, ["secret"]) as parts:
        packed = parts["secret"].read_bytes()
        secret = zstd.ZstdDecompressor().decompress(packed[16:])
    slots = client.client.spec.pack(examples[:1])
    private = [packed[64:128], secret[64 + 48 : 192], slots.tobytes()[:64], examples[0].tobytes()[:64]]
    private += [examples[0].astype(np.float32).tobytes()[:32], repr(float(examples[0].flat[0])).encode()]
    on_disk = b"".join(path.read_bytes() for path in running.data.rglob("*") if path.is_file())
    assert len(recorder.traffic) > 10**6 and len(on_disk) > 10**6
    assert not any(piece in seen for piece in private for seen in (bytes(recorder.traffic), on_disk))


class Recorder:
    """A proxy that records all traffic."""

    def __init__(self, target: str):
        host, _, port = target.removeprefix("http://").partition(":")
        self.target, self.traffic = (host, int(port)), bytearray()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.sockets = [self.server]

    def __enter__(self) -> "Recorder":
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def accept(self) -> None:
        while True:
            try:
                ours, _ = self.server.accept()
            except OSError:
                return
            theirs = socket.create_connection(self.target)
            self.sockets += [ours, theirs]
            for pair in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(2**16):
                self.traffic += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        for one in self.sockets:
            one.close()


@pytest.mark.slow
def test_the_embedded_network_answers_encrypted_digits(start: Start, tmp_path: Path) -> None:
    """The default network of `polynext encrypted serve`."""
    from polynext.data import load_examples
    from polynext.encrypted.compiler.shipped import MNIST, shipped_server

    running = start(shipped_server())
    trained = MNIST.load()
    digits = load_examples(trained.data, "test")
    client = connect(running.url, keys=tmp_path / "keys", progress=lambda what, share: None, timeout=2 * PATIENCE)
    result = client.predict([digits.image(i) for i in range(4)])
    images = np.stack([trained.preprocessing(digits.image(i)).astype(np.float64) for i in range(4)])
    wanted = logits(trained.model, images)
    assert client.client is not None
    assert np.abs(result.logits - wanted).max() < promised(client.client.spec.cost)
    assert result.labels == tuple(str(label) for label in wanted.argmax(axis=1))


def test_the_documented_example_runs(
    start: Start,
    seal_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Image.new("L", (4, 4), 200).save("picture.png")
    example = re.search(r'<code id="python">(.*?)</code>', start(seal_folder).http().get("/docs").text, re.DOTALL)
    assert example is not None
    exec(example[1], {})
    assert capsys.readouterr().out in [f"('{name}',)\n" for name in "abc"]
