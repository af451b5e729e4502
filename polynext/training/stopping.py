"""Runs end cleanly when a signal asks them to: after the step under way, with everything saved."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from polynext.distributed import Processes


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, signal_number: int, go_on: str):
        super().__init__(f"stopped by signal {signal_number}, all saved: go on with `{go_on}`")
        self.exit_status = 128 + signal_number


class StopRequest:
    """Whether SIGINT or SIGTERM reached any of a run's processes."""

    def __init__(self, group: Processes, command: str, folder: Path):
        self.group, self.go_on = group, f"{command} --resume {folder}"
        self.signal = 0

    def asked(self) -> bool:
        """Whether to stop; all processes get the same answer, so all must ask."""
        signals, processes_reached = self.group.total(self.signal, bool(self.signal))
        if processes_reached:
            self.signal = int(signals / processes_reached)
        return bool(self.signal)

    def raise_if_asked(self) -> None:
        if self.signal:
            raise Interrupted(self.signal, self.go_on)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, signals let the step under way finish."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signal = number

        try:
            previous = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread, where signals do not arrive
            warnings.warn("training outside the main thread cannot be interrupted cleanly", stacklevel=3)
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While inside, SIGTERM is what Ctrl-C is: who started other processes can end them before going."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
