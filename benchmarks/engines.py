"""Encrypted inference by SEAL and by the native extension: one image of the shipped CIFAR-10 network.

    python benchmarks/engines.py

Four settings take turns, round after round, and medians are printed:

    SEAL's plan, computed by SEAL and by the native extension, with the same keys
    the extension's own plan with SEAL's keys, where rotations share work
    the extension's plan with hybrid keys, for Python clients

One thread is measured in CPU seconds. Two threads are measured in wall-clock seconds, which only mean something on a
quiet machine. "predicted" is what the plan says on one thread. Speedups are over SEAL, which has one thread; the last
line has those of the fastest setting.
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polynext.encrypted.compiler.planner import Plan
from polynext.encrypted.compiler.prepare import limits_of, plan_run
from polynext.encrypted.compiler.shipped import CIFAR10
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.tables import table


@dataclass
class Setting:
    """An engine and a plan, with keys and encoded weights, and the seconds of its runs on one and on two threads."""

    name: str
    engine: str
    plan: Plan
    load: float = 0.0
    encode: float = 0.0
    one: list[float] = field(default_factory=list)
    two: list[float] = field(default_factory=list)

    def prepare(self, pixels: np.ndarray, secret: Any = None) -> Any:
        """Makes keys, unless another setting has the same, loads them and encodes the weights."""
        os.environ["POLYNEXT_ENGINE"] = self.engine
        if secret is None or secret.ring.parameters != self.plan.parameters:
            secret = get_backend("seal").ring(self.plan.parameters).generate_key()
        self.secret = secret
        keys = self.secret.evaluation_keys(self.plan.program.rotations)
        start = time.process_time()
        self.evaluator = self.secret.ring.evaluator(keys)
        self.load = time.process_time() - start
        start = time.process_time()
        self.encoded = encode_program(self.plan.program, self.evaluator)
        self.encode = time.process_time() - start
        self.image = self.secret.encrypt(self.plan.program.layouts[0].pack(pixels.reshape(1, -1)))
        return self.secret

    def run(self, threads: int) -> None:
        self.evaluator.use_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        start = clock()
        self.answer = execute(self.plan.program, self.encoded, self.evaluator, self.image)
        (self.one if threads == 1 else self.two).append(clock() - start)

    def row(self, clear: np.ndarray) -> tuple[str, ...]:
        cost = self.plan.cost
        logits = self.plan.program.layouts[-1].unpack(self.secret.decrypt(self.answer))
        return (
            self.name,
            f"{cost.rotation_keys}, {cost.key_bytes / MEBIBYTE:.0f}",
            f"{cost.rotations}",
            f"{self.load:.1f}",
            f"{self.encode:.1f}",
            f"{statistics.median(self.one):.2f}",
            f"{cost.seconds:.2f}" if self.engine == "native" or self.name == "SEAL" else "",
            f"{statistics.median(self.two):.2f}" if self.two else "",
            f"{np.abs(logits - clear).max() / np.abs(clear).max():.1e}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    trained, plans = CIFAR10.load(), {}
    for name, engine, clients in (("seal", "seal", "any"), ("native", "native", "any"), ("hybrid", "native", "python")):
        os.environ["POLYNEXT_ENGINE"] = engine
        plans[name] = plan_run(trained, limits=replace(limits_of(trained), clients=clients))
    settings = [
        Setting("SEAL", "seal", plans["seal"]),
        Setting("native, SEAL's plan", "native", plans["seal"]),
        Setting("native", "native", plans["native"]),
        Setting("native, hybrid keys", "native", plans["hybrid"]),
    ]
    pixels, _, _ = trained.images("test", 1)
    secret = settings[0].prepare(pixels)
    for setting, known in zip(settings[1:], (secret, secret, None), strict=True):
        setting.prepare(pixels, known)
    for _ in range(rounds):
        for setting in settings:
            setting.run(1)
        for setting in settings[1:]:
            setting.run(2)
    clear = plans["seal"].circuit(pixels).reshape(1, -1)
    header = (
        "setting",
        "keys, MB",
        "rotations",
        "load (s)",
        "encode (s)",
        "1 thread (s)",
        "predicted",
        "2 threads (s)",
    )
    print(table((*header, "error"), [setting.row(clear) for setting in settings], left=(0,)))
    seal = statistics.median(settings[0].one)
    speedups = [[seal / statistics.median(each) for each in (s.one, s.two)] for s in settings[1:]]
    for setting, (one, two) in zip(settings[1:], speedups, strict=True):
        print(f"{setting.name}: one thread {one:.2f}, two threads {two:.2f}")
    one, two = map(max, zip(*speedups, strict=True))
    print(f"speedup: one thread {one:.2f}, two threads {two:.2f}")


if __name__ == "__main__":
    main()
