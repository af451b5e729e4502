"""How the threads of a process wait."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

POLICY = "OMP_WAIT_POLICY"


@contextmanager
def idle_threads_give_way() -> Iterator[None]:
    """While inside, a process that starts, or that imports torch for the first time, has threads that sleep when idle.

    OpenMP's would spin, and slow whatever else the machine does, and be slowed by it, up to 20 times. A policy that is
    set already stays.
    """
    if POLICY in os.environ:
        yield
        return
    os.environ[POLICY] = "PASSIVE"
    try:
        yield
    finally:
        os.environ.pop(POLICY, None)
