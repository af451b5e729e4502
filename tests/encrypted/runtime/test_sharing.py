"""One ciphertext on several cores: the answer is the one of a single core, whatever the others do."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polynext.encrypted import Client, Plan, Server, get_backend
from polynext.encrypted.client import EVALUATION
from polynext.encrypted.runtime.backends.protocol import Costs
from polynext.encrypted.runtime.backends.seal import SealEvaluator
from polynext.encrypted.runtime.counting import CountingEvaluator
from polynext.encrypted.runtime.execution import encode_program
from polynext.encrypted.runtime.sharing import Shared
from polynext.errors import PolyNeXtError

on_seal = pytest.mark.parametrize("backend", ["seal"], indirect=True)


@pytest.fixture
def server(folders: Path) -> Server:
    return Server.load(folders / "server", folders / "client" / EVALUATION)


@pytest.fixture
def client(folders: Path) -> Client:
    return Client.load(folders / "client")


def shared_answer(server: Server, image: Any, processes: int) -> Any:
    """By so many processes, though fewer would be faster on a network this small."""
    costs = get_backend("clear").costs(server.spec.parameters.ring_degree)
    return Shared(server.program, server.encoded, server.evaluator, costs, processes).run(image, server.ring)


@on_seal
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("held", [True, False])
def test_several_processes_give_the_answer_of_one(
    server: Server, client: Client, examples: np.ndarray, processes: int, held: bool
) -> None:
    (image,) = client.encrypt(examples[: client.spec.images])
    wanted = client.secret.decrypt(server.answer(image))
    if not held:
        for step in server.program.steps:
            step.keep_encoded = False
        server = Server(server.program, server.spec, server.evaluator.keys, server.ring)
    result = shared_answer(server, image, processes)
    np.testing.assert_array_equal(client.secret.decrypt(result), wanted)


def shared(plan: Plan, seconds: dict[str, float], processes: int) -> Shared:
    costs = Costs(plan.parameters.ring_degree, {name: (0.0, each) for name, each in seconds.items()})
    counter = CountingEvaluator(plan.parameters, plan.program.rotations)
    return Shared(plan.program, encode_program(plan.program, counter), counter, costs, processes)


def test_two_cores_are_faster_if_rotations_dominate(plan: Plan) -> None:
    seconds = dict.fromkeys(("multiply_plain", "add", "rescale", "drop", "encode"), 1e-4)
    expensive, cheap = ({"rotate": each, "multiply": each, **seconds} for each in (0.1, 1e-4))
    assert (
        shared(plan, expensive, 1).seconds / 2 < shared(plan, expensive, 2).seconds < shared(plan, expensive, 1).seconds
    )
    assert shared(plan, expensive, 2).best().processes == 2
    assert shared(plan, cheap, 2).best().processes == 1  # to hand ciphertexts on would take longer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ValueError("encrypted is not valid for encryption parameters")


@on_seal
@pytest.mark.parametrize(
    ("what", "error", "told"),
    [
        (die, PolyNeXtError, "a worker process died: give fewer --processes"),
        (refuse, ValueError, "not valid for encryption parameters"),
    ],
)
def test_the_failure_of_another_process_is_reported(
    server: Server,
    client: Client,
    examples: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    what: Callable[[], None],
    error: type[Exception],
    told: str,
) -> None:
    mine, rotate = os.getpid(), SealEvaluator.rotate

    def rotate_here_only(self: SealEvaluator, value: Any, steps: int) -> Any:
        if os.getpid() != mine:
            what()
        return rotate(self, value, steps)

    monkeypatch.setattr(SealEvaluator, "rotate", rotate_here_only)
    (image,) = client.encrypt(examples[: client.spec.images])
    with pytest.raises(error, match=told):
        shared_answer(server, image, 2)


@on_seal
def test_a_request_is_answered_by_the_fastest_number_of_processes(
    server: Server, client: Client, examples: np.ndarray
) -> None:
    (image,) = client.encrypt(examples[: client.spec.images])
    np.testing.assert_array_equal(
        client.secret.decrypt(server.answer(image, 2)), client.secret.decrypt(server.answer(image))
    )


@on_seal
def test_forks_end_with_the_answer(server: Server, client: Client, examples: np.ndarray) -> None:
    before = multiprocessing.active_children()
    (image,) = client.encrypt(examples[: client.spec.images])
    shared_answer(server, image, 3)
    assert multiprocessing.active_children() == before


def test_several_processes_are_refused_without_fork(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_fork(method: str) -> None:
        raise ValueError(f"cannot find context for {method!r}")

    monkeypatch.setattr(multiprocessing, "get_context", without_fork)
    with pytest.raises(PolyNeXtError, match="this operating system has no fork: use one process"):
        shared(plan, {}, 2).run(None, get_backend("clear").ring(plan.parameters))


WITHOUT_FORK = """
import importlib, multiprocessing, os, pkgutil
get_context = multiprocessing.get_context
def without_fork(method=None):
    if method in ("fork", "forkserver"):
        raise ValueError(f"cannot find context for {method!r}")
    return get_context(method)
multiprocessing.get_context = without_fork
for name in ("fork", "sched_getaffinity"):
    delattr(os, name)
import polynext.encrypted
for module in pkgutil.walk_packages(polynext.encrypted.__path__, "polynext.encrypted."):
    importlib.import_module(module.name)
from polynext.encrypted import *
print("imported")
"""


def test_everything_can_be_imported_without_fork_and_affinity() -> None:
    """As on Windows and macOS."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_FORK], capture_output=True, text=True)
    assert done.stdout.strip() == "imported", done.stderr
