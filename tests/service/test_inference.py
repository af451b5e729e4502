"""The inference process: progress and loaded keys."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polynext.circuit import lower
from polynext.encrypted import make_plan
from polynext.encrypted.runtime.backends.clear import ClearEvaluator
from polynext.encrypted.runtime.backends.protocol import CONJUGATION
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.service import Settings
from polynext.service.inference import Assignment, ForkDied, KeyCache, ProgressEvaluator
from tests.encrypted.conftest import SAME_EVERYWHERE
from tests.service.conftest import ByHand, Start, new_job, wait_until


def test_progress_counts_every_expensive_operation(trained: Any, examples: np.ndarray) -> None:
    plan = make_plan(lower(trained), examples, 4, costs=SAME_EVERYWHERE)
    program, cost, reports = plan.program, plan.cost, SimpleNamespace(sent=[])
    reports.send = reports.sent.append
    assert CONJUGATION in program.rotations
    clear = ClearEvaluator(plan.parameters, program.rotations)
    operations = cost.rotations + cost.ciphertext_products
    evaluator: Any = ProgressEvaluator(clear, operations, reports)  # type: ignore[arg-type]
    image = clear.image(program.layouts[0].pack(examples[:4].reshape(4, -1)))
    execute(program, encode_program(program, clear), evaluator, image)
    assert evaluator.done == operations
    shares = [share for _, share in reports.sent]
    assert shares == sorted(shares) and shares[0] < 0.1 and shares[-1] >= 0.97


def test_loaded_keys_have_a_memory_limit(tmp_path: Path) -> None:
    network = SimpleNamespace(spec=SimpleNamespace(cost=SimpleNamespace(key_bytes=40)), loaded=[])
    network.load_keys = lambda folder: network.loaded.append(folder.name)
    cache = KeyCache(100)
    for keys in ("a", "b", "a", "c", "a"):  # c replaces b
        cache.get(network, Assignment("small", keys, tmp_path / keys, tmp_path, tmp_path, ""))  # type: ignore[arg-type]
    assert list(cache.loaded) == ["c", "a"] and cache.bytes == 80 and network.loaded == ["a", "b", "c"]
    cache.forget("c")
    assert list(cache.loaded) == ["a"]


def test_keys_that_kill_a_process_kill_only_a_fork(tmp_path: Path) -> None:
    """Untrusted keys are loaded in a fork before the inference process loads them."""
    network = SimpleNamespace(spec=SimpleNamespace(cost=SimpleNamespace(key_bytes=40)))
    network.load_keys = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
    cache, assignment = KeyCache(100), Assignment("small", "a", tmp_path, tmp_path, tmp_path, "")
    with pytest.raises(ForkDied, match="exit status -9 while loading keys"):
        cache.get(network, assignment)  # type: ignore[arg-type]
    assert not cache.loaded


def test_expired_keys_are_forgotten_by_the_workers(start: Start, folder: Path, examples: np.ndarray) -> None:
    running = start(folder)
    by_hand = ByHand(running)
    keys, job = by_hand.send_keys(), new_job()
    by_hand.ask(job, keys, by_hand.ciphertext(examples[0])).raise_for_status()
    assert by_hand.ended(job)["state"] == "done"
    forgotten: list[str] = []
    running.service.workers.forget_keys = forgotten.append  # type: ignore[method-assign]
    running.call(running.service.store.write, "UPDATE keys SET used = 0")
    wait_until(lambda: forgotten == [keys])
    assert by_hand.http.get(f"/v1/keys/{keys}").status_code == 404


def test_a_node_bounds_and_forgets_its_keys() -> None:
    """The files of keys on a node of a Ray cluster, without Ray."""
    pytest.importorskip("ray")
    from polynext.service.cluster import NodeActor

    node = NodeActor({}, Settings(key_disk=100))
    try:
        for name in ("a", "b", "c"):
            node.receive_keys(name, {"relinearisation": bytes(40)})
        assert list(node.keys) == ["b", "c"] and not (node.folder / "keys" / "a").exists()
        node.using["b"] += 1  # a job computes with it
        node.receive_keys("d", {"relinearisation": bytes(40)})
        assert list(node.keys) == ["b", "d"]
        node.forget_keys("d")
        assert not node.has_keys("d") and not (node.folder / "keys" / "d").exists()
    finally:
        asyncio.run(node.stop())
    assert not node.folder.exists()
