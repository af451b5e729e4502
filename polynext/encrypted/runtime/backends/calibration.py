"""The cost of each operation on this machine, measured once and cached."""

import itertools
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import platformdirs

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.protocol import Backend, Ciphertext, Costs, Evaluator, Plaintext, Security
from polynext.encrypted.runtime.parameters import SHORT_PRIME_BITS, Parameters

# The version of the measurement. Caches of other versions are ignored.
VERSION = 9

# A program reads each plaintext once, and keys in turns. Both come from memory and not from a cache, and this takes a
# large part of the time. Plaintexts of so many bytes are measured, in sums of so many products.
PLAINTEXT_BYTES, SUMMED_PRODUCTS = 2**27, 16
# The keys that rotations are measured with in turns, and all at once, to know what each one costs after the first.
STEPS = (1, 2, 4, 8)

# The most primes that operations are measured at with hybrid keys.
MOST_PRIMES = 24

Operation = Callable[[], object]


def machine_costs(
    backend: Backend, ring_degree: int, threads: int = 1, special_primes: int = 1, short_primes: bool = False
) -> Costs:
    """The costs of the backend's engine on this machine, from the cache or measured now, which takes a few seconds."""
    if not backend.engine.threads:
        threads = 1
    file = cache_file(backend, ring_degree, threads, special_primes, short_primes)
    try:
        return Costs(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        costs = calibrate(backend, ring_degree, threads, special_primes, short_primes)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(costs)))
    except OSError:
        pass  # without a cache they are measured again next time
    return costs


def cache_file(backend: Backend, ring_degree: int, threads: int, special_primes: int, short_primes: bool) -> Path:
    computes = f"{backend.name}-{backend.library}-{backend.engine.name}-{threads}"
    ring = f"{ring_degree}-{special_primes}{'-short' * short_primes}"
    name = f"{computes}-{VERSION}-{platform.machine()}-{platform.node()}-{ring}"
    return platformdirs.user_cache_path("polynext") / f"{name.replace('/', '-').replace(' ', '-')}.json"


def calibrate(
    backend: Backend,
    ring_degree: int,
    threads: int = 1,
    special_primes: int = 1,
    short_primes: bool = False,
    repeats: int = 7,
) -> Costs:
    """Measures every operation at three numbers of primes, and fits polynomials. The time is CPU time on one thread,
    which other programs disturb little, and elapsed time on several."""
    parameters = measured_parameters(backend.security, ring_degree, special_primes, short_primes)
    most = parameters.depth + 1
    secret = backend.ring(parameters).generate_key()
    evaluator = secret.ring.evaluator(secret.evaluation_keys(STEPS), threads)
    values = np.random.default_rng(0).uniform(-1, 1, parameters.slots)
    fresh = secret.encrypt(values)
    values = values + 1j * values[::-1]  # without repetitions, which an engine may store once
    counts = sorted({most, (most + 2) // 2, min(2, most)})
    measured: dict[str, list[float]] = {}
    for primes in counts:
        for name, (count, operation) in operations_at(evaluator, fresh, values, most - primes).items():
            clock = time.process_time if evaluator.threads == 1 else time.perf_counter
            measured.setdefault(name, []).append(timed(operation, repeats, clock) / count)
    several, first = measured.pop("rotate_many"), measured["rotate"]
    measured["rotate_again"] = [max(a - b, 1e-9) / (len(STEPS) - 1) for a, b in zip(several, first, strict=True)]
    if evaluator.compacts:
        compact, plain = measured.pop("multiply_compact"), measured["multiply_plain"]
        measured["expand"] = [max(a - b, 1e-9) for a, b in zip(compact, plain, strict=True)]
    seconds = {}
    for name, times in measured.items():
        degree = 2 if name in ("rotate", "rotate_again", "multiply") else 1
        seconds[name] = (0.0, *fit_nonnegative(np.array(counts[-len(times) :], dtype=float), np.array(times), degree))
    return Costs(ring_degree, seconds)


def measured_parameters(security: Security, ring_degree: int, special_primes: int, short_primes: bool) -> Parameters:
    """A ring of this degree with about as many primes as security allows."""
    longest = security.limits(special_primes > 1)[ring_degree]
    if short_primes or special_primes > 1:  # deep networks, which hybrid keys are for, have long primes
        length = SHORT_PRIME_BITS if short_primes else security.longest_prime
        length = min(length, longest // (special_primes + 1))
        bits = (length,) * min(longest // length, MOST_PRIMES + special_primes)
    else:
        bits = (40,) * min(longest // 48 - 1, 12) + (60,)
    return Parameters(ring_degree, bits, 36, 20, 36, 36, special_primes=special_primes)


def fit_nonnegative(primes: Array, times: Array, degree: int) -> list[float]:
    """Nonnegative coefficients of p, p^2, ... that fit the times with the least relative error.

    The best fit has some coefficients zero and is a plain least-squares fit of the others: all subsets are tried.
    """
    terms = np.stack([primes**power for power in range(1, degree + 1)], axis=1) / times[:, None]
    best, least = np.zeros(degree), np.inf
    for count in range(1, degree + 1):
        for chosen in map(list, itertools.combinations(range(degree), count)):
            fit = np.zeros(degree)
            fit[chosen] = np.linalg.lstsq(terms[:, chosen], np.ones(len(times)), rcond=None)[0]
            error = float(np.linalg.norm(terms @ fit - 1))
            if (fit >= 0).all() and error < least:
                best, least = fit, error
    return best.tolist()


def operations_at(
    evaluator: Evaluator, fresh: Ciphertext, values: Array, level: int
) -> dict[str, tuple[int, Operation]]:
    """Every operation on ciphertexts of one level, and how many times it is done in one call."""
    value, parameters = evaluator.drop(fresh, level), evaluator.parameters
    factors = [evaluator.add(value, value) for _ in range(SUMMED_PRODUCTS)]

    def terms(compact: bool) -> list[tuple[Ciphertext, Plaintext]]:
        return [(factor, evaluator.encode(values, level, 2.0**20, compact)) for factor in factors]

    count = max(PLAINTEXT_BYTES // (SUMMED_PRODUCTS * parameters.plaintext_bytes(level)), 1)
    sums, steps = [terms(compact=False) for _ in range(count)], itertools.cycle(STEPS)
    body = evaluator.accumulate(None, *sums[0][0])
    operations: dict[str, tuple[int, Operation]] = {
        "encode": (1, lambda: evaluator.encode(values, level, 2.0**20)),
        "rotate": (1, lambda: evaluator.rotate(value, next(steps))),
        "rotate_many": (1, lambda: evaluator.rotate_many(value, STEPS)),
        "multiply": (1, lambda: evaluator.multiply(value, value)),
        "add": (1, lambda: evaluator.add(factors[0], factors[1])),
        "multiply_plain": (SUMMED_PRODUCTS * count, lambda: list(evaluator.sums(sums))),
    }
    if evaluator.compacts:
        compact = [terms(compact=True)]
        operations["multiply_compact"] = SUMMED_PRODUCTS, lambda: list(evaluator.sums(compact))
    if parameters.primes_at(level) > 1:
        operations["rescale"] = 1, lambda: evaluator.rescale(body, 2.0**36)
        operations["drop"] = 1, lambda: evaluator.drop(value, level + 1)
    return operations


def timed(operation: Operation, repeats: int, clock: Callable[[], float]) -> float:
    operation()
    times = []
    for _ in range(repeats):
        start = clock()
        operation()
        times.append(clock() - start)
    return min(times)  # disturbances only ever add time
