"""`polynext encrypted`: a network that answers on ciphertexts, its client and its server."""

import json as jsonlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from PIL.Image import Image

from polynext.cli.commands import Command, Commands
from polynext.cli.table import table
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.compiler.planner import Limits, Plan
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE, mebibytes
from polynext.errors import PolyNeXtError, require_at_least
from polynext.memory import peak_memory
from polynext.preprocessing import Preprocessing, open_picture

if TYPE_CHECKING:
    from polynext.runs import Run

# Keys, requests and answers need no torch, and their commands do not import it: preparing does.


def plan(
    network: Annotated[str, tyro.conf.Positional],
    images: int = 1,
    memory: int | None = None,
    key_memory: int | None = None,
    error: float | None = None,
    json: bool = False,
) -> None:
    """Tell what running a trained network encrypted takes on this machine: levels, operations, keys, memory, seconds.

    Args:
        network: folder of a training run of a fully polynomial model, a file of its weights, or one of the networks in
            the package: digits, cifar10.
        images: how many go into one ciphertext.
        memory: megabytes that the server's process may take: 2048, unless a network of the package needs more.
        key_memory: megabytes that rotation keys may take: 300, unless a network of the package needs more.
        error: how far logits may be off, in units of the largest: 0.001, and 0.01 for cifar10.
        json: print JSON for programs.
    """
    from polynext.encrypted.compiler.prepare import plan_run

    made = plan_run(trained(network), images, limits(network, memory, key_memory, error))
    if json:
        print(
            jsonlib.dumps(
                {
                    "parameters": made.parameters.to_json(),
                    "cost": {**made.cost.to_json(), "peak_bytes": made.cost.peak_bytes},
                },
                indent=2,
            )
        )
    else:
        print_cost(made)


def prepare(
    network: Annotated[str, tyro.conf.Positional],
    out: Path = Path("server"),
    images: int = 1,
    memory: int | None = None,
    key_memory: int | None = None,
    error: float | None = None,
    samples: int = 0,
) -> None:
    """The server's first step: turn a trained network into a folder that can answer, and an offer for clients.

    Args:
        network: folder of a training run of a fully polynomial model, a file of its weights, or one of the networks in
            the package: digits, cifar10.
        out: the server's folder; its client_spec.json is for clients and holds no weights.
        images: how many go into one ciphertext.
        memory: megabytes that the server's process may take: 2048, unless a network of the package needs more.
        key_memory: megabytes that rotation keys may take: 300, unless a network of the package needs more.
        error: how far logits may be off, in units of the largest: 0.001, and 0.01 for cifar10.
        samples: so many test pictures go along, for everybody who opens the service's page to try.
    """
    from polynext.encrypted.compiler.prepare import prepare as prepare_server

    print_cost(prepare_server(trained(network), out, images, limits(network, memory, key_memory, error), samples))
    print(f"\n{out / 'client_spec.json'} is for clients.")


