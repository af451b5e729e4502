"""What each operation costs on this machine, measured once and remembered."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.protocol import Backend, Ciphertext, Costs, Evaluator
from polynext.encrypted.runtime.parameters import Parameters

# Of what is measured: a cache of another version is measured again.
VERSION = 2

Task = Callable[[], object]


def machine_costs(backend: Backend, ring_degree: int) -> Costs:
    """This machine's costs: from the cache, or measured now (a few seconds) and cached."""
    file = cache_file(backend, ring_degree)
    try:
        return Costs(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        costs = calibrate(backend, ring_degree)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(costs)))
    except OSError:
        pass  # without a cache they are measured again next time
    return costs


def cache_file(backend: Backend, ring_degree: int) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{backend.name}-{backend.library}-{VERSION}-{platform.machine()}-{platform.node()}-{ring_degree}"
    return home / "polynext" / f"{name.replace('/', '-').replace(' ', '-')}.json"


def calibrate(backend: Backend, ring_degree: int, repeats: int = 7) -> Costs:
    """Measures every operation at three numbers of primes and fits. It is this process's time that counts, whatever
    else the machine does."""
    longest = backend.security.longest_modulus[ring_degree]
    most = min(max(longest // 48 - 1, 1), 12)
    parameters = Parameters(ring_degree, (40,) * (most - 1) + (40, 48), 36, 20, 36, 36)
    secret = backend.ring(parameters).generate_key()
    evaluator = secret.ring.evaluator(secret.evaluation_keys([1]))
    values = np.random.default_rng(0).uniform(-1, 1, parameters.slots)
    fresh = secret.encrypt(values)
    counts = sorted({most, (most + 2) // 2, min(2, most)})
    measured: dict[str, list[float]] = {}
    for primes in counts:
        for name, task in tasks_at(evaluator, fresh, values, most - primes).items():
            measured.setdefault(name, []).append(timed(task, repeats))
    seconds = {}
    for name, times in measured.items():
        at = counts[-len(times) :]
        power = 2 if name in ("rotate", "multiply") else 1
        # Weighted so that every point counts by its ratio; costs start at nothing for no primes.
        terms = (
            np.stack([np.array(at, dtype=float) ** p for p in range(1, power + 1)], axis=1) / np.array(times)[:, None]
        )
        fit, _ = nnls(terms, np.ones(len(at)))
        seconds[name] = (0.0, *map(float, fit))
    return Costs(ring_degree, seconds)


def tasks_at(evaluator: Evaluator, fresh: Ciphertext, values: Array, level: int) -> dict[str, Task]:
    """Every operation once, on ciphertexts of one level."""
    value = evaluator.drop(fresh, level)
    plain = evaluator.encode(values, level, 2.0**20)
    body = evaluator.accumulate(None, value, plain)
    tasks: dict[str, Task] = {
        "encode": lambda: evaluator.encode(values, level, 2.0**20),
        "rotate": lambda: evaluator.rotate(value, 1),
        "multiply": lambda: evaluator.multiply(value, value),
        "multiply_plain": lambda: evaluator.accumulate(None, value, plain),
        "add": lambda: evaluator.add(body, body),
    }
    if evaluator.parameters.primes_at(level) > 1:
        tasks["rescale"] = lambda: evaluator.rescale(body, 2.0**36)
        tasks["drop"] = lambda: evaluator.drop(value, level + 1)
    return tasks


def timed(task: Task, repeats: int) -> float:
    task()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        task()
        times.append(time.process_time() - start)
    return min(times)  # what disturbs a measurement only ever adds to it
