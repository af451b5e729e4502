"""`polynext encrypted`: clients and servers of encrypted inference."""

import json as jsonlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from PIL.Image import Image

from polynext.cli.commands import Command, Commands
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE, mebibytes
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError, require_at_least
from polynext.extras import require
from polynext.memory import peak_memory
from polynext.preprocessing import open_picture
from polynext.tables import table
from polynext.threads import cores

if TYPE_CHECKING:  # commands of clients and servers import neither the compiler nor torch
    from polynext.encrypted.compiler.demo import DemoResult
    from polynext.encrypted.compiler.limits import Limits
    from polynext.encrypted.compiler.planner import Plan
    from polynext.runs import Run


@dataclass(frozen=True)
class LimitOptions:
    """Limits of a plan. By default they are those of the network's training run (`encryption` in its config)."""

    memory: int | None = None
    """Megabytes of memory for the server's process."""
    key_memory: int | None = None
    """Megabytes of rotation keys."""
    error: float | None = None
    """Largest error of the logits, relative to the largest logit."""

    clients: Literal["any", "python"] | None = None
    """Clients to prepare for. any: also the browser page, and servers without polynext-native, with SEAL's keys.
    python: Python clients only, with hybrid keys, which are smaller and faster and need polynext-native on the server.
    Default: any."""

    def limits(self, run: "Run") -> "Limits":
        """A network's limits, replaced by those that are given."""
        from polynext.encrypted.compiler.prepare import limits_of

        own = limits_of(run)
        return replace(
            own,
            memory=own.memory if self.memory is None else self.memory * MEBIBYTE,
            keys=own.keys if self.key_memory is None else self.key_memory * MEBIBYTE,
            error=own.error if self.error is None else self.error,
            clients=self.clients or own.clients,
        )


Network = Annotated[str, tyro.conf.Positional]
LimitsArg = Annotated[LimitOptions, tyro.conf.OmitArgPrefixes]
ImageFiles = Annotated[list[Path], tyro.conf.Positional]
NO_LIMITS = LimitOptions()

NATIVE_HINT = (
    "The native extension is about three times as fast on one thread and uses all cores; it needs a C++ compiler: "
    "pip install ./native in a checkout."
)


def plan(network: Network, images: int = 1, limits: LimitsArg = NO_LIMITS, json: bool = False) -> None:
    """Estimate the cost of running a trained network encrypted on this machine, before any key is made.

    Args:
        network: run folder of a fully polynomial network, a file of its weights, or a shipped network: mnist, digits,
            cifar10.
        images: images per ciphertext.
        json: print JSON.
    """
    from polynext.encrypted.compiler.prepare import plan_run

    run = load_network(network)
    made = plan_run(run, images, limits.limits(run), progress=show_planning)
    if json:
        cost = {**made.cost.to_json(), "peak_bytes": made.cost.peak_bytes}
        print(jsonlib.dumps({"parameters": made.parameters.to_json(), "cost": cost}, indent=2))
    else:
        print_cost(made)


def prepare(
    network: Network,
    out: Path = Path("server"),
    images: int = 1,
    limits: LimitsArg = NO_LIMITS,
    samples: int = 0,
) -> None:
    """Server: compile a trained network into a server folder, with a client spec for clients.

    Args:
        network: run folder of a fully polynomial network, a file of its weights, or a shipped network: mnist, digits,
            cifar10.
        out: server folder. Its client_spec.json is for clients and contains no weights.
        images: images per ciphertext.
        samples: number of test images to copy. Everybody who opens the service's page can see and try them.
    """
    from polynext.encrypted.compiler.prepare import prepare as prepare_network
    from polynext.encrypted.compiler.prepare import save_samples
    from polynext.encrypted.server import SAMPLES

    run = load_network(network)
    made = prepare_network(run, images=images, limits=limits.limits(run), progress=show_planning)
    made.save(out)
    save_samples(run, out / SAMPLES, samples)
    print_cost(made.plan)
    print(f"\n{out / 'client_spec.json'} is for clients.")


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


