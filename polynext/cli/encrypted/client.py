"""The client's commands: `polynext encrypted keygen`, `encrypt`, `decrypt` and `ask`."""

import json as jsonlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from PIL.Image import Image

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.runtime.cost import mebibytes
from polynext.errors import PolyNeXtError, require_at_least
from polynext.preprocessing import open_picture
from polynext.tables import table

ImageFiles = Annotated[list[Path], tyro.conf.Positional]


def keygen(spec: Annotated[Path, tyro.conf.Positional], out: Path = Path("client")) -> None:
    """Client: make keys for a client spec.

    Args:
        spec: the server's client_spec.json.
        out: client folder. secret.key stays there; evaluation.keys is for the server.
    """
    from polynext.encrypted.client import EVALUATION, SECRET, Client

    start = time.perf_counter()
    Client.keygen(ClientSpec.load(spec), out)
    size = (out / EVALUATION).stat().st_size
    print(f"Keep {out / SECRET} to yourself; send {out / EVALUATION} ({mebibytes(size)}) to the server.")
    print(f"{time.perf_counter() - start:.1f} s")


def encrypt(
    images: ImageFiles = [],  # noqa: B006  (tyro reads it as "none")
    client: Path = Path("client"),
    out: Path = Path("request.enc"),
    digits: int = 0,
) -> None:
    """Client: encrypt images into a request.

    Args:
        images: image files, which are resized for the network.
        client: client folder.
        out: request for the server.
        digits: encrypt this many of the embedded test digits instead of files.
    """
    from polynext.encrypted.client import Client

    check_inputs(images, digits)
    loaded = Client.load(client)
    opened = test_digits(digits, loaded.spec) if digits else [open_picture(path) for path in images]
    prepared = np.stack([loaded.spec.preprocessing(image).astype(np.float64) for image in opened])
    loaded.write_request(prepared, out)
    print(f"{out}: {len(prepared)} images in {mebibytes(out.stat().st_size)}")


def decrypt(reply: Annotated[Path, tyro.conf.Positional], client: Path = Path("client"), json: bool = False) -> None:
    """Client: decrypt an answer, and print the class of each image.

    Args:
        reply: the server's answer.
        client: client folder.
        json: print JSON with all logits.
    """
    from polynext.encrypted.client import Client

    loaded = Client.load(client)
    print_answers(lambda: loaded.read_answer(reply), loaded.spec.classes, json)


def ask(
    url: Annotated[str, tyro.conf.Positional],
    images: ImageFiles = [],  # noqa: B006  (tyro reads it as "none")
    network: str | None = None,
    keys: Path | None = None,
    token: str | None = None,
    digits: int = 0,
    timeout: float = 600.0,
    json: bool = False,
) -> int:
    """Client: classify images with a service that cannot see them. Keys are made and sent if needed.

    The exit status is 1 if an image could not be read.

    Args:
        url: address of the service, such as http://127.0.0.1:8000.
        images: image files, which are resized for the network.
        network: name of the network, if the service has several.
        keys: folder for the keys; by default in the user's data folder.
        token: token for the service; by default the environment variable POLYNEXT_TOKEN.
        digits: classify this many of the embedded test digits instead of files.
        timeout: seconds after which to give up.
        json: print JSON with all logits.
    """
    from polynext.encrypted.remote import connect

    check_inputs(images, digits)
    client = connect(url, network, keys, token or os.environ.get("POLYNEXT_TOKEN"), timeout=timeout)
    opened = list(readable(images))
    if images and not opened:
        return 1
    spec = client.client_spec()
    asked = test_digits(digits, spec) if digits else [image for _, image in opened]
    print_answers(lambda: client.predict(asked).logits, spec.classes, json, [str(path) for path, _ in opened])
    return int(len(opened) < len(images))


def readable(files: Sequence[Path]) -> Iterator[tuple[Path, Image]]:
    """The files that are images. The others are reported."""
    for file in files:
        try:
            yield file, open_picture(file)
        except PolyNeXtError as error:
            print(f"polynext encrypted ask: {error}", file=sys.stderr)


def check_inputs(images: Sequence[Path], digits: int) -> None:
    require_at_least(0, digits=digits)
    if bool(images) == bool(digits):
        raise PolyNeXtError("give image files, or --digits with a number of embedded test digits.")


def test_digits(count: int, spec: ClientSpec) -> list[Image]:
    """The first of the embedded test digits: of MNIST for a network of drawings, of scikit-learn for others."""
    from polynext.data import DataConfig, load_examples

    name = "mnist-drawings-sample" if spec.preprocessing.crop == "drawing" else "digits"
    examples = load_examples(DataConfig(name=name), "test")
    return [examples.image(i) for i in range(min(count, len(examples)))]


def print_answers(
    answer: Callable[[], np.ndarray], classes: Sequence[str], json: bool, images: Sequence[str] = ()
) -> None:
    """Prints the class and logits of each image. If some are out of range, prints the others before the error."""
    from polynext.encrypted.client import OutOfRangeError

    out_of_range = None
    try:
        logits = answer()
    except OutOfRangeError as error:
        logits, out_of_range = error.logits, error
    records: list[dict[str, Any]] = []
    for image, row in zip(images or map(str, range(len(logits))), logits, strict=True):
        known = not np.isnan(row).any()
        found = classes[row.argmax()] if known else None
        records.append({"image": image, "class": found, "logits": row.tolist() if known else None})
    if json:
        print(jsonlib.dumps(records))
    else:
        rows = [(r["image"], r["class"] or "-", f"{max(r['logits']):.3f}" if r["logits"] else "-") for r in records]
        print(table(("image", "class", "logit"), rows, left=(0, 1)))
    if out_of_range is not None:
        raise out_of_range
