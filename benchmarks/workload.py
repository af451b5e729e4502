"""A workload in a process of its own, for benchmarks whose workloads take turns."""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Generic, TypeVar

Key = TypeVar("Key")


class WorkloadProcess(Generic[Key]):
    """A workload in its own process, which keeps its memory and threads apart from those of other workloads.

    Args:
        start: called in the process; returns the function to time, and a value for `found`.
        arguments: arguments of `start`.
        clock: `time.process_time` or `time.perf_counter`.
    """

    workload: Callable[[], object]  # in the process

    def __init__(
        self,
        start: Callable[..., tuple[Callable[[], object], Key]],
        *arguments: object,
        clock: Callable[[], float] = time.process_time,
    ):
        self.clock = clock
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.found = self.process.submit(self.begin, start, arguments).result()

    @staticmethod
    def begin(start: Callable[..., tuple[Callable[[], object], Key]], arguments: tuple[object, ...]) -> Key:
        workload, found = start(*arguments)
        WorkloadProcess.workload = staticmethod(workload)
        return found

    def turn(self) -> float:
        """Runs the workload once and returns its seconds."""
        return self.process.submit(self.time_workload, self.clock).result()

    @staticmethod
    def time_workload(clock: Callable[[], float]) -> float:
        start = clock()
        WorkloadProcess.workload()
        return clock() - start
