"""Running a program without computing anything: what the bill is made of."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.protocol import CONJUGATION, Evaluator
from polynext.encrypted.runtime.parameters import Parameters


@dataclass(eq=False)
class Slots:
    """A ciphertext without encryption, and without values for one that only counts."""

    level: int
    scale: float
    values: Array | None = None
    counter: "CountingEvaluator | None" = None

    def __post_init__(self) -> None:
        if self.counter:
            self.counter.hold(self.level, 1)

    def __del__(self) -> None:
        if self.counter:
            self.counter.hold(self.level, -1)


@dataclass(eq=False)
class Constants:
    """A plaintext likewise."""

    level: int
    scale: float
    values: Array | None = None


@dataclass(eq=False)
class CountingEvaluator(Evaluator):
    """Counts what a program does and what it holds, and computes nothing.

    It is as strict as a library: levels and scales must agree, and there must be a key for each rotation.
    """

    parameters: Parameters
    rotations: Collection[int]
    operations: Counter[tuple[str, int]] = field(default_factory=Counter)  # by name and number of primes
    plaintext_bytes: int = 0
    held: Counter[int] = field(default_factory=Counter)  # ciphertexts at each level now
    most_held: Counter[int] = field(default_factory=Counter)
    needs_values = False

    def hold(self, level: int, more: int) -> None:
        self.held[level] += more
        self.most_held[level] = max(self.most_held[level], self.held[level])

    @property
    def ciphertext_bytes(self) -> int:
        """What ciphertexts take at most: an allocator that keeps what is freed for others of the same size, as SEAL's
        does, has the most of each level in the end."""
        return sum(n * self.parameters.ciphertext_bytes(level) for level, n in self.most_held.items())

    def count(self, operation: str, level: int) -> None:
        self.operations[operation, self.parameters.primes_at(level)] += 1

    def total(self, operation: str) -> int:
        return sum(n for (name, _), n in self.operations.items() if name == operation)

    def image(self, values: Array | None = None) -> Slots:
        """What stands for a freshly encrypted image."""
        return self.slots(0, self.parameters.input_scale, values)

    def slots(self, level: int, scale: float, values: Array | None) -> Slots:
        return Slots(level, scale, values, self)

    def encode(self, values: Array | None, level: int, scale: float) -> Constants:
        self.count("encode", level)
        self.plaintext_bytes += self.parameters.ciphertext_bytes(level) // 2
        return Constants(level, scale, values)

    def add(self, left: Slots, right: Slots | Constants) -> Slots:
        agree(left, right)
        self.count("add", left.level)
        return self.slots(left.level, left.scale, self.sum(left.values, right.values))

    add_plain = add

    def multiply(self, left: Slots, right: Slots) -> Slots:
        assert left.level == right.level, "levels differ"
        self.count("multiply", left.level)
        return self.slots(left.level, left.scale * right.scale, self.product(left.values, right.values))

    def accumulate(self, total: Slots | None, factor: Slots, plain: Constants) -> Slots:
        assert factor.level == plain.level, "levels differ"
        self.count("multiply_plain", factor.level)
        product = self.slots(factor.level, factor.scale * plain.scale, self.product(factor.values, plain.values))
        return product if total is None else self.add(total, product)

    def rotate(self, value: Slots, steps: int) -> Slots:
        assert steps % self.parameters.slots in self.rotations, f"there is no key to rotate by {steps}"
        self.count("rotate", value.level)
        return self.slots(value.level, value.scale, self.rolled(value.values, steps))

    def conjugate(self, value: Slots) -> Slots:
        assert CONJUGATION in self.rotations, "there is no key to conjugate"
        self.count("rotate", value.level)
        return self.slots(value.level, value.scale, self.conjugated(value.values))

    def rescale(self, value: Slots, scale: float) -> Slots:
        self.count("rescale", value.level)
        reached = value.scale / self.parameters.prime(value.level)
        assert abs(reached / scale - 1) < 1e-6, f"the scale comes to {reached}, not {scale}"
        return self.slots(value.level + 1, scale, value.values)

    def drop(self, value: Slots, level: int) -> Slots:
        if level == value.level:
            return value
        assert level > value.level, "a dropped prime does not come back"
        self.count("drop", value.level)
        return self.slots(level, value.scale, value.values)

    def sum(self, left: Array | None, right: Array | None) -> Array | None:
        return None

    def product(self, left: Array | None, right: Array | None) -> Array | None:
        return None

    def rolled(self, values: Array | None, steps: int) -> Array | None:
        return None

    def conjugated(self, values: Array | None) -> Array | None:
        return None


def agree(left: Any, right: Any) -> None:
    assert left.level == right.level, f"levels {left.level} and {right.level} differ"
    assert abs(left.scale / right.scale - 1) < 1e-6, f"scales {left.scale} and {right.scale} differ"
