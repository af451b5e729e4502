"""One ciphertext on several cores.

SEAL holds Python's lock, so every core needs a process. Each process goes through the whole program. All of them make
the same decision, by the cost of operations, which one computes each operation. The others know the level and scale of
the result, and receive the ciphertext if they need it, through a file and a message in a pipe. The processes are forks
and share keys and weights.
"""

import copy
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.protocol import Ciphertext, Costs, Evaluator, Plaintext, Ring
from polynext.encrypted.runtime.execution import EncodedCombination, execute
from polynext.encrypted.runtime.program import Program
from polynext.errors import PolyNeXtError

# The time to write or read a ciphertext, in additions; the slowdown of each process by the others, which use the same
# memory; and the seconds to start processes.
TRANSFER_ADDITIONS, SLOWDOWN, START_SECONDS = 8, 1.15, 0.1


def fork_context() -> Any:
    """Multiprocessing by fork. Raises PolyNeXtError where the operating system has no fork."""
    try:
        return multiprocessing.get_context("fork")
    except ValueError as error:
        raise PolyNeXtError("this operating system has no fork: use one process, or Linux or macOS.") from error


@dataclass(eq=False)
class Value:
    """A ciphertext that some of the processes have."""

    number: int
    level: int
    scale: float
    ready: dict[int, float]  # when each process has it
    sender: int = 0  # the process that sends it to the others
    body: Ciphertext | None = None  # in this process


@dataclass(eq=False)
class Deferred:
    """A plaintext that is encoded by the process that needs it."""

    values: Array
    level: int
    scale: float
    made: Plaintext | None = None

    def encode(self, evaluator: Evaluator) -> Plaintext:
        """Encodes the values. If all round to zero, encodes the smallest multiple: the others expect a term."""
        if self.made is None:
            self.made = evaluator.encode(self.values, self.level, self.scale)
        if self.made is None:
            self.made = evaluator.encode(np.full(len(self.values), 1 / self.scale), self.level, self.scale)
        return self.made


class Exchange:
    """Sends ciphertexts to other processes and receives theirs."""

    def __init__(self, me: int, pipes: Mapping[int, Connection], ring: Ring, folder: Path):
        self.me, self.pipes, self.ring, self.folder = me, pipes, ring, folder
        self.sent: dict[int, float] = {}  # scales of the ciphertexts that were sent to this process

    def path(self, value: Value, to: int) -> Path:
        return self.folder / f"{value.number}-{to}"

    def send(self, value: Value, to: int) -> None:
        body = self.body(value)
        body.save(str(self.path(value, to)))
        self.pipes[to].send((value.number, body.scale))

    def body(self, value: Value) -> Ciphertext:
        """A value that this process has or receives."""
        if value.body is None:
            while value.number not in self.sent:
                number, scale = self.pipes[value.sender].recv()
                if isinstance(scale, Exception):
                    raise scale
                self.sent[number] = scale
            path = self.path(value, self.me)
            value.body = self.ring.load_ciphertext(path, value.level, self.sent.pop(value.number))
            path.unlink()
        return value.body


