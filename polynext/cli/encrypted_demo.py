"""What `polynext encrypted demo` does and draws."""

import multiprocessing
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from polynext.cli.encrypted import print_cost
from polynext.cli.table import table
from polynext.encrypted.client import EVALUATION, Client
from polynext.encrypted.runtime.backends.protocol import Savable
from polynext.encrypted.runtime.cost import mebibytes
from polynext.encrypted.server import load_client_spec, serve
from polynext.errors import PolyNeXtError
from polynext.runs import Run

MARKER = ".polynext-encrypted-demo"


@dataclass(frozen=True)
class Answer:
    """One image: in the clear, encrypted, and what it took."""

    pixels: np.ndarray
    label: int
    clear: np.ndarray
    encrypted: np.ndarray
    seconds: float

    @property
    def error(self) -> float:
        return float(np.abs(self.clear - self.encrypted).max())


def make_folders(out: Path) -> None:
    """Empty folders for the demo. They replace those of an earlier one, but never what somebody else made."""
    folders = [out / name for name in ("client", "server", "requests", "answers")]
    for folder in folders:
        if folder.exists() and not (folder / MARKER).is_file():
            raise PolyNeXtError(f"{folder} is there already, and no demo made it: give --out another folder.")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        (folder / MARKER).touch()


def demonstrate(trained: Run, server: Path, images: int, out: Path) -> None:
    """The whole way from keys to decrypted logits, with the server in a process of its own and files in between.

    `out` has the folders that `make_folders` made.
    """
    spec = load_client_spec(server)
    print_cost(spec)
    packed = spec.images
    client = Client.keygen(spec, out / "client")

    prepared, labels, pixels = trained.images("test", images)
    starts = range(0, len(prepared), packed)
    requests = [out / "requests" / f"{start}.enc" for start in starts]
    for start, request in zip(starts, requests, strict=True):
        client.write_request(prepared[start : start + packed], request)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        took, memory = apart.submit(serve, server, out / "client" / EVALUATION, requests, out / "answers").result()
    logits = np.concatenate([client.read_answer(out / "answers" / request.name) for request in requests])
    with torch.no_grad():
        clear = trained.model.double()(torch.from_numpy(prepared)).numpy()
    seconds = np.repeat(took, packed)[: len(prepared)]
    answers = [Answer(*found) for found in zip(pixels, labels.tolist(), clear, logits, seconds.tolist(), strict=True)]
    print()
    print_answers(answers, trained.class_names)
    print(
        f"\n{np.median(took):.2f} s a ciphertext (median of {len(took)}), predicted {spec.cost.seconds:.2f} s. "
        f"The server took {mebibytes(memory)} of memory, predicted {mebibytes(spec.cost.peak_bytes)}."
    )
    (ciphertext,) = client.encrypt(prepared[:1])
    draw(answers[0], ciphertext_picture(ciphertext), trained.class_names, out / "demo.png")
    print(f"{out / 'demo.png'} shows the first one.")


def print_answers(answers: list[Answer], classes: list[str]) -> None:
    rows = [
        (
            str(i),
            classes[o.label],
            classes[int(o.clear.argmax())],
            classes[int(o.encrypted.argmax())],
            f"{o.error:.1e}",
            f"{o.error / np.abs(o.clear).max():.1e}",
            f"{o.seconds:.2f}",
        )
        for i, o in enumerate(answers)
    ]
    header = ("image", "label", "clear", "encrypted", "largest error", "of largest logit", "seconds")
    print(table(header, rows, left=()))


def ciphertext_picture(ciphertext: Savable) -> np.ndarray:
    """Some of a ciphertext's numbers, as it would look to whoever intercepts it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ciphertext"
        ciphertext.save(str(file))
        data = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    words = data[: len(data) // 8 * 8].reshape(-1, 8)
    some = words[len(words) // 2 :][: 64 * 64]  # far from what a file says of itself at its ends
    # The high bytes of a word are small, because primes are shorter than 64 bits.
    return some[:, some.std(axis=0).argmax()].reshape(64, 64)


def draw(answer: Answer, noise: np.ndarray, classes: list[str], path: Path) -> None:
    figure = Figure(figsize=(10, 3), layout="constrained")
    image, cipher, bars = figure.subplots(1, 3, width_ratios=(1, 1, 1.8))
    image.imshow(answer.pixels, cmap="gray")  # which colours have no use for
    image.set_title(f"the image: {classes[answer.label]}")
    cipher.imshow(noise, cmap="gray")
    cipher.set_title("what the server sees")
    for axes in (image, cipher):
        axes.set_xticks([])
        axes.set_yticks([])
    places = np.arange(len(classes))
    bars.bar(places - 0.2, answer.clear, 0.4, label="in the clear", color="#8da0cb")
    bars.bar(places + 0.2, answer.encrypted, 0.4, label="encrypted", color="#fc8d62")
    words = max(map(len, classes)) > 2
    bars.set_xticks(places, classes, rotation=30 if words else 0, ha="right" if words else "center")
    bars.set_title(f"logits, at most {answer.error:.0e} apart")
    bars.legend(frameon=False)
    bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
