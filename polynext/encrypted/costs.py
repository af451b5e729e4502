"""What each operation costs on this machine, measured once and remembered."""

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polynext.circuit.maps import Array
from polynext.encrypted.parameters import LONGEST_MODULUS, Parameters

if TYPE_CHECKING:
    from polynext.encrypted.ckks import CkksEngine, SealCiphertext

Task = Callable[[], object]


@dataclass(frozen=True)
class Costs:
    """Seconds of each operation at one ring degree as a polynomial of the number of primes, lowest power first.

    Switching keys, which rotations and products need, takes the square of the number of primes; the others grow with
    their number.
    """

    ring_degree: int
    seconds: dict[str, tuple[float, ...]]

    def __call__(self, operations: Counter[tuple[str, int]]) -> float:
        return sum(
            n * sum(c * primes**power for power, c in enumerate(self.seconds[name]))
            for (name, primes), n in operations.items()
        )


def machine_costs(ring_degree: int) -> Costs:
    """This machine's costs: from the cache, or measured now (a few seconds) and cached."""
    file = cache_file(ring_degree)
    try:
        return Costs(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        costs = calibrate(ring_degree)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(costs)))
    except OSError:
        pass  # without a cache they are measured again next time
    return costs


def cache_file(ring_degree: int) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    machine = f"{platform.machine()}-{platform.node()}".replace("/", "-")
    return home / "polynext" / f"ckks-{machine}-{ring_degree}.json"


def calibrate(ring_degree: int, repeats: int = 7) -> Costs:
    """Measures every operation at three numbers of primes and fits."""
    from polynext.encrypted.ckks import CkksEngine, Ring, SecretKeys

    longest = LONGEST_MODULUS[ring_degree]
    most = min(max(longest // 48 - 1, 1), 12)
    parameters = Parameters(ring_degree, (40,) * (most - 1) + (40, 48), 36, 20, 36)
    ring = Ring(parameters)
    secret = SecretKeys.generate(ring)
    engine = CkksEngine(ring, secret.evaluation_keys([1]))
    values = np.random.default_rng(0).uniform(-1, 1, parameters.slots)
    fresh = secret.encrypt(values)
    counts = sorted({most, (most + 2) // 2, min(2, most)})
    measured: dict[str, list[float]] = {}
    for primes in counts:
        for name, task in tasks_at(engine, fresh, values, most - primes).items():
            measured.setdefault(name, []).append(timed(task, repeats))
    seconds = {}
    for name, times in measured.items():
        at = counts[-len(times) :]
        power = 2 if name in ("rotate", "multiply") else 1
        # Weighted so that every point counts by its ratio; costs start at nothing for no primes.
        terms = (
            np.stack([np.array(at, dtype=float) ** p for p in range(1, power + 1)], axis=1) / np.array(times)[:, None]
        )
        fit = np.linalg.lstsq(terms, np.ones(len(at)), rcond=None)[0]
        seconds[name] = (0.0, *map(float, fit))
    return Costs(ring_degree, seconds)


def tasks_at(engine: "CkksEngine", fresh: "SealCiphertext", values: Array, level: int) -> dict[str, Task]:
    """Every operation once, on ciphertexts of one level."""
    value = engine.drop(fresh, level)
    plain = engine.encode(values, level, 2.0**20)
    body = engine.accumulate(None, value, plain)
    tasks: dict[str, Task] = {
        "rotate": lambda: engine.rotate(value, 1),
        "multiply": lambda: engine.multiply(value, value),
        "multiply_plain": lambda: engine.accumulate(None, value, plain),
        "add": lambda: engine.add(body, body),
    }
    if engine.parameters.primes_at(level) > 1:
        tasks["rescale"] = lambda: engine.rescale(body, 2.0**36)
        tasks["drop"] = lambda: engine.drop(value, level + 1)
    return tasks


def timed(task: Task, repeats: int) -> float:
    task()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return min(times)  # what disturbs a measurement only ever adds to it