def answer(
    request: Annotated[Path, tyro.conf.Positional],
    keys: Path,
    server: Path = Path("server"),
    out: Path = Path("answer.enc"),
    threads: int | None = None,
    processes: int | None = None,
) -> None:
    """Server: compute on a request, without being able to read it.

    Args:
        request: a client's request.
        keys: the client's evaluation.keys.
        server: server folder.
        out: answer for the client.
        threads: number of threads. They compute several ciphertexts at a time, or share one. Default: one per core.
        processes: deprecated name of --threads.
    """
    if processes is not None:
        print("polynext encrypted run: --processes is now --threads", file=sys.stderr)
    count = usable_threads(threads or processes)
    from polynext.encrypted.server import Server

    start = time.perf_counter()
    ready = Server.load(server, keys, count)
    loaded = time.perf_counter()
    ready.answer_request(request, out)
    took = time.perf_counter() - loaded
    print(
        f"{out}: answered in {took:.2f} s, after {loaded - start:.1f} s to load keys and encode weights, "
        f"with {mebibytes(peak_memory())} of memory"
    )


def decrypt(reply: Annotated[Path, tyro.conf.Positional], client: Path = Path("client"), json: bool = False) -> None:
    """Client: decrypt an answer, and print the class of each image.

    Args:
        reply: the server's answer.
        client: client folder.
        json: print JSON with all logits.
    """
    from polynext.encrypted.client import Client, OutOfRangeError

    loaded, out_of_range = Client.load(client), None
    try:
        logits = loaded.read_answer(reply)
    except OutOfRangeError as error:  # print the other images' classes first
        logits, out_of_range = error.logits, error
    classes = loaded.spec.classes
    print_answers([None if np.isnan(row).any() else classes[row.argmax()] for row in logits], logits, json)
    if out_of_range is not None:
        raise out_of_range


def serve(
    prepared: Annotated[list[str], tyro.conf.Positional] = [],  # noqa: B006  (tyro reads it as "none")
    host: str = "127.0.0.1",
    port: int = 8000,
    data: Path | None = None,
    workers: int | None = None,
    threads: int | None = None,
    queue: int = 100,
    jobs: int = 50,
    keys: int = 32,
    key_memory: int = 2048,
    key_days: float = 7.0,
    answer_minutes: float = 60.0,
    tokens: Path | None = None,
    cluster: str | None = None,
    page_origins: list[str] = [],  # noqa: B006  (tyro reads it as "none")
) -> None:
    """Server: serve networks over HTTP; the shipped MNIST network by default.

    Args:
        prepared: server folders, each served under the folder's name, or shipped networks: mnist, digits, cifar10.
        host: address to listen on. Use a TLS proxy to serve other machines.
        port: port to listen on; 0 chooses a free one.
        data: folder for keys, jobs and answers, which survive a restart; by default in the user's data folder.
        workers: ciphertexts to compute at a time; by default one per core.
        threads: threads for each ciphertext; by default one per core.
        queue: most jobs that may wait.
        jobs: most open jobs of one client.
        keys: most key sets of one client.
        key_memory: megabytes of memory for loaded keys.
        key_days: days that unused keys are kept.
        answer_minutes: minutes that an answer is kept.
        tokens: TOML file with a table [NAME] and token = "..." for each client; others are refused.
        cluster: address of a Ray cluster for the workers; "auto" finds one, "local" starts one here.
        page_origins: other origins, such as https://page.example.org, whose page may use this service.
    """
    import platformdirs

    from polynext.service import Settings, Tokens, load_networks
    from polynext.service import serve as serve_networks

    folders = [server_folder(name) for name in prepared or ["mnist"]]
    settings = Settings(
        queue=queue,
        jobs=jobs,
        keys=keys,
        workers=workers or cores(),
        threads=0 if threads is None else usable_threads(threads),
        key_memory=key_memory * MEBIBYTE,
        keys_seconds=key_days * 24 * 3600,
        answer_seconds=answer_minutes * 60,
        page_origins=tuple(page_origins),
    )
    allowed = None if tokens is None else Tokens.load(tokens, settings)
    data = data or platformdirs.user_data_path("polynext") / "service"
    serve_networks(load_networks(folders), data, host, port, settings, allowed, cluster)


