"""From a trained network to its cost and its server folder: `polynext encrypted plan`, `prepare` and `demo`."""

import json as jsonlib
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from polynext.cli.encrypted.server import NATIVE_HINT, usable_threads
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE, mebibytes
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import require_at_least
from polynext.extras import require
from polynext.tables import table

if TYPE_CHECKING:  # --help needs no torch
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
NO_LIMITS = LimitOptions()


def plan(network: Network, packed: int = 1, limits: LimitsArg = NO_LIMITS, json: bool = False) -> None:
    """Estimate the cost of running a trained network encrypted on this machine, before any key is made.

    Args:
        network: folder of a training run of a fully polynomial network, a weights file, or a shipped network: mnist,
            digits, cifar10, cifar10-deep.
        packed: images per ciphertext.
        json: print JSON.
    """
    from polynext.encrypted.compiler.prepare import plan_run
    from polynext.runs import load_run

    run = load_run(network)
    made = plan_run(run, packed, limits.limits(run), progress=show_planning)
    if json:
        cost = {**made.cost.to_json(), "peak_bytes": made.cost.peak_bytes}
        print(jsonlib.dumps({"parameters": made.parameters.to_json(), "cost": cost}, indent=2))
    else:
        print_cost(made)


def prepare(
    network: Network,
    out: Path = Path("server"),
    packed: int = 1,
    limits: LimitsArg = NO_LIMITS,
    samples: int = 0,
) -> None:
    """Server: compile a trained network into a server folder, with a client spec for clients.

    Args:
        network: folder of a training run of a fully polynomial network, a weights file, or a shipped network: mnist,
            digits, cifar10, cifar10-deep.
        out: server folder. Its client_spec.json is for clients and contains no weights.
        packed: images per ciphertext.
        samples: number of test images to copy. Everybody who opens the service's page can see and try them.
    """
    from polynext.encrypted.compiler.prepare import prepare as prepare_network
    from polynext.encrypted.compiler.prepare import save_samples
    from polynext.encrypted.server import SAMPLES
    from polynext.runs import load_run

    run = load_run(network)
    made = prepare_network(run, images=packed, limits=limits.limits(run), progress=show_planning)
    made.save(out)
    save_samples(run, out / SAMPLES, samples)
    print_cost(made.plan)
    print(f"\n{out / 'client_spec.json'} is for clients.")


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
        network: a shipped network, mnist, digits, cifar10 or cifar10-deep, or the folder of a training run of a
            fully polynomial network.
        images: number of test images.
        packed: images per ciphertext.
        out: folder for the client's and the server's files and the figure.
        threads: threads of the server. Default: one per core.
    """
    from polynext.encrypted.compiler.demo import draw_demo, make_demo_folders, run_demo
    from polynext.encrypted.compiler.prepare import prepare
    from polynext.encrypted.compiler.shipped import find_shipped, shipped_server
    from polynext.encrypted.server import load_client_spec
    from polynext.runs import load_run

    require_at_least(1, images=images, packed=packed)
    count = usable_threads(threads)
    require("train", "matplotlib")
    make_demo_folders(out)
    run, server, shipped = load_run(network), out / "server", find_shipped(network)
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
