"""Seconds and bytes. Workloads take turns, round after round, so that other load on the machine affects all alike.

`torch.utils.benchmark` does not fit: it times one statement at a time and warms up before every measurement.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import timm
import torch

from polynext.experiments.speed.candidates import Candidate, Runner, Setting, input_size, prepare
from polynext.memory import peak_memory, reset_peak_memory, resident_memory
from polynext.models.costs import count_macs, count_parameters

SHORTEST_TURN = 0.1  # seconds; in a shorter turn, the clock and Python would matter

Key = TypeVar("Key")
Progress = Callable[[str], None]


def no_progress(step: str) -> None:
    """Ignores the steps of a measurement."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a call, one value for each turn."""

    seconds: list[float] = field(repr=False)

    @property
    def median(self) -> float:
        """The median of the turns."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The interquartile range relative to the median."""
        if len(self.seconds) < 2:
            return float("nan")
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


def take_turns(
    turns: Mapping[Key, Callable[[], float]], rounds: int, progress: Progress = no_progress
) -> dict[Key, Timing]:
    """Times all workloads in every round. Each of `turns` runs a workload and returns the seconds of a call."""
    seconds: dict[Key, list[float]] = {key: [] for key in turns}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for key, turn in turns.items():
            seconds[key].append(turn())
    return {key: Timing(values) for key, values in seconds.items()}


def turn(run: Runner, images: torch.Tensor, device: str) -> Callable[[], float]:
    """A function that takes a turn of a network. Runs it twice before, to compile and warm up.

    With a single CPU thread it measures CPU time, which other load on the machine disturbs less.
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


@dataclass(frozen=True)
class Measurement:
    """A candidate's counted costs and measured speed."""

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

    def to_json(self) -> dict[str, Any]:
        """The measurement for a JSON file."""
        return {
            "model": self.candidate.model,
            "engine": self.candidate.engine,
            "parameters": self.parameters,
            "macs": self.macs,
            "images_per_second": self.throughput,
            "images_per_second_spread": self.batch.spread,
            "latency_seconds": self.single and self.single.median,
            "latency_spread": self.single and self.single.spread,
            "memory_bytes": self.memory,
            "batch_seconds": self.batch.seconds,
            "single_seconds": self.single and self.single.seconds,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any], batch_size: int) -> "Measurement":
        """Reads a measurement from a JSON file."""
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
    progress: Progress = no_progress,
    latency: bool = True,
) -> list[Measurement]:
    """Measures the speed of all candidates in turns, and the memory of some, each in its own process."""
    bytes_of: dict[Candidate, int] = {}
    for candidate in filter(setting.can_measure_memory, memory):
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
    timings = take_turns(turns, rounds, progress)
    measured = []
    for candidate in candidates:
        model = timm.create_model(candidate.model, device="meta")
        measured.append(
            Measurement(
                candidate,
                parameters=count_parameters(model),
                macs=count_macs(model, input_size(model, setting)),
                batch=timings[candidate, "batch"],
                single=timings.get((candidate, "single")),
                batch_size=setting.batch_size,
                memory=bytes_of.get(candidate),
            )
        )
    return measured


@torch.inference_mode()
def measure_memory(candidate: Candidate, setting: Setting) -> int:
    """Bytes of a network and its largest feature maps while it runs a batch. Call it in a fresh process."""
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
