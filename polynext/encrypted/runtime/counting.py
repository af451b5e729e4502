"""An evaluator that counts operations and ciphertexts and computes nothing: the basis of cost estimates."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from polynext.arrays import Array
from polynext.encrypted.runtime.backends.protocol import CONJUGATION, Evaluator, SlotPattern
from polynext.encrypted.runtime.parameters import Parameters

# How the native extension stores plaintexts: coefficients take 4 bytes below this scale and 8 from it on; there are at
# least so many of them, however short the period; and a few bytes follow the rows of one that is not compact.
SHORT_SCALE = 2.0**31
LEAST_COEFFICIENTS = 256
BYTES_AFTER_ROWS = 64


@dataclass(eq=False)
class Slots:
    """An unencrypted ciphertext. It has no values if its evaluator only counts."""

    level: int
    scale: float
    values: Array | None = None
    released: bool = False


@dataclass(eq=False)
class Constants:
    """A plaintext, with or without values."""

    level: int
    scale: float
    values: Array | None = None
    compact: bool = False
    share: float = 1.0  # of the words of a row that are stored


@dataclass(eq=False)
class CountingEvaluator(Evaluator):
    """Counts the operations of a program and the ciphertexts that are live at a time.

    It is as strict as a library: levels and scales must agree, there must be a key for each rotation, and a released
    ciphertext must not be used.
    """

    parameters: Parameters
    rotations: Collection[int]
    # By name and number of primes. A transform of half a row counts half.
    operations: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    plaintext_bytes: int = 0
    live: Counter[int] = field(default_factory=Counter)  # ciphertexts at each level now
    most_live: Counter[int] = field(default_factory=Counter)
    live_bytes: int = 0
    most_live_bytes: int = 0
    compacts: bool = False  # as the native evaluator does
    needs_values = False

    @property
    def ciphertext_bytes(self) -> int:
        """The peak memory of ciphertexts. SEAL reuses freed memory for blocks of the same size only, so that it ends up
        with the sum of each level's peak."""
        if self.compacts:
            return self.most_live_bytes + self.parameters.switching_bytes
        return sum(n * self.parameters.ciphertext_bytes(level) for level, n in self.most_live.items())

    def count(self, operation: str, *operands: Slots) -> None:
        assert not any(operand.released for operand in operands), f"{operation} of a released ciphertext"
        self.operations[operation, self.parameters.primes_at(operands[0].level)] += 1

    def total(self, *operations: str) -> int:
        return int(sum(n for (name, _), n in self.operations.items() if name in operations))

    def image(self, values: Array | None = None) -> Slots:
        """A stand-in for a freshly encrypted image."""
        return self.slots(0, self.parameters.input_scale, values)

    def slots(self, level: int, scale: float, values: Array | None) -> Slots:
        """A new ciphertext."""
        self.live[level] += 1
        self.most_live[level] = max(self.most_live[level], self.live[level])
        self.live_bytes += self.parameters.ciphertext_bytes(level)
        self.most_live_bytes = max(self.most_live_bytes, self.live_bytes)
        return self.ciphertext(level, scale, values)

    def ciphertext(self, level: int, scale: float, values: Array | None) -> Slots:
        return Slots(level, scale, values)

    def release(self, value: Slots) -> None:
        assert not value.released, "a ciphertext is released twice"
        value.released = True
        self.live[value.level] -= 1
        self.live_bytes -= self.parameters.ciphertext_bytes(value.level)

    def encode(self, values: Any, level: int, scale: float, compact: bool = False) -> Constants:
        self.operations["encode", self.parameters.primes_at(level)] += 1
        made = Constants(level, scale, None if isinstance(values, SlotPattern) else values, compact)
        repeats = 1
        if self.compacts and isinstance(values, SlotPattern):
            longest = self.parameters.ring_degree // LEAST_COEFFICIENTS
            repeats = min(self.parameters.slots // values.period, longest)
            made.share = 1 / repeats / (1 + values.real)
        if compact:  # coefficients are smaller than the scale, unless weights are large
            self.plaintext_bytes += self.parameters.ring_degree // repeats * (4 if scale < SHORT_SCALE else 8)
        else:
            self.plaintext_bytes += int(made.share * self.parameters.plaintext_bytes(level))
            self.plaintext_bytes += BYTES_AFTER_ROWS * self.compacts
        return made

    def add(self, left: Slots, right: Slots) -> Slots:
        self.count("add", left, right)
        check_agreement(left, right)
        return self.slots(left.level, left.scale, self.sum(left.values, right.values))

    def add_plain(self, left: Slots, right: Constants) -> Slots:
        self.count("add", left)
        check_agreement(left, right)
        return self.slots(left.level, left.scale, self.sum(left.values, right.values))

    def multiply(self, left: Slots, right: Slots) -> Slots:
        assert left.level == right.level, "levels differ"
        self.count("multiply", left, right)
        return self.slots(left.level, left.scale * right.scale, self.product(left.values, right.values))

    def accumulate(self, total: Slots | None, factor: Slots, plain: Constants) -> Slots:
        assert factor.level == plain.level, "levels differ"
        self.count("multiply_plain", factor)
        if plain.compact:
            self.operations["expand", self.parameters.primes_at(factor.level)] += plain.share
        product = self.slots(factor.level, factor.scale * plain.scale, self.product(factor.values, plain.values))
        if total is None:
            return product
        check_agreement(total, product)  # the addition is part of the product's cost
        result = self.slots(total.level, total.scale, self.sum(total.values, product.values))
        self.release(product)
        return result

    def sums(self, sums: Iterable[Iterable[tuple[Slots, Constants]]]) -> Iterator[Slots | None]:
        """The native evaluator computes all of them before the first is used."""
        return iter(list(super().sums(sums))) if self.compacts else super().sums(sums)

    def rotate(self, value: Slots, steps: int) -> Slots:
        return self.rotated(value, steps, "rotate")

    def rotate_many(self, value: Slots, steps: Iterable[int]) -> list[Slots]:
        """The first rotation of a value costs more than each further one, if the library shares work."""
        return [self.rotated(value, by, "rotate_again" if i else "rotate") for i, by in enumerate(steps)]

    def rotated(self, value: Slots, steps: int, operation: str) -> Slots:
        assert steps % self.parameters.slots in self.rotations, f"there is no key to rotate by {steps}"
        self.count(operation, value)
        return self.slots(value.level, value.scale, self.rolled(value.values, steps))

    def conjugate(self, value: Slots) -> Slots:
        assert CONJUGATION in self.rotations, "there is no key to conjugate"
        self.count("rotate", value)
        return self.slots(value.level, value.scale, self.conjugated(value.values))

    def rescale(self, value: Slots, scale: float) -> Slots:
        self.count("rescale", value)
        reached = value.scale / self.parameters.prime(value.level)
        assert abs(reached / scale - 1) < 1e-6, f"the scale is {reached} after rescaling, not {scale}"
        return self.slots(value.level + 1, scale, value.values)

    def drop(self, value: Slots, level: int) -> Slots:
        if level == value.level:
            return value
        assert level > value.level, "dropped primes cannot be restored"
        self.count("drop", value)
        return self.slots(level, value.scale, value.values)

    def sum(self, left: Array | None, right: Array | None) -> Array | None:
        return None

    def product(self, left: Array | None, right: Array | None) -> Array | None:
        return None

    def rolled(self, values: Array | None, steps: int) -> Array | None:
        return None

    def conjugated(self, values: Array | None) -> Array | None:
        return None


def check_agreement(left: Any, right: Any) -> None:
    assert left.level == right.level, f"levels {left.level} and {right.level} differ"
    assert abs(left.scale / right.scale - 1) < 1e-6, f"scales {left.scale} and {right.scale} differ"