class SharingEvaluator(Evaluator):
    """Computes the operations of this process. Without an exchange it only estimates the time of all processes."""

    def __init__(self, evaluator: Evaluator, costs: Costs, processes: int, exchange: Exchange | None = None):
        self.evaluator, self.costs, self.exchange = evaluator, costs, exchange
        self.parameters = evaluator.parameters
        self.clocks = [0.0] * processes  # the computing time of each process
        self.count = 0

    @property
    def seconds(self) -> float:
        return max(self.clocks)

    def image(self, body: Ciphertext | None = None) -> Value:
        """The image, which all processes have."""
        return Value(0, 0, self.parameters.input_scale, dict.fromkeys(range(len(self.clocks)), 0.0), body=body)

    def takes(self, operation: str, level: int) -> float:
        return self.costs(Counter({(operation, self.parameters.primes_at(level)): 1}))

    def operation(
        self,
        operands: Sequence[Value],
        level: int,
        scale: float,
        seconds: float,
        compute: Callable[..., Ciphertext],
        at: int | None = None,
    ) -> Value:
        """The result of an operation, computed by process `at`, or by the process that can start first."""
        transfer = TRANSFER_ADDITIONS * self.takes("add", level)

        def start(process: int) -> float:
            arrivals = [v.ready.get(process, self.clocks[v.sender] + 2 * transfer) for v in operands]
            return max(self.clocks[process], *arrivals)

        chosen = min(range(len(self.clocks)), key=start) if at is None else at
        for operand in operands:
            self.send_to(operand, chosen)
        done = self.clocks[chosen] = start(chosen) + seconds
        self.count += 1
        result = Value(self.count, level, scale, {chosen: done}, chosen)
        if self.exchange and self.exchange.me == chosen:
            result.body = compute(*map(self.exchange.body, operands))
        return result

    def send_to(self, value: Value, to: int) -> None:
        if to in value.ready:
            return
        transfer = TRANSFER_ADDITIONS * self.takes("add", value.level)
        self.clocks[value.sender] += transfer
        self.clocks[to] += transfer
        value.ready[to] = self.clocks[value.sender]
        if self.exchange and self.exchange.me == value.sender:
            self.exchange.send(value, to)

    def send_to_all(self, value: Value) -> None:
        for process in range(len(self.clocks)):
            self.send_to(value, process)

    def encode(self, values: Array | None, level: int, scale: float) -> Deferred:
        assert values is not None
        return Deferred(values, level, scale)

    def encoded(self, plain: Plaintext) -> Plaintext:
        return plain.encode(self.evaluator) if isinstance(plain, Deferred) else plain

    def add(self, left: Value, right: Value) -> Value:
        return self.operation((left, right), left.level, left.scale, self.takes("add", left.level), self.evaluator.add)

    def add_plain(self, left: Value, right: Plaintext) -> Value:
        def compute(body: Ciphertext) -> Ciphertext:
            return self.evaluator.add_plain(body, self.encoded(right))

        return self.operation((left,), left.level, left.scale, self.takes("add", left.level), compute)

    def multiply(self, left: Value, right: Value) -> Value:
        seconds, scale = self.takes("multiply", left.level), left.scale * right.scale
        return self.operation((left, right), left.level, scale, seconds, self.evaluator.multiply)

    def accumulate(self, total: Value | None, factor: Value, plain: Plaintext) -> Value:
        seconds = self.takes("multiply_plain", factor.level)
        if isinstance(plain, Deferred):
            seconds += self.takes("encode", factor.level)
        if total is None:
            scale = factor.scale * plain.scale
            return self.operation(
                (factor,),
                factor.level,
                scale,
                seconds,
                lambda f: self.evaluator.accumulate(None, f, self.encoded(plain)),
            )
        return self.operation(
            (total, factor),
            factor.level,
            total.scale,
            seconds,
            lambda t, f: self.evaluator.accumulate(t, f, self.encoded(plain)),
            at=total.sender,
        )

    def rotate(self, value: Value, steps: int) -> Value:
        seconds = self.takes("rotate", value.level)
        return self.operation(
            (value,), value.level, value.scale, seconds, lambda body: self.evaluator.rotate(body, steps)
        )

    def rotate_many(self, value: Value, steps: Iterable[int]) -> list[Value]:
        """All processes need the rotations and the value itself."""
        self.send_to_all(value)
        made = []
        for by in steps:
            made.append(self.rotate(value, by))
            self.send_to_all(made[-1])
        return made

    def conjugate(self, value: Value) -> Value:
        return self.operation(
            (value,), value.level, value.scale, self.takes("rotate", value.level), self.evaluator.conjugate
        )

    def rescale(self, value: Value, scale: float) -> Value:
        seconds = self.takes("rescale", value.level)
        return self.operation(
            (value,), value.level + 1, scale, seconds, lambda body: self.evaluator.rescale(body, scale)
        )

    def rescale_to(self, value: Value, one: Plaintext, scale: float) -> Value:
        seconds = self.takes("multiply_plain", value.level) + self.takes("rescale", value.level)
        return self.everywhere(
            value,
            value.level + 1,
            scale,
            seconds,
            lambda body: self.evaluator.rescale_to(body, self.encoded(one), scale),
        )

    def drop(self, value: Value, level: int) -> Value:
        if level == value.level:
            return value
        seconds = self.takes("drop", value.level)
        return self.everywhere(value, level, value.scale, seconds, lambda body: self.evaluator.drop(body, level))

    def everywhere(
        self, value: Value, level: int, scale: float, seconds: float, compute: Callable[[Ciphertext], Ciphertext]
    ) -> Value:
        """Computes an operation in every process that has the value, because sending the result would take as long."""
        ready = {}
        for process, at in value.ready.items():
            ready[process] = self.clocks[process] = max(self.clocks[process], at) + seconds
        self.count += 1
        result = Value(self.count, level, scale, ready, value.sender)
        if self.exchange and self.exchange.me in ready:
            result.body = compute(self.exchange.body(value))
        return result


