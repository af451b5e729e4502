"""Threads: how many there should be, and how idle ones wait."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

POLICY = "OMP_WAIT_POLICY"


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def idle_threads_give_way() -> Iterator[None]:
    """While inside, new processes, and this one if it now imports torch, get OpenMP threads that sleep when idle.

    By default they spin, which slows other processes, and this one beside them, by up to 20 times. A policy in the
    environment is kept.
    """
    if POLICY in os.environ:
        yield
        return
    os.environ[POLICY] = "PASSIVE"
    try:
        yield
    finally:
        os.environ.pop(POLICY, None)
