"""Workers compute jobs: here in an inference process on this machine, in `cluster.py` on several machines."""

import asyncio
import itertools
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from polynext.errors import PolyNeXtError
from polynext.service import inference
from polynext.service.inference import Assignment
from polynext.service.settings import Settings

ReportProgress = Callable[[float], None]


class WorkerDied(Exception):  # noqa: N818  (not an error of the job, which runs again)
    """The worker of a job died. The job can run again."""


class Workers(ABC):
    """Computes jobs, several at a time."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """The number of jobs at a time."""

    @property
    @abstractmethod
    def ready(self) -> bool: ...

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def run(self, assignment: Assignment, progress: ReportProgress) -> None:
        """Write the answer's file. Raises PolyNeXtError if the job fails and WorkerDied if it can run again."""

    @abstractmethod
    def forget_keys(self, keys: str) -> None: ...


class LocalWorkers(Workers):
    """An inference process on this machine, which restarts when it dies."""

    def __init__(self, networks: Mapping[str, Path], settings: Settings):
        self.networks, self.settings = dict(networks), settings
        self.numbers = itertools.count()
        self.waiting: dict[int, tuple[asyncio.Future[None], ReportProgress]] = {}
        self.up = asyncio.Event()
        self.failure: str | None = None
        self.process: Any = None
        self.control: Connection | None = None
        self.restarts = 0
        self.was_ready = False

    @property
    def slots(self) -> int:
        return self.settings.workers

    @property
    def ready(self) -> bool:
        return self.up.is_set()

    async def start(self) -> None:
        """Wait until the weights are encoded. Raises PolyNeXtError if a folder cannot be used."""
        inference.fork_context()  # raises where processes cannot fork
        self.launch()
        while not self.up.is_set() and self.failure is None:
            await asyncio.sleep(0.02)
        if self.failure is not None:
            raise PolyNeXtError(self.failure)

    def launch(self) -> None:
        if self.failure is not None:
            return
        spawn = multiprocessing.get_context("spawn")  # a fork would copy this process's threads and sockets
        ours, theirs = spawn.Pipe()
        given = (theirs, self.networks, self.settings)
        self.process = spawn.Process(target=inference.main, args=given, name="polynext-inference")
        self.process.start()
        theirs.close()
        self.control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self.receive)

    def receive(self) -> None:
        assert self.control is not None
        try:
            while self.control.poll():
                self.handle(self.control.recv())
        except (EOFError, OSError):
            self.restart()

    def handle(self, message: tuple[Any, ...]) -> None:
        if message[0] == "ready":
            self.was_ready = True
            self.up.set()
            return
        if message[0] == "unusable":
            self.failure = message[1]
            return
        number, what, *rest = message
        future, progress = self.waiting.get(number, (None, None))
        if future is None or progress is None or future.done():
            return
        if what == "progress":
            progress(*rest)
        elif what == "done":
            future.set_result(None)
        elif what == "failed":
            future.set_exception(PolyNeXtError(*rest))
        else:
            future.set_exception(WorkerDied(*rest))

    def restart(self) -> None:
        """The inference process died: its jobs are lost. A new one starts after a pause, unless none ever started."""
        self.disconnect()
        for future, _ in list(self.waiting.values()):
            if not future.done():
                future.set_exception(WorkerDied("the inference process"))
        if not self.was_ready and self.failure is None:
            self.failure = "the inference process died while it started: its error is above, or memory is too small."
        if self.failure is None:
            self.restarts += 1
            asyncio.get_running_loop().call_later(min(0.1 * 2 ** min(self.restarts, 8), 20), self.launch)

    def disconnect(self) -> None:
        self.up.clear()
        if self.control is not None:
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.control.close()
            self.control = None

    async def stop(self) -> None:
        self.failure = "the service has stopped"
        self.disconnect()  # ends the inference process
        if self.process is not None:
            await asyncio.to_thread(self.process.join, 5)
            if self.process.is_alive():
                self.process.kill()
                await asyncio.to_thread(self.process.join)

    async def run(self, assignment: Assignment, progress: ReportProgress) -> None:
        await self.up.wait()
        number = next(self.numbers)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[number] = future, progress
        try:
            self.send("run", number, assignment)
            await future
            self.restarts = 0
        except asyncio.CancelledError:
            self.send("stop", number)
            raise
        finally:
            del self.waiting[number]

    def forget_keys(self, keys: str) -> None:
        self.send("forget", keys)

    def send(self, *message: Any) -> None:
        try:
            if self.control is not None:
                self.control.send(message)
        except OSError:
            pass  # `receive` notices that the process died