def ask(
    url: Annotated[str, tyro.conf.Positional],
    images: ImageFiles = [],  # noqa: B006  (tyro reads it as "none")
    network: str | None = None,
    keys: Path | None = None,
    token: str | None = None,
    digits: int = 0,
    timeout: float = 600.0,
    json: bool = False,
    offer: str | None = None,
) -> None:
    """Client: classify images with a service that cannot see them. Keys are made and sent if needed.

    Args:
        url: address of the service, such as http://127.0.0.1:8000.
        images: image files, which are resized for the network.
        network: name of the network, if the service has several.
        keys: folder for the keys; by default in the user's data folder.
        token: token for the service; by default the environment variable POLYNEXT_TOKEN.
        digits: classify this many of the embedded test digits instead of files.
        timeout: seconds after which to give up.
        json: print JSON with all logits.
        offer: deprecated name of --network.
    """
    from polynext.encrypted.remote import connect

    if offer is not None:
        print("polynext encrypted ask: --offer is now --network", file=sys.stderr)
    check_inputs(images, digits)
    token = token or os.environ.get("POLYNEXT_TOKEN")
    client = connect(url, network or offer, keys, token, timeout=timeout)
    prediction = client.predict(test_digits(digits, client.client_spec()) if digits else images)
    print_answers(prediction.labels, prediction.logits, json)


def demo(
    network: Network = "mnist",
    images: int = 4,
    packed: int = 1,
    out: Path = Path("encrypted-demo"),
    limits: LimitsArg = NO_LIMITS,
    threads: int | None = None,
) -> None:
    """Encrypt test images, compute on them, decrypt, and compare with the network in the clear.

    Args:
        network: a shipped network, mnist, digits or cifar10, or the run folder of a fully polynomial network.
        images: number of test images.
        packed: images per ciphertext.
        out: folder for the client's and the server's files and the figure.
        threads: threads of the server. Default: one per core.
    """
    from polynext.encrypted.compiler.demo import draw_demo, make_demo_folders, run_demo
    from polynext.encrypted.compiler.prepare import prepare
    from polynext.encrypted.compiler.shipped import find_shipped, shipped_server
    from polynext.encrypted.server import load_client_spec

    require_at_least(1, images=images, packed=packed)
    count = usable_threads(threads)
    require("train", "matplotlib")
    make_demo_folders(out)
    run, server, shipped = load_network(network), out / "server", find_shipped(network)
    if shipped is not None and packed == 1 and limits == NO_LIMITS:
        shutil.copytree(shipped_server(shipped), server, dirs_exist_ok=True)
    else:
        prepare(run, images=packed, limits=limits.limits(run), progress=show_planning).save(server)
    spec = load_client_spec(server)
    print_cost(spec)
    result = run_demo(run, images, out, count)
    print_demo(result, spec, count)
    draw_demo(result, out / "demo.png")
    print(f"{out / 'demo.png'} shows the first image.")


def usable_threads(wanted: int | None) -> int:
    """The number of threads that a command asks for, by default one per core. SEAL has only one."""
    engine = get_backend("seal").engine
    if wanted is not None:
        require_at_least(1, threads=wanted)
        if wanted > 1 and not engine.threads:
            print(f"{engine.name.upper()} computes on one thread. {NATIVE_HINT}", file=sys.stderr)
    return (wanted or cores()) if engine.threads else 1


def load_network(name: str) -> "Run":
    """A shipped network, or one on disk."""
    from polynext.encrypted.compiler.shipped import find_shipped
    from polynext.runs import load_run

    shipped = find_shipped(name)
    return load_run(name) if shipped is None else shipped.load()


def server_folder(name: str) -> Path:
    """A server folder on disk, which needs no compiler, or that of a shipped network."""
    from polynext.encrypted.server import CLIENT_SPEC

    if (Path(name) / CLIENT_SPEC).is_file():
        return Path(name)
    from polynext.encrypted.compiler.shipped import find_shipped, is_prepared, shipped_server

    shipped = find_shipped(name)
    if shipped is None:
        return Path(name)
    if not is_prepared(shipped):
        print(f"Preparing the shipped network {name}, once, which takes up to a minute.", file=sys.stderr)
    return shipped_server(shipped)


