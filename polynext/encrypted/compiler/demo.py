"""A demonstration on one machine: a client encrypts test images, a server in another process computes on them."""

import multiprocessing
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from polynext.arrays import Array
from polynext.encrypted.client import EVALUATION, Client
from polynext.encrypted.runtime.backends.protocol import Savable
from polynext.encrypted.server import answer_requests, load_client_spec
from polynext.errors import PolyNeXtError

if TYPE_CHECKING:
    from polynext.runs import Run

MARKER = ".polynext-encrypted-demo"


@dataclass(frozen=True)
class DemoImage:
    """An image, its label, its logits in the clear and encrypted, and the seconds of its ciphertext."""

    pixels: Array
    label: int
    clear: Array
    encrypted: Array
    seconds: float

    @property
    def error(self) -> float:
        return float(np.abs(self.clear - self.encrypted).max())


@dataclass(frozen=True)
class DemoResult:
    """All images, the seconds of each ciphertext, the server's peak memory, and bytes of a ciphertext as an image."""

    images: list[DemoImage]
    classes: list[str]
    seconds: list[float]
    memory: int
    noise: NDArray[np.uint8]


def make_demo_folders(out: Path) -> None:
    """Create empty folders for `run_demo`. They replace those of an earlier demo, but no other folders."""
    folders = [out / name for name in ("client", "server", "requests", "answers")]
    for folder in folders:
        if folder.exists() and not (folder / MARKER).is_file():
            raise PolyNeXtError(f"{folder} exists, and no demo created it: give another folder as --out.")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        (folder / MARKER).touch()


def run_demo(run: "Run", count: int, out: Path, threads: int = 1) -> DemoResult:
    """Make keys, encrypt test images, compute and decrypt, with files between client and server.

    `out` has the folders of `make_demo_folders`, and the prepared network in `server`, which has `threads` threads.
    """
    server, keys, answers = out / "server", out / "client" / EVALUATION, out / "answers"
    client = Client.keygen(load_client_spec(server), out / "client")
    packed = client.spec.images
    images, labels, pixels = run.images("test", count)
    requests = []
    for start in range(0, len(images), packed):
        requests.append(out / "requests" / f"{start}.enc")
        client.write_request(images[start : start + packed], requests[-1])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        took, memory = process.submit(answer_requests, server, keys, requests, answers, threads).result()
    encrypted = np.concatenate([client.read_answer(answers / request.name) for request in requests])
    with torch.no_grad():
        clear = run.model.double()(torch.from_numpy(images)).numpy()
    seconds = np.repeat(took, packed)[: len(images)].tolist()
    found = [DemoImage(*row) for row in zip(pixels, labels.tolist(), clear, encrypted, seconds, strict=True)]
    return DemoResult(found, run.class_names, took, memory, ciphertext_image(client.encrypt(images[:1])[0]))


def ciphertext_image(ciphertext: Savable) -> NDArray[np.uint8]:
    """Bytes of a ciphertext as 64 x 64 pixels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ciphertext"
        ciphertext.save(str(file))
        data = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    words = data[: len(data) // 8 * 8].reshape(-1, 8)
    some = words[len(words) // 2 :][: 64 * 64]  # far from the file's headers
    # Primes are shorter than 64 bits, so the high bytes of each word are small. Choose the byte that varies most.
    return some[:, some.std(axis=0).argmax()].reshape(64, 64)


def draw_demo(result: DemoResult, path: Path) -> None:
    """Draw the first image, its ciphertext and its logits."""
    from matplotlib.figure import Figure

    first, classes = result.images[0], result.classes
    figure = Figure(figsize=(10, 3), layout="constrained")
    image, cipher, bars = figure.subplots(1, 3, width_ratios=(1, 1, 1.8))
    image.imshow(first.pixels, cmap="gray")  # colour images ignore the colour map
    image.set_title(f"the image: {classes[first.label]}")
    cipher.imshow(result.noise, cmap="gray")
    cipher.set_title("what the server sees")
    for axes in (image, cipher):
        axes.set_xticks([])
        axes.set_yticks([])
    places = np.arange(len(classes))
    bars.bar(places - 0.2, first.clear, 0.4, label="in the clear", color="#8da0cb")
    bars.bar(places + 0.2, first.encrypted, 0.4, label="encrypted", color="#fc8d62")
    words = max(map(len, classes)) > 2
    bars.set_xticks(places, classes, rotation=30 if words else 0, ha="right" if words else "center")
    bars.set_title(f"logits, at most {first.error:.0e} apart")
    bars.legend(frameon=False)
    bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
