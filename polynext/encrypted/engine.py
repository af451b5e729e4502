"""What a program needs of an encryption library, and the two engines that need none.

`Ciphertext` and `Plaintext` are whatever an engine makes them; each ciphertext knows its level (how many primes are
gone) and its scale (what its numbers are multiples of).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polynext.circuit.maps import Array
from polynext.encrypted.parameters import Parameters

Ciphertext = Any
Plaintext = Any


class Engine(ABC):
    """Arithmetic on ciphertexts. Nothing is changed in place, except by `accumulate`."""

    parameters: Parameters
    needs_values = True  # False for one that only counts

    @abstractmethod
    def encode(self, values: Array | None, level: int, scale: float) -> Plaintext | None:
        """The values as a plaintext; None if they are so small that all of them round to zero at this scale."""

    @abstractmethod
    def add(self, left: Ciphertext, right: Ciphertext) -> Ciphertext: ...

    @abstractmethod
    def add_plain(self, left: Ciphertext, right: Plaintext) -> Ciphertext: ...

    @abstractmethod
    def multiply(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """The product, relinearised and not rescaled."""

    @abstractmethod
    def accumulate(self, total: Ciphertext | None, factor: Ciphertext, plain: Plaintext) -> Ciphertext:
        """`total + factor * plain`, where None is zero. `total` may be overwritten."""

    @abstractmethod
    def rotate(self, value: Ciphertext, steps: int) -> Ciphertext:
        """Slot s of the result is slot s + steps of the value."""

    @abstractmethod
    def rescale(self, value: Ciphertext, scale: float) -> Ciphertext:
        """Divides by the level's prime, which brings the scale to about `scale`, and drops it."""

    @abstractmethod
    def drop(self, value: Ciphertext, level: int) -> Ciphertext:
        """The value with its primes dropped down to a level."""


@dataclass(eq=False)
class Slots:
    """A ciphertext without encryption."""

    level: int
    scale: float
    values: Array | None = None
    engine: "TallyEngine | None" = None

    def __post_init__(self) -> None:
        if self.engine:
            self.engine.hold(self.level, 1)

    def __del__(self) -> None:
        if self.engine:
            self.engine.hold(self.level, -1)


@dataclass(eq=False)
class Constants:
    """A plaintext without encryption."""

    level: int
    scale: float
    values: Array | None = None


@dataclass(eq=False)
class TallyEngine(Engine):
    """Counts what a program does and what it holds, and computes nothing.

    It is as strict as a real one: levels and scales must agree, and there must be a key for each rotation.
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

    def slots(self, level: int, scale: float, values: Array | None) -> Slots:
        return Slots(level, scale, values, self)

    def encode(self, values: Array | None, level: int, scale: float) -> Constants:
        self.plaintext_bytes += self.parameters.ciphertext_bytes(level) // 2
        return Constants(level, scale, values)

    def add(self, left: Slots, right: Slots) -> Slots:
        agree(left, right)
        self.count("add", left.level)
        return self.slots(left.level, left.scale, self.sum(left.values, right.values))

    def add_plain(self, left: Slots, right: Constants) -> Slots:
        agree(left, right)
        self.count("add", left.level)
        return self.slots(left.level, left.scale, self.sum(left.values, right.values))

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


class ClearEngine(TallyEngine):
    """Computes on slots exactly, without encryption: what the encrypted program should give."""

    needs_values = True

    def encrypt(self, values: Array) -> Slots:
        return self.slots(0, self.parameters.input_scale, values)

    def decrypt(self, value: Slots) -> Array:
        assert value.values is not None
        return value.values

    def sum(self, left: Any, right: Any) -> Array:
        return left + right

    def product(self, left: Any, right: Any) -> Array:
        return left * right

    def rolled(self, values: Any, steps: int) -> Array:
        return np.roll(values, -steps)


def agree(left: Any, right: Any) -> None:
    assert left.level == right.level, f"levels {left.level} and {right.level} differ"
    assert abs(left.scale / right.scale - 1) < 1e-6, f"scales {left.scale} and {right.scale} differ"