@dataclass(eq=False)
class Shared:
    """A program that is run by several processes: this one and its forks."""

    program: Program
    combinations: list[list[EncodedCombination]]
    evaluator: Evaluator
    costs: Costs
    processes: int

    def evaluators(self, exchange: Exchange | None) -> tuple[SharingEvaluator, list[list[EncodedCombination]]]:
        """An evaluator for this process, and its linear combinations: it encodes weights that are not cached."""
        sharing = SharingEvaluator(self.evaluator, self.costs, self.processes, exchange)
        combinations = [[copy.copy(combination) for combination in step] for step in self.combinations]
        for combination in (combination for step in combinations for combination in step):
            combination.evaluator = sharing
        return sharing, combinations

    def best(self) -> "Shared":
        """The same program with the number of processes that is fastest."""
        return min((replace(self, processes=n) for n in range(1, self.processes + 1)), key=lambda each: each.seconds)

    @cached_property
    def seconds(self) -> float:
        """The predicted time."""
        sharing, combinations = self.evaluators(None)
        execute(self.program, combinations, sharing, sharing.image())
        return sharing.seconds if self.processes == 1 else SLOWDOWN * sharing.seconds + START_SECONDS

    def run(self, image: Ciphertext, ring: Ring) -> Ciphertext:
        if self.processes == 1:
            return execute(self.program, self.combinations, self.evaluator, image)
        context, numbers = fork_context(), range(self.processes)
        pipes: list[dict[int, Connection]] = [{} for _ in numbers]
        for left in numbers:
            for right in range(left):
                pipes[left][right], pipes[right][left] = context.Pipe()
        with tempfile.TemporaryDirectory() as folder:
            exchanges = [Exchange(me, pipes[me], ring, Path(folder)) for me in numbers]
            forks = [
                context.Process(target=self.take_part, args=(exchanges, me, image), daemon=True) for me in numbers[1:]
            ]
            for fork in forks:
                fork.start()
            close_others(exchanges, 0)
            try:
                return self.part(exchanges[0], image)
            except (EOFError, OSError) as error:
                raise PolyNeXtError("a worker process died: give fewer --processes, or more memory.") from error
            finally:
                for fork in forks:
                    fork.kill()
                    fork.join()

    def part(self, exchange: Exchange, image: Ciphertext) -> Ciphertext:
        """Runs the program in one process. The first one returns the result."""
        sharing, combinations = self.evaluators(exchange)
        result: Any = execute(self.program, combinations, sharing, sharing.image(image))
        sharing.send_to(result, 0)
        return exchange.body(result) if exchange.me == 0 else None

    def take_part(self, exchanges: list[Exchange], me: int, image: Ciphertext) -> None:
        close_others(exchanges, me)
        with suppress(EOFError, OSError):  # raised if another process has ended
            try:
                self.part(exchanges[me], image)
            except (RuntimeError, ValueError) as error:
                for pipe in exchanges[me].pipes.values():
                    pipe.send((None, error))


def close_others(exchanges: list[Exchange], me: int) -> None:
    for exchange in exchanges:
        if exchange.me != me:
            for pipe in exchange.pipes.values():
                pipe.close()
