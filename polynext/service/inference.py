"""The inference process: it holds the encoded weights of all networks and the keys in use, and computes each job in a
fork of itself.

Forks share this memory, and each has threads of its own. A job can be stopped by ending its fork, whose memory is then
free, and one that dies does not affect the others.
"""

import multiprocessing
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from polynext.encrypted.key_folder import flush
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Ciphertext, EvaluationKeys, Evaluator, Part
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.server import load_client_spec, load_server
from polynext.errors import PolyNeXtError
from polynext.service.settings import Settings
from polynext.threads import cores


def fork_context() -> Any:
    """Multiprocessing by fork. Raises PolyNeXtError where the operating system has no fork."""
    try:
        return multiprocessing.get_context("fork")
    except ValueError as error:
        raise PolyNeXtError("this operating system has no fork: serve on Linux or macOS.") from error


LOAD_SECONDS = 120.0  # for the keys of one client


@dataclass(frozen=True)
class Assignment:
    """A job for a worker: the network, the keys, the files, and the dialect of SEAL that the client reads."""

    network: str
    keys: str
    key_folder: Path
    request: Path
    answer: Path
    dialect: str

    def publish(self, ready: Path) -> None:
        """Move a complete answer to its place, and wait until it is on disk."""
        flush(ready)
        ready.replace(self.answer)
        flush(self.answer.parent)


class LoadedNetwork:
    """A program with encoded weights. The keys come with each job, which uses `threads` threads, if the engine has
    threads."""

    def __init__(self, folder: Path, threads: int):
        self.threads = threads
        self.spec = load_client_spec(folder)
        self.program = load_server(folder, self.spec)
        self.ring = get_backend(self.spec.backend).ring(self.spec.parameters)
        self.encoder = self.ring.evaluator(EvaluationKeys(None, {}), threads)  # encoding needs no keys
        self.encoded = encode_program(self.program, self.encoder)
        self.encoder.use_threads(1)  # this process forks

    def load_keys(self, folder: Path) -> EvaluationKeys:
        relinearisation, *rotations = Part.keys(self.spec.rotations)
        files = {part.step: folder / part.name for part in rotations}
        return self.ring.load_evaluation_keys(folder / relinearisation.name, files)

    def answer(self, assignment: Assignment, keys: EvaluationKeys, report: Connection) -> None:
        """Compute a job, in a fork."""
        self.encoder.use_threads(self.threads)  # encodes the weights that are not cached
        image = self.ring.load_ciphertext(assignment.request, 0, self.ring.parameters.input_scale)
        cost = self.spec.cost
        operations = cost.rotations + cost.ciphertext_products
        evaluator: Any = ProgressEvaluator(self.ring.evaluator(keys, self.threads), operations, report)
        try:
            result = execute(self.program, self.encoded, evaluator, image)
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"computing on the ciphertext failed ({error}): encrypt again, with the keys that were sent."
            ) from error
        raw, ready = assignment.answer.with_suffix(".raw"), assignment.answer.with_suffix(".ready")
        result.save(str(raw))
        self.ring.deliver(raw, ready, assignment.dialect)
        raw.unlink()
        assignment.publish(ready)


