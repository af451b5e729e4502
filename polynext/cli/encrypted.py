"""`polynext encrypted`: a network that answers on ciphertexts, its client and its server."""

import json as jsonlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from polynext.cli.table import table
from polynext.encrypted.offer import Offer
from polynext.encrypted.planner import MEBIBYTE, Limits, Plan, make_plan, mebibytes
from polynext.errors import PolyNeXtError, require_at_least
from polynext.memory import peak_memory

# Keys, requests and answers need no torch, and their commands do not import it: preparing does.
if TYPE_CHECKING:
    from polynext.cli.runs import Run

# As many training images as the ranges of the values inside the network are estimated from.
EXAMPLES = 256

DIGITS_RUN = Path("runs/encrypted-digits")


def plan(
    run: Annotated[Path, tyro.conf.Positional],
    images: int = 1,
    memory: int = 2048,
    key_memory: int = 300,
    json: bool = False,
) -> None:
    """Tell what running a trained network encrypted takes on this machine: levels, operations, keys, memory, seconds.

    Args:
        run: folder of a finished training run of a fully polynomial model.
        images: how many go into one ciphertext.
        memory: megabytes that the server's process may take.
        key_memory: megabytes that rotation keys may take.
        json: print JSON for programs.
    """
    from polynext.cli.runs import load_run

    made = plan_for(load_run(run), images, memory, key_memory)
    if json:
        print(
            jsonlib.dumps(
                {
                    "parameters": made.parameters.to_json(),
                    "bill": {**made.bill.to_json(), "peak_bytes": made.bill.peak_bytes},
                },
                indent=2,
            )
        )
    else:
        print_bill(made)


def prepare(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path = Path("server"),
    images: int = 1,
    memory: int = 2048,
    key_memory: int = 300,
) -> None:
    """The server's first step: turn a trained network into a folder that can answer, and an offer for clients.

    Args:
        run: folder of a finished training run of a fully polynomial model.
        out: the server's folder; its offer.json is for clients and holds no weights.
        images: how many go into one ciphertext.
        memory: megabytes that the server's process may take.
        key_memory: megabytes that rotation keys may take.
    """
    from polynext.cli.runs import load_run
    from polynext.encrypted.server import save_server

    trained = load_run(run)
    made = plan_for(trained, images, memory, key_memory)
    save_server(made, offer_for(made, trained), out)
    print_bill(made)
    print(f"\n{out / 'offer.json'} is for clients.")


def keygen(offer: Annotated[Path, tyro.conf.Positional], out: Path = Path("client")) -> None:
    """The client's first step: make keys for a server's offer.

    Args:
        offer: the server's offer.json.
        out: the client's folder. secret.key stays there; evaluation.keys is for the server.
    """
    from polynext.encrypted.client import EVALUATION, SECRET, Client

    start = time.perf_counter()
    Client.keygen(Offer.load(offer), out)
    size = (out / EVALUATION).stat().st_size
    print(f"{out / SECRET} stays with you; send {out / EVALUATION} ({mebibytes(size)}) to the server.")
    print(f"{time.perf_counter() - start:.1f} s")


def encrypt(
    images: Annotated[list[Path], tyro.conf.Positional] = [],  # noqa: B006  (tyro reads it as "none")
    client: Path = Path("client"),
    out: Path = Path("request.enc"),
    digits: int = 0,
) -> None:
    """Encrypt images into a request.

    Args:
        images: image files; they are resized to what the network takes.
        client: the client's folder.
        out: the request to send to the server.
        digits: encrypt the first so many of the embedded test digits instead of files.
    """
    from polynext.encrypted.client import Client

    require_at_least(0, digits=digits)
    if bool(images) == bool(digits):
        raise PolyNeXtError("give image files to encrypt, or --digits with how many embedded test digits.")
    mine = Client.load(client)
    prepared = normalised(images, digits, mine.offer)
    mine.write_request(prepared, out)
    print(f"{out}: {len(prepared)} images in {mebibytes(out.stat().st_size)}")


def answer(
    request: Annotated[Path, tyro.conf.Positional],
    keys: Path,
    server: Path = Path("server"),
    out: Path = Path("answer.enc"),
    processes: int = 1,
) -> None:
    """Answer a request without being able to read it.

    Args:
        request: what a client's `encrypt` wrote.
        keys: the client's evaluation.keys.
        server: the server's folder.
        out: the answer to send back.
        processes: how many ciphertexts to work on at a time.
    """
    from polynext.encrypted.server import Server

    start = time.perf_counter()
    ready = Server.load(server, keys)
    loaded = time.perf_counter()
    ready.answer_request(request, out, processes)
    took = time.perf_counter() - loaded
    print(
        f"{out}: answered in {took:.2f} s, after {loaded - start:.1f} s to load keys and encode weights, "
        f"with {mebibytes(peak_memory())} of memory"
    )


def decrypt(reply: Annotated[Path, tyro.conf.Positional], client: Path = Path("client"), json: bool = False) -> None:
    """Decrypt an answer: a class for each image.

    Args:
        reply: what the server's `run` wrote.
        client: the client's folder.
        json: print JSON with all logits.
    """
    from polynext.encrypted.client import Client

    mine = Client.load(client)
    logits = mine.read_answer(reply)
    names = [mine.offer.classes[i] for i in logits.argmax(axis=1)]
    if json:
        print(jsonlib.dumps([{"class": n, "logits": row.tolist()} for n, row in zip(names, logits, strict=True)]))
        return
    print(
        table(
            ("image", "class", "logit"),
            [(str(i), n, f"{row.max():.3f}") for i, (n, row) in enumerate(zip(names, logits, strict=True))],
            left=(1,),
        )
    )


