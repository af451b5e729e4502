"""Linear maps of slots as generalised diagonals."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from polynext.arrays import Array, Indices


@dataclass(frozen=True, eq=False)
class Factor:
    """Slots in groups, and for each slot a number in each of several terms."""

    starts: Indices  # (groups + 1,)
    where: Indices  # (slots,)
    values: Array  # (terms, slots)

    @classmethod
    def grouped(cls, keys: Indices, where: Indices, values: Array) -> "tuple[Indices, Factor]":
        """The distinct keys, and a group of slots for each."""
        order = np.argsort(keys, kind="stable")
        distinct, starts = np.unique(keys[order], return_index=True)
        return distinct, cls(np.append(starts, len(keys)), where[order], values[:, order])

    def group(self, number: int) -> tuple[Indices, Array]:
        part = slice(self.starts[number], self.starts[number + 1])
        return self.where[part], self.values[:, part]

    def active(self) -> npt.NDArray[np.bool_]:
        """(terms, groups): which terms have a part in which group."""
        counts = np.add.reduceat(self.values != 0, self.starts[:-1], axis=1, dtype=np.int64)
        return counts > 0


ONE = Factor(np.array([0, 1]), np.zeros(1, np.int64), np.ones((1, 1)))


@dataclass(frozen=True, eq=False)
class Diagonals:
    """The diagonals of one map from a source to a target, as sums of outer products.

    Where channels and positions have slot numbers that add up, so have the offsets of a Kronecker product, and a
    diagonal is an outer product of what the channels and the positions contribute: of the group `outer` and the group
    `inner` of each of its blocks. A matrix has diagonals without a second factor.
    """

    offsets: Indices
    starts: Indices  # (offsets + 1,): the blocks of each offset
    blocks: Indices  # (blocks, 3): group of `outer`, group of `inner`, how far the sum of their slots is moved on
    outer: Factor
    inner: Factor
    repeat: Indices
    slots: int
    period: int
    wrap: int  # after which moved slots begin again

    @property
    def nbytes(self) -> int:
        return sum(f.where.nbytes + f.values.nbytes for f in (self.outer, self.inner)) + self.blocks.nbytes

    def vector(self, i: int) -> Array:
        """The diagonal of the i-th offset, in every slot."""
        vector = np.zeros(self.slots)
        for block in self.blocks[self.starts[i] : self.starts[i + 1]]:
            where, values = self.written(block)
            vector[where[..., None] + self.repeat] = values[..., None]
        return vector

    def written(self, block: Indices) -> tuple[Indices, Array]:
        """The slots of a block and what stands there."""
        (rows, left), (columns, right) = self.outer.group(block[0]), self.inner.group(block[1])
        return (rows[:, None] + columns + block[2]) % self.wrap, left.T @ right


@dataclass(frozen=True, eq=False)
class Form:
    """One ciphertext to be computed as a sum of linear maps of others, and then over some bits of the slot number.

    It `repeats` in the slots that its target leaves free, unless it is summed over bits below those the target uses:
    then it is right in one place only, and rotations would bring in the others. A form of ciphertexts with two values
    each has diagonals for their `imaginary` parts too, and is made real by adding its conjugate.
    """

    terms: dict[int, Diagonals]
    bias: Array | None
    summed_bits: tuple[int, ...]
    repeats: bool
    imaginary: dict[int, Diagonals] = field(default_factory=dict)
    conjugated: bool = False

    @property
    def diagonals(self) -> "list[tuple[int, Diagonals]]":
        """All of them, with the source of each."""
        return [*self.terms.items(), *self.imaginary.items()]

    @property
    def sources(self) -> set[int]:
        return {*self.terms, *self.imaginary}

    def parts(self, source: int) -> "list[tuple[Diagonals, complex]]":
        """The diagonals of a source's real and imaginary part, and what they count."""
        found = [(self.terms.get(source), 1.0), (self.imaginary.get(source), -1j)]
        return [(diagonals, factor) for diagonals, factor in found if diagonals is not None]

    def offsets(self, source: int) -> Indices:
        return np.unique(np.concatenate([diagonals.offsets for diagonals, _ in self.parts(source)]))

    def period(self, source: int) -> int:
        return max(diagonals.period for diagonals, _ in self.parts(source))

    def vector(self, source: int, offset: int) -> npt.NDArray[Any]:
        """The diagonal of an offset, in every slot."""
        total: npt.NDArray[Any] = np.zeros(1)
        for diagonals, factor in self.parts(source):
            for i in np.flatnonzero(diagonals.offsets == offset).tolist():
                total = total + factor * diagonals.vector(i)
        return total
