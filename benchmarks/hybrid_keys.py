"""Hybrid keys beside SEAL's own, by the native evaluator: sizes, and the time of key switching.

    python benchmarks/hybrid_keys.py

Rings have the primes of the CIFAR-10 network (11 primes of 60 bits at ring degree 2^15), and with --large those of the
largest modulus at 2^16 (24 primes and 5 special ones). Operations of all rings are measured in turns, in CPU
milliseconds of one thread; the smallest of several rounds counts.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Evaluator
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.encrypted.runtime.parameters import Parameters
from polynext.tables import table

STEPS = (1, 2, 4, 8)
RINGS = ((2**15, 11, 1), (2**15, 11, 2), (2**15, 11, 3))
LARGE = ((2**16, 24, 5),)


@dataclass
class Measured:
    """A ring with keys, and the smallest CPU seconds of each operation."""

    parameters: Parameters
    evaluator: Evaluator
    sent: int
    making: float
    loading: float
    operations: dict[str, Callable[[], object]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        for name, operation in self.operations.items():
            start = time.process_time()
            operation()
            self.seconds[name] = min(self.seconds.get(name, np.inf), time.process_time() - start)


def ring_with_keys(degree: int, primes: int, special: int) -> Measured:
    parameters = Parameters(degree, (60,) * (primes + special), 40, 20, 40, 40, special_primes=special)
    ring = get_backend("seal").ring(parameters)
    secret = ring.generate_key()
    with tempfile.TemporaryDirectory() as folder:
        paths = {step: Path(folder) / str(step) for step in (0, *STEPS)}  # 0 stands for relinearisation
        start = time.process_time()
        keys = secret.sendable_keys(STEPS)
        for step, path in paths.items():
            (keys.rotations[step] if step else keys.relinearisation).save(str(path))
        made = time.process_time()
        loaded = ring.load_evaluation_keys(paths[0], {step: paths[step] for step in STEPS})
        making, loading = made - start, time.process_time() - made
        sent = paths[1].stat().st_size
    found = Measured(parameters, ring.evaluator(loaded), sent, making / len(paths), loading / len(paths))
    fresh = secret.encrypt(np.random.default_rng(0).normal(size=parameters.slots))
    for level in (0, parameters.depth // 2):
        value = found.evaluator.add(found.evaluator.drop(fresh, level), found.evaluator.drop(fresh, level))
        count = parameters.primes_at(level)
        found.operations |= operations(found.evaluator, value, count)
    return found


def operations(evaluator: Evaluator, value: object, primes: int) -> dict[str, Callable[[], object]]:
    return {
        f"rotation, {primes} primes": lambda: evaluator.rotate(value, 1),
        f"{len(STEPS)} rotations, {primes} primes": lambda: evaluator.rotate_many(value, STEPS),
        f"product, {primes} primes": lambda: evaluator.multiply(value, value),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="ring degree 2^16 instead")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rings = [ring_with_keys(*each) for each in (LARGE if options.large else RINGS)]
    for _ in range(options.rounds):
        for each in rings:
            each.run()
    rows = [
        ("special primes", *(str(each.parameters.special_primes) for each in rings)),
        ("modulus bits", *(str(each.parameters.modulus_bits) for each in rings)),
        ("key, MB", *(f"{each.parameters.key_bytes / MEBIBYTE:.1f}" for each in rings)),
        ("key as sent, MB", *(f"{each.sent / MEBIBYTE:.1f}" for each in rings)),
        ("to make a key, ms", *(f"{1e3 * each.making:.0f}" for each in rings)),
        ("to load a key, ms", *(f"{1e3 * each.loading:.0f}" for each in rings)),
        *((name + ", ms", *(f"{1e3 * each.seconds[name]:.1f}" for each in rings)) for name in rings[0].operations),
    ]
    print(table(("", *(f"2^{each.parameters.ring_degree.bit_length() - 1}" for each in rings)), rows))


if __name__ == "__main__":
    main()