def demo(
    images: int = 8,
    packed: int = 1,
    trained: Path = DIGITS_RUN,
    out: Path = Path("encrypted-demo"),
    memory: int = 2048,
    key_memory: int = 300,
) -> None:
    """Encrypt test digits, answer them encrypted, and compare with the network in the clear.

    Args:
        images: how many test digits.
        packed: how many of them go into one ciphertext.
        trained: run folder of a fully polynomial network; trained there on the digits first if it does not exist.
        out: folder for the client's and the server's files and the picture.
        memory: megabytes that the server's process may take.
        key_memory: megabytes that rotation keys may take.
    """
    from polynext.cli.encrypted_demo import demonstrate, make_folders
    from polynext.cli.runs import load_run
    from polynext.training.folder import RunFolder

    require_at_least(1, images=images)
    make_folders(out)
    if not trained.exists() or (trained == DIGITS_RUN and not RunFolder(trained).finished()):
        train_digits(trained)
    run = load_run(trained)
    demonstrate(run, plan_for(run, packed, memory, key_memory), images, out)


def train_digits(folder: Path) -> None:
    from polynext.recipes import recipe
    from polynext.training import Interrupted, train

    print(f"There is no trained network in {folder} yet: cpolynext_nano_bn learns the embedded digits first.")
    config = recipe("digits")
    try:
        train(replace(config, model=replace(config.model, name="cpolynext_nano_bn")), folder, resume=folder.exists())
    except Interrupted as stop:
        print(f"polynext encrypted: {stop}", file=sys.stderr)
        raise SystemExit(stop.exit_status) from None


def plan_for(trained: "Run", images: int, memory: int, key_memory: int) -> Plan:
    require_at_least(1, images=images)
    from polynext.circuit.lowering import lower

    examples, _, _ = trained.images("train", EXAMPLES)
    limits = Limits(memory=memory * MEBIBYTE, keys=key_memory * MEBIBYTE)
    return make_plan(lower(trained.model), examples, images, limits)


def offer_for(made: Plan, trained: "Run") -> Offer:
    data = trained.config.data
    return Offer.of(made, data.mean, data.std, tuple(trained.classes))


def normalised(paths: list[Path], digits: int, offer: Offer) -> np.ndarray:
    from polynext.data import DataConfig, load_examples
    from polynext.data.images import open_picture
    from polynext.data.transforms import evaluation_transform

    side = offer.image_shape[-1]
    data = DataConfig(image_size=side, evaluation_resize=side, mean=offer.mean, std=offer.std)
    transform = evaluation_transform(data)
    if digits:
        examples = load_examples(data, "test")
        pictures = [examples.image(i) for i in range(min(digits, len(examples)))]
    else:
        pictures = [open_picture(path) for path in paths]
    return np.stack([transform(picture).double().numpy() for picture in pictures])


def print_bill(made: Plan) -> None:
    print(table(("encrypted inference", ""), bill_rows(made)))


def bill_rows(made: Plan) -> list[tuple[str, str]]:
    bill, parameters = made.bill, made.parameters
    images = made.packing.images
    return [
        ("images in a ciphertext", str(images)),
        ("ring degree", f"2^{parameters.ring_degree.bit_length() - 1}"),
        ("modulus", f"{parameters.modulus_bits} bits in {len(parameters.prime_bits)} primes"),
        ("security", "128 bits"),
        ("levels", str(bill.levels)),
        ("rotations", str(bill.rotations)),
        ("plaintext products", str(bill.plaintext_products)),
        ("ciphertext products", str(bill.ciphertext_products)),
        ("rotation keys", f"{bill.rotation_keys}, {mebibytes(bill.rotation_keys * parameters.key_bytes)}"),
        ("encoded weights", mebibytes(bill.plaintext_bytes)),
        ("ciphertexts at most", mebibytes(bill.ciphertext_bytes)),
        ("the server's memory", mebibytes(bill.peak_bytes)),
        (
            "predicted on one core",
            f"{bill.seconds:.2f} s" + (f", {bill.seconds / images:.2f} s an image" if images > 1 else ""),
        ),
    ]


SUBCOMMANDS: dict[str, Callable[..., Any]] = {
    "plan": plan,
    "prepare": prepare,
    "keygen": keygen,
    "encrypt": encrypt,
    "run": answer,
    "decrypt": decrypt,
    "demo": demo,
}

USAGE = """usage: polynext encrypted COMMAND [OPTIONS]

Run a fully polynomial network on encrypted images.

  demo     everything below on the embedded digits, with a picture
  plan     what a trained network takes encrypted, before any key is made
  prepare  server: make a trained network ready, and an offer for clients
  keygen   client: make keys for an offer
  encrypt  client: encrypt images into a request
  run      server: answer a request
  decrypt  client: decrypt an answer

polynext encrypted COMMAND --help tells what a command takes."""


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, *rest = arguments
    if name not in SUBCOMMANDS:
        print(f"polynext encrypted: there is no {name!r}: choose one of {', '.join(SUBCOMMANDS)}.", file=sys.stderr)
        return 2
    tyro.cli(SUBCOMMANDS[name], prog=f"polynext encrypted {name}", args=rest)
    return 0
