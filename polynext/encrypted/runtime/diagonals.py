"""Linear maps between slots as generalised diagonals."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from polynext.arrays import Array, Indices
from polynext.encrypted.runtime.backends.protocol import SlotPattern


@dataclass(frozen=True, eq=False)
class Factor:
    """Slots in groups, with one number per slot for each of several terms."""

    starts: Indices  # (groups + 1,)
    where: Indices  # (slots,)
    values: Array  # (terms, slots)

    @classmethod
    def grouped(cls, keys: Indices, where: Indices, values: Array) -> "tuple[Indices, Factor]":
        """Groups slots by key. Returns the distinct keys and the groups."""
        order = np.argsort(keys, kind="stable")
        distinct, starts = np.unique(keys[order], return_index=True)
        return distinct, cls(np.append(starts, len(keys)), where[order], values[:, order])

    def group(self, number: int) -> tuple[Indices, Array]:
        part = slice(self.starts[number], self.starts[number + 1])
        return self.where[part], self.values[:, part]

    def active(self) -> npt.NDArray[np.bool_]:
        """(terms, groups): whether a term is nonzero in a group."""
        return np.add.reduceat(self.values != 0, self.starts[:-1], axis=1, dtype=np.int64) > 0


ONE = Factor(np.array([0, 1]), np.zeros(1, np.int64), np.ones((1, 1)))


@dataclass(frozen=True, eq=False)
class Diagonals:
    """The diagonals of a map from one source to a target, as sums of outer products.

    If the slot of an entry is the sum of a channel's number and a position's, the offsets of a Kronecker product are
    such sums too, and each diagonal consists of blocks: outer products of a group of `outer` (the channels) and a group
    of `inner` (the positions). The diagonals of a matrix have `inner = ONE`.
    """

    offsets: Indices
    starts: Indices  # (offsets + 1,): the blocks of each offset
    blocks: Indices  # (blocks, 3): group of `outer`, group of `inner`, and a shift that is added to their slots
    outer: Factor
    inner: Factor
    repeat: Indices
    slots: int
    period: int
    wrap: int  # shifted slots are taken modulo this

    @property
    def nbytes(self) -> int:
        return sum(f.where.nbytes + f.values.nbytes for f in (self.outer, self.inner)) + self.blocks.nbytes

    @property
    def vector_period(self) -> int:
        """The number of slots after which every diagonal repeats."""
        period, repeated = self.slots, int(np.bitwise_or.reduce(self.repeat))
        while period > 1 and period // 2 & repeated:
            period //= 2
        return period

    def vector(self, i: int) -> Array:
        """The diagonal of the i-th offset, in every slot."""
        vector = np.zeros(self.slots)
        for block in self.blocks[self.starts[i] : self.starts[i + 1]]:
            where, values = self.entries(block)
            vector[where[..., None] + self.repeat] = values[..., None]
        return vector

    def entries(self, block: Indices) -> tuple[Indices, Array]:
        """The slots of a block and its values there."""
        (rows, left), (columns, right) = self.outer.group(block[0]), self.inner.group(block[1])
        return (rows[:, None] + columns + block[2]) % self.wrap, left.T @ right


@dataclass(frozen=True, eq=False)
class LinearCombination:
    """One ciphertext, computed as a sum of linear maps of others plus a bias, then summed over some bits of the slot
    number.

    The result `repeats` in the slots that its target leaves free, unless a summed bit is below those that the target
    uses. Then only one copy is correct, and a rotation would mix in the others. If the sources hold two values each
    (`complex_packing.py`), there are diagonals for the `imaginary` parts too, and the result is made real by adding its
    conjugate.
    """

    terms: dict[int, Diagonals]
    bias: Array | None
    summed_bits: tuple[int, ...]
    repeats: bool
    imaginary: dict[int, Diagonals] = field(default_factory=dict)
    conjugated: bool = False

    @property
    def diagonals(self) -> "list[tuple[int, Diagonals]]":
        """All diagonals, each with its source."""
        return [*self.terms.items(), *self.imaginary.items()]

    @property
    def sources(self) -> set[int]:
        return {*self.terms, *self.imaginary}

    def parts(self, source: int) -> "list[tuple[Diagonals, complex]]":
        """The diagonals of a source's real and imaginary part, each with its factor."""
        found = [(self.terms.get(source), 1.0), (self.imaginary.get(source), -1j)]
        return [(diagonals, factor) for diagonals, factor in found if diagonals is not None]

    def offsets(self, source: int) -> Indices:
        return np.unique(np.concatenate([diagonals.offsets for diagonals, _ in self.parts(source)]))

    def period(self, source: int) -> int:
        return max(diagonals.period for diagonals, _ in self.parts(source))

    def pattern(self, source: int, factor: complex) -> SlotPattern:
        """Of the diagonals of a source, multiplied by a factor."""
        period = max(diagonals.vector_period for diagonals, _ in self.parts(source))
        return SlotPattern(period, real=all((own * factor).imag == 0 for _, own in self.parts(source)))

    def vector(self, source: int, offset: int) -> npt.NDArray[Any]:
        """The diagonal of an offset, in every slot."""
        total: npt.NDArray[Any] = np.zeros(1)
        for diagonals, factor in self.parts(source):
            for i in np.flatnonzero(diagonals.offsets == offset).tolist():
                total = total + factor * diagonals.vector(i)
        return total