def keygen(spec: Annotated[Path, tyro.conf.Positional], out: Path = Path("client")) -> None:
    """The client's first step: make keys for a server's offer.

    Args:
        spec: the server's client_spec.json.
        out: the client's folder. secret.key stays there; evaluation.keys is for the server.
    """
    from polynext.encrypted.client import EVALUATION, SECRET, Client

    start = time.perf_counter()
    Client.keygen(ClientSpec.load(spec), out)
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
    prepared = prepared_pictures(images, digits, mine.spec.preprocessing)
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
        processes: how many, each on a core: they work on several ciphertexts at a time, or share the only one.
    """
    require_at_least(1, processes=processes)
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
    from polynext.encrypted.client import Client, OutOfRangeError

    mine, refused = Client.load(client), None
    try:
        logits = mine.read_answer(reply)
    except OutOfRangeError as error:  # the other images have their answers all the same
        logits, refused = error.logits, error
    print_answers([None if np.isnan(row).any() else mine.spec.classes[row.argmax()] for row in logits], logits, json)
    if refused is not None:
        raise refused


def print_answers(names: Sequence[str | None], logits: np.ndarray, json: bool) -> None:
    """`None` is the class of an image that has no answer."""
    answers = [(name, row if name is not None else None) for name, row in zip(names, logits, strict=True)]
    if json:
        print(jsonlib.dumps([{"class": n, "logits": None if row is None else row.tolist()} for n, row in answers]))
        return
    rows = [(str(i), n or "-", "-" if row is None else f"{row.max():.3f}") for i, (n, row) in enumerate(answers)]
    print(table(("image", "class", "logit"), rows, left=(1,)))


def serve(
    prepared: Annotated[list[str], tyro.conf.Positional] = [],  # noqa: B006  (tyro reads it as "none")
    host: str = "127.0.0.1",
    port: int = 8000,
    data: Path | None = None,
    workers: int | None = None,
    queue: int = 100,
    jobs: int = 50,
    keys: int = 32,
    key_memory: int = 2048,
    key_days: float = 7.0,
    answer_minutes: float = 60.0,
    tokens: Path | None = None,
    cluster: str | None = None,
) -> None:
    """Answer encrypted images over HTTP. Without arguments it offers the embedded digits network.

    Args:
        prepared: folders that `polynext encrypted prepare` wrote, each offered under its own name, or networks of the
            package: digits, cifar10.
        host: the address to listen at; leave it to a TLS proxy to listen for others.
        port: 0 takes a free one.
        data: folder for keys, jobs and answers, which survive a restart; one in the user's data folder by default.
        workers: ciphertexts to work on at a time; one for each core by default.
        queue: jobs that may wait.
        jobs: open jobs of one client.
        keys: key sets of one client.
        key_memory: megabytes for keys that are loaded.
        key_days: how long keys are kept unused.
        answer_minutes: how long an answer can be fetched.
        tokens: TOML file with a table for each client, [NAME] and token = "..."; nobody else is answered then.
        cluster: run the workers on the Ray cluster at this address; "auto" finds one, "local" starts one here.
    """
    import platformdirs

    from polynext.service import Settings, Tokens, load_networks
    from polynext.service import serve as serve_networks

    folders = [prepared_folder(name) for name in prepared or ["digits"]]
    settings = Settings(
        queue=queue,
        jobs=jobs,
        keys=keys,
        workers=workers or len(os.sched_getaffinity(0)),
        key_memory=key_memory * MEBIBYTE,
        keys_seconds=key_days * 24 * 3600,
        answer_seconds=answer_minutes * 60,
    )
    allowed = None if tokens is None else Tokens.load(tokens, settings)
    place = data or platformdirs.user_data_path("polynext") / "service"
    serve_networks(load_networks(folders), place, host, port, settings, allowed, cluster)


def prepared_folder(name: str) -> Path:
    """A server's folder, or the one of a network of the package."""
    from polynext.encrypted.compiler.shipped import find_shipped, shipped_server

    shipped = find_shipped(name)
    if shipped is None:
        return Path(name)
    print(f"Preparing the {name} network of the package: the first time up to a minute.", file=sys.stderr)
    return shipped_server(shipped)


def ask(
    url: Annotated[str, tyro.conf.Positional],
    images: Annotated[list[Path], tyro.conf.Positional] = [],  # noqa: B006  (tyro reads it as "none")
    network: str | None = None,
    keys: Path | None = None,
    token: str | None = None,
    digits: int = 0,
    timeout: float = 600.0,
    json: bool = False,
) -> None:
    """Ask a service about images that it cannot see. Keys are made, kept and sent as needed.

    Args:
        url: where the service is, such as http://127.0.0.1:8000.
        images: image files; they are resized to what the network takes.
        network: which of the service's networks to ask, if it has several.
        keys: folder for the keys; one in the user's data folder by default.
        token: if the service wants one; the environment variable POLYNEXT_TOKEN will do as well.
        digits: ask about the first so many of the embedded test digits instead of files.
        timeout: seconds after which to give up.
        json: print JSON with all logits.
    """
    from polynext.encrypted.remote import connect

    require_at_least(0, digits=digits)
    if bool(images) == bool(digits):
        raise PolyNeXtError("give image files to ask about, or --digits with how many embedded test digits.")
    client = connect(url, network, keys, token or os.environ.get("POLYNEXT_TOKEN"), timeout)
    answer = client.predict(test_digits(digits) if digits else images)
    print_answers(answer.labels, answer.logits, json)


def demo(
    network: Annotated[str, tyro.conf.Positional] = "digits",
    images: int = 4,
    packed: int = 1,
    out: Path = Path("encrypted-demo"),
    memory: int | None = None,
    key_memory: int | None = None,
    error: float | None = None,
) -> None:
    """Encrypt test images, answer them encrypted, and compare with the network in the clear.

    Args:
        network: digits or cifar10, which come with the package, or the run folder of a fully polynomial network.
        images: how many test images.
        packed: how many of them go into one ciphertext.
        out: folder for the client's and the server's files and the picture.
        memory: megabytes that the server's process may take: 2048, unless a network of the package needs more.
        key_memory: megabytes that rotation keys may take: 300, unless a network of the package needs more.
        error: how far logits may be off, in units of the largest: 0.001, and 0.01 for cifar10.
    """
    from polynext.cli.encrypted_demo import demonstrate, make_folders
    from polynext.encrypted.compiler.prepare import prepare
    from polynext.encrypted.compiler.shipped import find_shipped, shipped_server

    require_at_least(1, images=images, packed=packed)
    make_folders(out)
    run, server, shipped = trained(network), out / "server", find_shipped(network)
    if shipped is not None and packed == 1 and memory is key_memory is error is None:
        shutil.copytree(shipped_server(shipped), server, dirs_exist_ok=True)
    else:
        prepare(run, server, packed, limits(network, memory, key_memory, error))
    demonstrate(run, server, images, out)


