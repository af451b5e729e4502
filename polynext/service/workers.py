"""Who does the computing: an answerer process on this machine. `cluster.py` has answerers on several."""

import asyncio
import itertools
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from polynext.errors import PolyNeXtError
from polynext.service import answering
from polynext.service.answering import Assignment
from polynext.service.settings import Settings

Progress = Callable[[float], None]


class WorkerDied(Exception):  # noqa: N818  (nobody's error: the job is done again)
    """Whoever worked on a job is gone, and the job is as it was."""


class Workers(ABC):
    """Answers ciphertexts, several at a time."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many at a time."""

    @property
    @abstractmethod
    def ready(self) -> bool: ...

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def run(self, assignment: Assignment, progress: Progress) -> None:
        """Returns when the answer is in its place. Raises PolyNeXtError if there can be none, else WorkerDied."""

    @abstractmethod
    def forget_keys(self, keys: str) -> None: ...


class LocalWorkers(Workers):
    """An answerer on this machine, started again whenever it dies."""

    def __init__(self, networks: Mapping[str, Path], settings: Settings):
        self.networks, self.settings = dict(networks), settings
        self.numbers = itertools.count()
        self.waiting: dict[int, tuple[asyncio.Future[None], Progress]] = {}
        self.up = asyncio.Event()
        self.trouble: str | None = None
        self.process: Any = None
        self.control: Connection | None = None
        self.restarts = 0

    @property
    def slots(self) -> int:
        return self.settings.workers

    @property
    def ready(self) -> bool:
        return self.up.is_set()

    async def start(self) -> None:
        """Returns when the weights are encoded; raises if a folder cannot be used."""
        self.launch()
        while not self.up.is_set() and self.trouble is None:
            await asyncio.sleep(0.02)
        if self.trouble is not None:
            raise PolyNeXtError(self.trouble)

    def launch(self) -> None:
        if self.trouble is not None:
            return
        spawn = multiprocessing.get_context("spawn")  # a fork would copy this process's threads and sockets
        ours, theirs = spawn.Pipe()
        given = (theirs, self.networks, self.settings.key_memory, self.settings.job_seconds)
        self.process = spawn.Process(target=answering.main, args=given, name="polynext-answerer")
        self.process.start()
        theirs.close()
        self.control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self.hear)

    def hear(self) -> None:
        assert self.control is not None
        try:
            while self.control.poll():
                self.understand(self.control.recv())
        except (EOFError, OSError):
            self.lost()

    def understand(self, message: tuple[Any, ...]) -> None:
        if message[0] == "ready":
            self.up.set()
            return
        if message[0] == "unusable":
            self.trouble = message[1]
            return
        number, what, *rest = message
        future, progress = self.waiting.get(number, (None, None))
        if future is None or progress is None or future.done():
            return
        if what == "progress":
            progress(*rest)
        elif what == "done":
            future.set_result(None)
        elif what in ("refused", "failed"):
            future.set_exception(PolyNeXtError(*rest))
        else:
            future.set_exception(WorkerDied(*rest))

    def lost(self) -> None:
        """The answerer is gone, and with it what it was working on."""
        self.disconnect()
        for future, _ in list(self.waiting.values()):
            if not future.done():
                future.set_exception(WorkerDied("the answerer"))
        if self.trouble is None:
            self.restarts += 1
            asyncio.get_running_loop().call_later(min(0.1 * 2 ** min(self.restarts, 8), 20), self.launch)

    def disconnect(self) -> None:
        self.up.clear()
        if self.control is not None:
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.control.close()
            self.control = None

    async def stop(self) -> None:
        self.trouble = "the service has stopped"
        self.disconnect()  # ends the answerer
        if self.process is not None:
            await asyncio.to_thread(self.process.join, 5)
            if self.process.is_alive():
                self.process.kill()
                await asyncio.to_thread(self.process.join)

    async def run(self, assignment: Assignment, progress: Progress) -> None:
        await self.up.wait()
        number = next(self.numbers)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[number] = future, progress
        try:
            self.tell("run", number, assignment)
            await future
            self.restarts = 0
        except asyncio.CancelledError:
            self.tell("stop", number)
            raise
        finally:
            del self.waiting[number]

    def forget_keys(self, keys: str) -> None:
        self.tell("forget", keys)

    def tell(self, *message: Any) -> None:
        try:
            if self.control is not None:
                self.control.send(message)
        except OSError:
            pass  # `hear` notices that the answerer is gone
