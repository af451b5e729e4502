"""Seconds and bytes. All candidates take turns, so that what else the machine does falls on all of them alike."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import timm
import torch

from polynext.experiments.speed.candidates import Candidate, Runner, Setting, input_size, prepare
from polynext.memory import peak_memory, reset_peak_memory, resident_memory
from polynext.models.costs import count_macs, count_parameters

# A turn lasts at least this long, so that the clock's and Python's share of it is small.
SHORTEST_TURN = 0.1


@dataclass(frozen=True)
class Timing:
    """Seconds of a call, one value from each turn."""

    seconds: list[float] = field(repr=False)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles as a share of the median."""
        if len(self.seconds) < 2:
            return float("nan")
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True)
class Measurement:
    """One candidate: what it costs on paper, and what it took."""

    candidate: Candidate
    parameters: int
    macs: int
    batch: Timing
    single: Timing | None
    batch_size: int
    memory: int | None = None

    @property
    def throughput(self) -> float:
        """Images per second."""
        return self.batch_size / self.batch.median

    @property
    def latency(self) -> float | None:
        """Seconds for a single image."""
        return None if self.single is None else self.single.median

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.candidate.model,
            "engine": self.candidate.engine,
            "parameters": self.parameters,
            "macs": self.macs,
            "images_per_second": self.throughput,
            "images_per_second_spread": self.batch.spread,
            "latency_seconds": self.latency,
            "latency_spread": self.single and self.single.spread,
            "memory_bytes": self.memory,
            "batch_seconds": self.batch.seconds,
            "single_seconds": self.single and self.single.seconds,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any], batch_size: int) -> "Measurement":
        single = record["single_seconds"]
        return cls(
            Candidate(record["model"], record["engine"]),
            parameters=record["parameters"],
            macs=record["macs"],
            batch=Timing(record["batch_seconds"]),
            single=None if single is None else Timing(single),
            batch_size=batch_size,
            memory=record["memory_bytes"],
        )


def measure(
    candidates: Sequence[Candidate],
    setting: Setting,
    rounds: int,
    memory: Sequence[Candidate],
    progress: Callable[[str], None] = lambda step: None,
    latency: bool = True,
) -> list[Measurement]:
    """Every candidate's speed over the same rounds, and the memory of some, each in a process of its own."""
    bytes_of: dict[Candidate, int] = {}
    for candidate in filter(setting.tells_memory, memory):
        progress(f"memory of {candidate.model} {candidate.engine}")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            bytes_of[candidate] = process.submit(measure_memory, candidate, setting).result()

    turns: dict[tuple[Candidate, str], Callable[[], float]] = {}
    for candidate in candidates:
        progress(f"warming up {candidate.model} {candidate.engine}")
        run, images = prepare(candidate, setting)
        turns[candidate, "batch"] = turn(run, images, setting.device)
        if latency:
            turns[candidate, "single"] = turn(run, images[:1].clone(), setting.device)
    seconds: dict[tuple[Candidate, str], list[float]] = {key: [] for key in turns}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for key, take in turns.items():
            seconds[key].append(take())

    measured = []
    for candidate in candidates:
        model = timm.create_model(candidate.model, device="meta")
        measured.append(
            Measurement(
                candidate,
                parameters=count_parameters(model),
                macs=count_macs(model, input_size(model, setting)),
                batch=Timing(seconds[candidate, "batch"]),
                single=Timing(seconds[candidate, "single"]) if latency else None,
                batch_size=setting.batch_size,
                memory=bytes_of.get(candidate),
            )
        )
    return measured


def turn(run: Runner, images: torch.Tensor, device: str) -> Callable[[], float]:
    """A function that times one turn and returns the seconds of a call. Runs twice before, to compile and warm up.

    A single thread's seconds are those of the CPU, which tell nothing of what else the machine does.
    """
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    @torch.inference_mode()
    def calls(number: int) -> float:
        start = clock()
        for _ in range(number):
            run(images)
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return (clock() - start) / number

    calls(1)
    number = max(1, round(SHORTEST_TURN / calls(1)))
    return lambda: calls(number)


@torch.inference_mode()
def measure_memory(candidate: Candidate, setting: Setting) -> int:
    """Bytes that a network and its largest feature maps take while a batch goes through; for a fresh process."""
    if setting.device.startswith("cuda"):
        run, images = prepare(candidate, setting)
        run(images)
        torch.cuda.reset_peak_memory_stats(setting.device)
        run(images)
        return torch.cuda.max_memory_allocated(setting.device)
    before = resident_memory()
    run, images = prepare(candidate, setting)
    run(images)
    reset_peak_memory()
    run(images)
    return peak_memory() - before
