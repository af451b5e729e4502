"""The time of each part of a training run."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


class Profile:
    """Seconds of each part, if enabled."""

    def __init__(self, enabled: bool):
        self.enabled = enabled
        self.seconds: dict[str, float] = defaultdict(float)
        self.start = time.perf_counter()

    def __call__(self, part: str) -> AbstractContextManager[None]:
        return self.timed(part) if self.enabled else nullcontext()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def iterate(self, part: str, items: Iterable[Any]) -> Iterator[Any]:
        """The items; the time to wait for each is counted."""
        iterator = iter(items)
        while True:
            with self(part):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def summary(self) -> str:
        whole = time.perf_counter() - self.start
        parts = dict(self.seconds) | {"rest": whole - sum(self.seconds.values())}
        lines = [f"  {part:<11}{seconds:8.1f} s {seconds / whole:6.1%}" for part, seconds in parts.items()]
        return "\n".join(["time by part:", *lines])
