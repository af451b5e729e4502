"""The inference process: progress and loaded keys."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from polynext.circuit import lower
from polynext.encrypted import make_plan
from polynext.encrypted.runtime.backends.clear import ClearEvaluator
from polynext.encrypted.runtime.backends.protocol import CONJUGATION
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.service.inference import Assignment, KeyCache, ProgressEvaluator
from tests.encrypted.conftest import SAME_EVERYWHERE


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
