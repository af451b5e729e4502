"""The process that computes. It holds every network's encoded weights and the keys in use, once for the machine, and
answers each ciphertext in a fork of itself: forks share that memory, a second core needs a second process because SEAL
holds Python's lock, what a fork takes beyond it is free again when it ends, and one that dies takes nobody with it.
"""

import multiprocessing
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Ciphertext, EvaluationKeys, Evaluator, Part
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.server import load_client_spec, load_server
from polynext.errors import PolyNeXtError

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Assignment:
    """A ciphertext to be answered: by which network, with which keys, from where to where, and in which dialect."""

    network: str
    keys: str
    key_folder: Path
    request: Path
    answer: Path
    dialect: str


class Loaded:
    """A network ready to compute, for whatever keys."""

    def __init__(self, folder: Path):
        self.spec = load_client_spec(folder)
        self.program = load_server(folder, self.spec)
        self.ring = get_backend(self.spec.backend).ring(self.spec.parameters)
        without_keys: Any = None
        self.encoded = encode_program(self.program, self.ring.evaluator(EvaluationKeys(without_keys, {})))
        cost = self.spec.cost
        self.operations = cost.rotations + cost.ciphertext_products

    def load_keys(self, folder: Path) -> EvaluationKeys:
        rotations = {part.step: folder / part.name for part in Part.keys(self.spec.rotations)[1:]}
        return self.ring.load_evaluation_keys(folder / "relinearisation", rotations)

    def answer(self, assignment: Assignment, keys: EvaluationKeys, report: Connection) -> None:
        image = self.ring.load_ciphertext(assignment.request, 0, self.ring.parameters.input_scale)
        watched: Any = Watched(self.ring.evaluator(keys), self.operations, report)
        try:
            result = execute(self.program, self.encoded, watched, image)
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"the ciphertext cannot be computed with ({error}): encrypt it again, with the keys that were sent."
            ) from error
        raw, ready = assignment.answer.with_suffix(".raw"), assignment.answer.with_suffix(".ready")
        result.save(str(raw))
        self.ring.deliver(raw, ready, assignment.dialect)
        raw.unlink()
        ready.replace(assignment.answer)


class Watched:
    """An evaluator that tells how far it is, by the operations that take nearly all of the time."""

    def __init__(self, evaluator: Evaluator, operations: int, report: Connection):
        self.evaluator, self.operations, self.report = evaluator, max(operations, 1), report
        self.done, self.told = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.evaluator, name)

    def rotate(self, value: Ciphertext, steps: int) -> Ciphertext:
        self.count(1)
        return self.evaluator.rotate(value, steps)

    def rotate_many(self, value: Ciphertext, steps: Any) -> list[Ciphertext]:
        made = self.evaluator.rotate_many(value, steps)
        self.count(len(made))
        return made

    def multiply(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        self.count(1)
        return self.evaluator.multiply(left, right)

    def count(self, operations: int) -> None:
        self.done += operations
        progress = min(self.done / self.operations, 0.99)
        if progress >= self.told + 0.02:
            self.told = progress
            self.report.send(("progress", progress))


class KeyCache:
    """Keys that are loaded, the most recently used ones, within a bound of memory."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self.held: OrderedDict[str, tuple[EvaluationKeys, int]] = OrderedDict()

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.held.values())

    def get(self, network: Loaded, assignment: Assignment) -> EvaluationKeys:
        if assignment.keys not in self.held:
            size = network.spec.cost.key_bytes
            while self.held and self.bytes + size > self.most_bytes:
                self.held.popitem(last=False)
            self.held[assignment.keys] = network.load_keys(assignment.key_folder), size
        self.held.move_to_end(assignment.keys)
        return self.held[assignment.keys][0]

    def forget(self, keys: str) -> None:
        self.held.pop(keys, None)


@dataclass
class Running:
    """A fork at work."""

    process: ForkProcess
    reports: Connection
    deadline: float
    outcome: tuple[Any, ...] = ("died", "")


class Answerer:
    """What the process does.

    It is told ("run", number, assignment), ("stop", number) and ("forget", keys). It tells ("ready",), then of each
    assignment (number, "progress", share) and (number, "done"), (number, "refused" or "failed", sentence) or (number,
    "died", how).
    """

    def __init__(self, control: Connection, networks: Mapping[str, Path], key_memory: int, job_seconds: float):
        self.control, self.job_seconds = control, job_seconds
        self.networks = {name: Loaded(folder) for name, folder in networks.items()}
        self.keys = KeyCache(key_memory)
        self.running: dict[int, Running] = {}
        control.send(("ready",))

    def run(self) -> None:
        while True:
            reports = {running.reports: number for number, running in self.running.items()}
            for ready in wait([self.control, *reports], timeout=1.0):
                if ready is self.control:
                    self.obey(*self.control.recv())
                elif isinstance(ready, Connection):
                    self.hear(reports[ready])
            for running in self.running.values():
                if time.monotonic() > running.deadline:
                    running.outcome = ("refused", f"it took longer than {self.job_seconds:.0f} s and was stopped.")
                    running.process.kill()

    def obey(self, what: str, *given: Any) -> None:
        if what == "run":
            self.start(*given)
        elif what == "stop" and given[0] in self.running:
            self.running[given[0]].process.kill()
        elif what == "forget":
            self.keys.forget(*given)

    def start(self, number: int, assignment: Assignment) -> None:
        network = self.networks[assignment.network]
        try:
            keys = self.keys.get(network, assignment)
        except (PolyNeXtError, OSError) as error:
            self.control.send((number, "refused", f"the keys cannot be used: {error}"))
            return
        reports, report = FORK.Pipe(duplex=False)
        ours = [self.control, reports, *(running.reports for running in self.running.values())]
        process = FORK.Process(target=work, args=(network, assignment, keys, report, ours), daemon=True)
        process.start()
        report.close()
        self.running[number] = Running(process, reports, time.monotonic() + self.job_seconds)

    def hear(self, number: int) -> None:
        running = self.running[number]
        try:
            message = running.reports.recv()
        except (EOFError, OSError):
            running.process.join()
            running.reports.close()
            del self.running[number]
            if running.outcome[0] == "died":
                running.outcome = ("died", f"exit status {running.process.exitcode}")
            self.control.send((number, *running.outcome))
            return
        if message[0] == "progress":
            self.control.send((number, *message))
        else:
            running.outcome = message


def work(
    network: Loaded, assignment: Assignment, keys: EvaluationKeys, report: Connection, answerers: list[Connection]
) -> None:
    """What a fork does. It must not keep the answerer's ends of pipes open: they are how deaths are noticed."""
    for connection in answerers:
        connection.close()
    try:
        network.answer(assignment, keys, report)
        report.send(("done",))
    except PolyNeXtError as error:
        report.send(("refused", str(error)))
    except FileNotFoundError:
        report.send(("refused", "it was deleted while it was worked on."))
    except BrokenPipeError:
        os._exit(1)  # the answerer is gone, and the job will be done again
    except OSError as error:
        report.send(("failed", f"the server cannot write the answer ({error.strerror}): ask again later."))


def main(control: Connection, networks: Mapping[str, Path], key_memory: int, job_seconds: float) -> None:
    """The process. It ends with the one that started it, which closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal's processes; the service decides
    try:
        Answerer(control, networks, key_memory, job_seconds).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except PolyNeXtError as error:
        control.send(("unusable", str(error)))
    finally:
        for child in multiprocessing.active_children():
            child.kill()
