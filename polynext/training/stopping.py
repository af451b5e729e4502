"""Signals stop a run after the current step, with its state saved."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from polynext.distributed import Processes


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal stopped the run; its state is saved."""

    def __init__(self, signal_number: int, resume: str):
        super().__init__(f"stopped by signal {signal_number} and saved: resume it with `{resume}`")
        self.exit_status = 128 + signal_number


class StopRequest:
    """Whether SIGINT or SIGTERM reached any of a run's processes."""

    def __init__(self, group: Processes, command: str, folder: Path):
        self.group, self.resume = group, f"{command} --resume {folder}"
        self.signal = 0

    def asked(self) -> bool:
        """Whether to stop. Collective: all processes must call it, and get the same answer."""
        signals, processes_reached = self.group.total(self.signal, bool(self.signal))
        if processes_reached:
            self.signal = int(signals / processes_reached)
        return bool(self.signal)

    def raise_if_asked(self) -> None:
        if self.signal:
            raise Interrupted(self.signal, self.resume)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, a signal lets the current step finish."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signal = number

        try:
            previous = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # only the main thread receives signals
            warnings.warn("a signal cannot stop a run cleanly outside the main thread", stacklevel=3)
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While inside, SIGTERM raises KeyboardInterrupt, so that child processes can be ended and files removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