class PlanningDisplay:
    """Shows what the planner does: on one line of a terminal, or on a new line every few seconds."""

    def __init__(self, every: float = 10.0):
        self.every, self.next = every, 0.0

    def __call__(self, what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
        elif what and time.monotonic() >= self.next:
            print(what, file=sys.stderr, flush=True)
            self.next = time.monotonic() + self.every


show_planning = PlanningDisplay()


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


def print_answers(names: Sequence[str | None], logits: np.ndarray, json: bool) -> None:
    """Print classes and logits. The class None is an image without an answer."""
    answers = [(name, None if name is None else row) for name, row in zip(names, logits, strict=True)]
    if json:
        print(jsonlib.dumps([{"class": n, "logits": None if row is None else row.tolist()} for n, row in answers]))
        return
    rows = [(str(i), n or "-", "-" if row is None else f"{row.max():.3f}") for i, (n, row) in enumerate(answers)]
    print(table(("image", "class", "logit"), rows, left=(1,)))


def print_demo(result: "DemoResult", spec: ClientSpec, threads: int) -> None:
    classes = result.classes
    rows = [
        (
            str(number),
            classes[image.label],
            classes[int(image.clear.argmax())],
            classes[int(image.encrypted.argmax())],
            f"{image.error:.1e}",
            f"{image.error / np.abs(image.clear).max():.1e}",
            f"{image.seconds:.2f}",
        )
        for number, image in enumerate(result.images)
    ]
    header = ("image", "label", "clear", "encrypted", "largest error", "of largest logit", "seconds")
    print("\n" + table(header, rows, left=()))
    print(
        f"\n{np.median(result.seconds):.2f} s per ciphertext (median of {len(result.seconds)}) on {threads} "
        f"thread{'s' * (threads > 1)}, predicted {spec.cost.seconds:.2f} s on one and "
        f"{spec.cost.seconds_on_two_cores:.2f} s on two. The server took {mebibytes(result.memory)} of memory, "
        f"predicted {mebibytes(spec.cost.peak_bytes)}."
    )


def print_cost(made: "Plan | ClientSpec") -> None:
    cost, parameters, images, backend = made.cost, made.parameters, made.images, get_backend(made.backend)
    rows = [
        ("images per ciphertext", str(images)),
        ("ring degree", f"2^{parameters.ring_degree.bit_length() - 1}"),
        ("modulus", f"{parameters.modulus_bits} bits in {len(parameters.prime_bits)} primes"),
        ("security", f"{backend.security.bits} bits" if backend.encrypts else "none: nothing is encrypted"),
        ("levels", str(cost.levels)),
        ("rotations", str(cost.rotations)),
        ("plaintext products", str(cost.plaintext_products)),
        ("ciphertext products", str(cost.ciphertext_products)),
        ("rotation keys", f"{cost.rotation_keys}, {mebibytes(cost.rotation_keys * parameters.key_bytes)}"),
        ("kind of keys", kind_of_keys(parameters)),
        ("encoded weights", mebibytes(cost.plaintext_bytes)),
        ("ciphertexts at most", mebibytes(cost.ciphertext_bytes)),
        ("server memory", mebibytes(cost.peak_bytes)),
        ("engine", backend.engine.name),
        ("predicted on one core", seconds(cost.seconds, images)),
        ("predicted on two cores", seconds(cost.seconds_on_two_cores, images)),
        ("largest error of logits", f"{cost.error:.0e} of the largest, which changes {cost.flips:.2%} of predictions"),
    ]
    print(table(("encrypted inference", ""), rows))
    if backend.encrypts and not backend.engine.threads:
        print(NATIVE_HINT)


def kind_of_keys(parameters: Parameters) -> str:
    if not parameters.hybrid_keys:
        return "SEAL's, for all clients"
    return f"hybrid, {parameters.special_primes} special primes, for Python clients"


def seconds(ciphertext: float, images: int) -> str:
    return f"{ciphertext:.2f} s" + (f", {ciphertext / images:.2f} s per image" if images > 1 else "")


HERE = "polynext.cli.encrypted"
commands = Commands(
    "polynext encrypted",
    "Run a fully polynomial network on encrypted images.",
    {
        "demo": Command("all steps below, on test images of a shipped network, with a figure", f"{HERE}:demo"),
        "design": Command("networks for photographs: what each takes encrypted, and learns", f"{HERE}_design:main"),
        "fit": Command("your own images: propose, train and prepare a network in a budget", f"{HERE}_fit:main"),
        "plan": Command("estimate what a trained network costs encrypted", f"{HERE}:plan"),
        "prepare": Command("server: compile a trained network, and write a client spec", f"{HERE}:prepare"),
        "keygen": Command("client: make keys for a client spec", f"{HERE}:keygen"),
        "encrypt": Command("client: encrypt images into a request", f"{HERE}:encrypt"),
        "run": Command("server: compute on a request", f"{HERE}:answer"),
        "decrypt": Command("client: decrypt an answer", f"{HERE}:decrypt"),
        "serve": Command("server: serve networks over HTTP; by default the MNIST network", f"{HERE}:serve"),
        "ask": Command("client: classify images with a service", f"{HERE}:ask"),
    },
)