def trained(network: str) -> "Run":
    """A network of the package by its short name, or any other that is on the disk."""
    from polynext.encrypted.compiler.shipped import find_shipped
    from polynext.runs import load_run

    shipped = find_shipped(network)
    return load_run(network) if shipped is None else shipped.load()


def limits(network: str, memory: int | None, key_memory: int | None, error: float | None) -> Limits:
    """A network's own, or everybody's, but for those that were given."""
    from polynext.encrypted.compiler.shipped import find_shipped

    shipped = find_shipped(network)
    own = Limits() if shipped is None else shipped.limits
    return replace(
        own,
        memory=own.memory if memory is None else memory * MEBIBYTE,
        keys=own.keys if key_memory is None else key_memory * MEBIBYTE,
        error=own.error if error is None else error,
    )


def prepared_pictures(paths: list[Path], digits: int, preprocessing: Preprocessing) -> np.ndarray:
    pictures = test_digits(digits) if digits else [open_picture(path) for path in paths]
    return np.stack([preprocessing(picture).astype(np.float64) for picture in pictures])


def test_digits(count: int) -> list[Image]:
    """The first of the embedded test digits."""
    from polynext.data import DataConfig, load_examples

    examples = load_examples(DataConfig(), "test")
    return [examples.image(i) for i in range(min(count, len(examples)))]


def print_cost(made: Plan | ClientSpec) -> None:
    print(table(("encrypted inference", ""), cost_rows(made)))


def cost_rows(made: Plan | ClientSpec) -> list[tuple[str, str]]:
    cost, parameters = made.cost, made.parameters
    images, backend = made.images, get_backend(made.backend)
    return [
        ("images in a ciphertext", str(images)),
        ("ring degree", f"2^{parameters.ring_degree.bit_length() - 1}"),
        ("modulus", f"{parameters.modulus_bits} bits in {len(parameters.prime_bits)} primes"),
        ("security", f"{backend.security.bits} bits" if backend.encrypts else "none: nothing is encrypted"),
        ("levels", str(cost.levels)),
        ("rotations", str(cost.rotations)),
        ("plaintext products", str(cost.plaintext_products)),
        ("ciphertext products", str(cost.ciphertext_products)),
        ("rotation keys", f"{cost.rotation_keys}, {mebibytes(cost.rotation_keys * parameters.key_bytes)}"),
        ("encoded weights", mebibytes(cost.plaintext_bytes)),
        ("ciphertexts at most", mebibytes(cost.ciphertext_bytes)),
        ("the server's memory", mebibytes(cost.peak_bytes)),
        ("predicted on one core", seconds(cost.seconds, images)),
        ("and on two", seconds(cost.seconds_on_two_cores, images)),
        ("logits off by at most", f"{cost.error:.0e} of the largest, which changes {cost.flips:.2%} of predictions"),
    ]


def seconds(ciphertext: float, images: int) -> str:
    return f"{ciphertext:.2f} s" + (f", {ciphertext / images:.2f} s an image" if images > 1 else "")


HERE = "polynext.cli.encrypted"
commands = Commands(
    "polynext encrypted",
    "Run a fully polynomial network on encrypted images.",
    {
        "demo": Command("everything below on digits or photographs of the package, with a picture", f"{HERE}:demo"),
        "design": Command("networks for photographs: what each takes encrypted, and learns", f"{HERE}_design:main"),
        "plan": Command("what a trained network takes encrypted, before any key is made", f"{HERE}:plan"),
        "prepare": Command("server: make a trained network ready, and an offer for clients", f"{HERE}:prepare"),
        "keygen": Command("client: make keys for an offer", f"{HERE}:keygen"),
        "encrypt": Command("client: encrypt images into a request", f"{HERE}:encrypt"),
        "run": Command("server: answer a request", f"{HERE}:answer"),
        "decrypt": Command("client: decrypt an answer", f"{HERE}:decrypt"),
        "serve": Command("server: answer over HTTP; the embedded digits without arguments", f"{HERE}:serve"),
        "ask": Command("client: ask a service about images", f"{HERE}:ask"),
    },
)
