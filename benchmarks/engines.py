"""Encrypted inference by SEAL and by the native extension: one image of the shipped CIFAR-10 network.

    python benchmarks/engines.py

Both engines run the same program with the same keys, in turns, round after round; medians are printed, with the time to
load keys and to encode the weights. One thread is measured in CPU seconds, two threads in wall-clock seconds. The last
line is the speedup of the native engine over SEAL.
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from polynext.encrypted.compiler.shipped import CIFAR10, shipped_server
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.server import load_client_spec, load_server
from polynext.tables import table


@dataclass
class Engine:
    """An engine with its keys and encoded weights, and the seconds of its runs."""

    name: str
    threads: int
    evaluator: Any = None
    encoded: Any = None
    load: float = 0.0
    encode: float = 0.0
    seconds: list[float] = field(default_factory=list)
    answer: Any = None

    def prepare(self, ring: Any, keys: Any, program: Any) -> None:
        os.environ["POLYNEXT_ENGINE"] = self.name
        start = time.perf_counter()
        self.evaluator = ring.evaluator(keys, threads=self.threads)
        self.load = time.perf_counter() - start
        start = time.perf_counter()
        self.encoded = encode_program(program, self.evaluator)
        self.encode = time.perf_counter() - start

    def run(self, program: Any, image: Any) -> None:
        clock = time.process_time if self.threads == 1 else time.perf_counter
        start = clock()
        self.answer = execute(program, self.encoded, self.evaluator, image)
        self.seconds.append(clock() - start)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ["POLYNEXT_ENGINE"] = "seal"  # the plan is made for SEAL's costs
    folder = shipped_server(CIFAR10)
    spec = load_client_spec(folder)
    program = load_server(folder, spec)
    ring = get_backend(spec.backend).ring(spec.parameters)
    secret = ring.generate_key()
    keys = secret.evaluation_keys(spec.rotations)
    image = secret.encrypt(spec.pack(np.random.default_rng(0).normal(size=(1, *spec.image_shape))))
    engines = [Engine("seal", 1), Engine("native", 1), Engine("native", 2)]
    for engine in engines:
        engine.prepare(ring, keys, program)
    for _ in range(args.rounds):
        for engine in engines:
            engine.run(program, image)
    logits = []
    with TemporaryDirectory() as scratch:
        for engine in engines:
            path = Path(scratch) / "answer"
            engine.answer.save(str(path))
            received = ring.load_ciphertext(path, engine.answer.level, engine.answer.scale)
            logits.append(program.layouts[-1].unpack(secret.decrypt(received)))
    rows = [
        (
            engine.name,
            str(engine.threads),
            f"{engine.load:.1f}",
            f"{engine.encode:.1f}",
            f"{engine.median:.2f}",
            f"{np.abs(found - logits[0]).max():.1e}",
        )
        for engine, found in zip(engines, logits, strict=True)
    ]
    header = ("engine", "threads", "load keys (s)", "encode (s)", "image (s)", "difference of logits")
    print(table(header, rows, left=(0,)))
    seal, one, two = (engine.median for engine in engines)
    print(f"speedup: one thread {seal / one:.2f}, two threads {seal / two:.2f}")


if __name__ == "__main__":
    main()
