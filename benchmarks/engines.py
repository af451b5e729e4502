"""Encrypted inference by SEAL and by the native extension: one image of a shipped network.

    python benchmarks/engines.py
    python benchmarks/engines.py mnist --threads 1

Settings take turns, round after round, and medians are printed:

    seal          SEAL with its plan
    same-plan     the native extension with the same plan and keys
    native        the extension with a plan of its own, in which rotations share work
    hybrid-keys   the extension with a plan for Python clients, which have hybrid keys

All of them are in memory at once. `--settings` measures some of them.

Seconds are those of the server for one request: it reads the ciphertext, evaluates the network and writes the answer.
One thread is measured in CPU seconds. Two threads are measured in wall-clock seconds, which only mean something on a
quiet machine. "predicted" is the cost estimate on one thread, with the fastest instruction set. Speedups are over
SEAL, which has one thread; the last line has those of the fastest setting.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import polynext_native

from polynext.encrypted.compiler.planner import Plan
from polynext.encrypted.compiler.prepare import limits_of, plan_run
from polynext.encrypted.compiler.shipped import CIFAR10, SHIPPED
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE, estimate_cost
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.tables import table

Clients = Literal["any", "python"]
# What computes, whose costs the plan is made for, and its clients.
SETTINGS: dict[str, tuple[str, str, Clients]] = {
    "seal": ("seal", "seal", "any"),
    "same-plan": ("native", "seal", "any"),
    "native": ("native", "native", "any"),
    "hybrid-keys": ("native", "native", "python"),
}


@dataclass
class Setting:
    """An engine and a plan, with keys and encoded weights, and the seconds of its runs by number of threads."""

    name: str
    engine: str
    plan: Plan
    folder: Path  # for the request and the answer
    instruction_set: str = ""  # of the extension; by default the fastest
    predicted: float = 0.0  # seconds on one thread
    load: float = 0.0
    encode: float = 0.0
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def prepare(self, pixels: np.ndarray, secret: Any = None) -> Any:
        """Makes keys, unless another setting has the same, loads them and encodes the weights."""
        os.environ["POLYNEXT_ENGINE"] = self.engine
        parameters = self.plan.parameters
        shape = parameters.ring_degree, 1, parameters.special_primes, parameters.short_primes
        costs = get_backend("seal").costs(*shape)
        self.predicted = estimate_cost(self.plan.program, parameters, costs).seconds
        if secret is None or secret.ring.parameters != parameters:
            secret = get_backend("seal").ring(parameters).generate_key()
        self.secret = secret
        made_with = partial(polynext_native.evaluator, instruction_set=self.instruction_set)
        with patch.object(polynext_native, "evaluator", made_with):
            keys = self.secret.evaluation_keys(self.plan.program.rotations)
            start = time.process_time()
            self.evaluator = self.secret.ring.evaluator(keys)
            self.load = time.process_time() - start
        start = time.process_time()
        self.encoded = encode_program(self.plan.program, self.evaluator)
        self.encode = time.process_time() - start
        image = self.secret.encrypt(self.plan.program.layouts[0].pack(pixels.reshape(1, -1)))
        image.save(str(self.folder / f"{self.name}.request"))
        return self.secret

    def run(self, threads: int) -> None:
        self.evaluator.use_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        start = clock()
        ring = self.secret.ring
        image = ring.load_ciphertext(self.folder / f"{self.name}.request", 0, ring.parameters.input_scale)
        self.answer = execute(self.plan.program, self.encoded, self.evaluator, image)
        self.answer.save(str(self.folder / f"{self.name}.answer"))
        self.seconds.setdefault(threads, []).append(clock() - start)

    def median(self, threads: int) -> float:
        return statistics.median(self.seconds[threads])

    def row(self, clear: np.ndarray) -> tuple[str, ...]:
        cost = self.plan.cost
        logits = self.plan.program.layouts[-1].unpack(self.secret.decrypt(self.answer))
        return (
            self.name,
            f"{cost.rotation_keys}, {cost.key_bytes / MEBIBYTE:.0f}",
            f"{cost.rotations}",
            f"{self.load:.1f}",
            f"{self.encode:.1f}",
            f"{self.median(1):.2f}",
            f"{self.predicted:.2f}",
            f"{self.median(2):.2f}" if 2 in self.seconds else "",
            f"{np.abs(logits - clear).max() / np.abs(clear).max():.1e}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", choices=list(SHIPPED), default=CIFAR10.name)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    sets = polynext_native.instruction_sets()
    parser.add_argument("--instruction-set", choices=sets, default="", help="of the extension; by default the fastest")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, choices=(1, 2), default=2, help="the most that are measured")
    options = parser.parse_args()
    trained = SHIPPED[options.network].load()
    pixels, _, _ = trained.images("test", 1)
    plans: dict[tuple[str, Clients], Plan] = {}
    settings, secret = [], None
    with tempfile.TemporaryDirectory() as folder:
        for name in options.settings:
            engine, planned_for, clients = SETTINGS[name]
            os.environ["POLYNEXT_ENGINE"] = planned_for
            if (planned_for, clients) not in plans:
                limits = replace(limits_of(trained), clients=clients)
                plans[planned_for, clients] = plan_run(trained, limits=limits)
            setting = Setting(name, engine, plans[planned_for, clients], Path(folder), options.instruction_set)
            secret = setting.prepare(pixels, secret)
            settings.append(setting)
        for _ in range(options.rounds):
            for threads in range(1, options.threads + 1):
                for setting in settings:
                    if threads == 1 or setting.engine == "native":
                        setting.run(threads)
    clear = settings[0].plan.circuit(pixels).reshape(1, -1)
    counts = ("keys, MB", "rotations", "load (s)", "encode (s)")
    header = ("setting", *counts, "1 thread (s)", "predicted", "2 threads (s)", "error")
    print(table(header, [setting.row(clear) for setting in settings], left=(0,)))
    seal = next((setting for setting in settings if setting.engine == "seal"), None)
    others = [setting for setting in settings if setting.engine == "native"]
    if seal and others:
        for setting in others:
            print(f"{setting.name}: {speedups([setting], seal, options.threads)}")
        print(f"speedup: {speedups(others, seal, options.threads)}")


def speedups(settings: list[Setting], seal: Setting, threads: int) -> str:
    """Of the fastest setting at each number of threads."""
    counts = {1: "one thread", 2: "two threads"}
    fastest = {n: min(setting.median(n) for setting in settings) for n in range(1, threads + 1)}
    return ", ".join(f"{counts[n]} {seal.median(1) / seconds:.2f}" for n, seconds in fastest.items())


if __name__ == "__main__":
    main()