class ProgressEvaluator:
    """An evaluator that reports progress, by counting the operations that take nearly all of the time."""

    def __init__(self, evaluator: Evaluator, operations: int, report: Connection):
        self.evaluator, self.operations, self.report = evaluator, max(operations, 1), report
        self.done, self.reported = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.evaluator, name)

    def rotate(self, value: Ciphertext, steps: int) -> Ciphertext:
        self.count(1)
        return self.evaluator.rotate(value, steps)

    def rotate_many(self, value: Ciphertext, steps: Any) -> list[Ciphertext]:
        rotated = self.evaluator.rotate_many(value, steps)
        self.count(len(rotated))
        return rotated

    def conjugate(self, value: Ciphertext) -> Ciphertext:
        self.count(1)
        return self.evaluator.conjugate(value)

    def multiply(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        self.count(1)
        return self.evaluator.multiply(left, right)

    def count(self, operations: int) -> None:
        self.done += operations
        progress = min(self.done / self.operations, 0.99)
        if progress >= self.reported + 0.02:
            self.reported = progress
            self.report.send(("progress", progress))


class KeyCache:
    """The most recently used keys, loaded, within a limit of memory."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self.loaded: OrderedDict[str, tuple[EvaluationKeys, int]] = OrderedDict()

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.loaded.values())

    def get(self, network: LoadedNetwork, assignment: Assignment) -> EvaluationKeys:
        if assignment.keys not in self.loaded:
            require_survival(lambda: network.load_keys(assignment.key_folder))
            size = network.spec.cost.key_bytes
            while self.loaded and self.bytes + size > self.most_bytes:
                self.loaded.popitem(last=False)
            self.loaded[assignment.keys] = network.load_keys(assignment.key_folder), size
        self.loaded.move_to_end(assignment.keys)
        return self.loaded[assignment.keys][0]

    def forget(self, keys: str) -> None:
        self.loaded.pop(keys, None)


class ForkDied(Exception):  # noqa: N818  (not an error of the job, which runs again)
    """The fork that loaded keys died."""


def require_survival(load: Callable[[], object]) -> None:
    """Load untrusted keys in a fork first. Raises ForkDied if it dies; the inference process must not."""

    def attempt() -> None:
        with suppress(PolyNeXtError, OSError):  # which loading raises again in this process
            load()

    process = fork_context().Process(target=attempt, daemon=True)
    process.start()
    process.join(LOAD_SECONDS)
    if process.exitcode != 0:
        process.kill()
        process.join()
        raise ForkDied(f"exit status {process.exitcode} while loading keys")


@dataclass
class RunningFork:
    process: BaseProcess
    reports: Connection
    deadline: float
    outcome: tuple[Any, ...] = ("died", "")


class InferenceProcess:
    """The loop of the process.

    It receives ("run", number, assignment), ("stop", number) and ("forget", keys). It sends ("ready",), and for each
    assignment (number, "progress", share), then one of (number, "done"), (number, "failed", message) and (number,
    "died", reason).
    """

    def __init__(self, control: Connection, networks: Mapping[str, Path], settings: Settings):
        self.control, self.job_seconds = control, settings.job_seconds
        threads = settings.threads or cores()
        self.networks = {name: LoadedNetwork(folder, threads) for name, folder in networks.items()}
        self.keys = KeyCache(settings.key_memory)
        self.forks: dict[int, RunningFork] = {}
        control.send(("ready",))

    def run(self) -> None:
        while True:
            reports = {fork.reports: number for number, fork in self.forks.items()}
            for ready in wait([self.control, *reports], timeout=1.0):
                if ready is self.control:
                    self.handle(*self.control.recv())
                elif isinstance(ready, Connection):
                    self.receive_report(reports[ready])
            for fork in self.forks.values():
                if time.monotonic() > fork.deadline:
                    fork.outcome = ("failed", f"it took longer than {self.job_seconds:.0f} s and was stopped.")
                    fork.process.kill()

    def handle(self, command: str, *given: Any) -> None:
        if command == "run":
            self.start(*given)
        elif command == "stop" and given[0] in self.forks:
            self.forks[given[0]].process.kill()
        elif command == "forget":
            self.keys.forget(*given)

    def start(self, number: int, assignment: Assignment) -> None:
        network = self.networks[assignment.network]
        try:
            keys = self.keys.get(network, assignment)
        except ForkDied as death:
            self.control.send((number, "died", str(death)))
            return
        except PolyNeXtError as error:
            self.control.send((number, "failed", f"the keys cannot be loaded: {error}"))
            return
        except OSError as error:  # whose message would show the server's paths
            self.control.send((number, "failed", f"the keys cannot be loaded ({error.strerror}): send them again."))
            return
        context = fork_context()
        reports, report = context.Pipe(duplex=False)
        pipes = [self.control, reports, *(fork.reports for fork in self.forks.values())]
        process = context.Process(target=run_fork, args=(network, assignment, keys, report, pipes), daemon=True)
        process.start()
        report.close()
        self.forks[number] = RunningFork(process, reports, time.monotonic() + self.job_seconds)

    def receive_report(self, number: int) -> None:
        fork = self.forks[number]
        try:
            message = fork.reports.recv()
        except (EOFError, OSError):
            fork.process.join()
            fork.reports.close()
            del self.forks[number]
            if fork.outcome[0] == "died":
                fork.outcome = ("died", f"exit status {fork.process.exitcode}")
            self.control.send((number, *fork.outcome))
            return
        if message[0] == "progress":
            self.control.send((number, *message))
        else:
            fork.outcome = message


def run_fork(
    network: LoadedNetwork, assignment: Assignment, keys: EvaluationKeys, report: Connection, pipes: list[Connection]
) -> None:
    """Compute one job. Inherited `pipes` are closed first: a closed pipe is the sign that a process died."""
    for connection in pipes:
        connection.close()
    try:
        network.answer(assignment, keys, report)
        report.send(("done",))
    except PolyNeXtError as error:
        report.send(("failed", str(error)))
    except FileNotFoundError:
        report.send(("failed", "it was deleted while it ran."))
    except BrokenPipeError:
        os._exit(1)  # the inference process died, and the job will run again
    except OSError as error:
        report.send(("failed", f"the server cannot write the answer ({error.strerror}): try again later."))


def main(control: Connection, networks: Mapping[str, Path], settings: Settings) -> None:
    """Run the inference process until the process that started it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the service handles it
    try:
        InferenceProcess(control, networks, settings).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except PolyNeXtError as error:
        control.send(("unusable", str(error)))
    finally:
        for child in multiprocessing.active_children():
            child.kill()
