"""Where the entries of a value are in the slots of a ciphertext."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from polynext.arrays import Array, Indices


@dataclass(frozen=True, eq=False)
class Target:
    """The slots that a form fills: `codes[i, r]` for row r of its maps and image i."""

    codes: Indices
    slots: int

    @cached_property
    def used(self) -> int:
        """The bits of a slot number that say which entry it holds."""
        return int(np.bitwise_or.reduce(self.codes, axis=None))

    @cached_property
    def period(self) -> int:
        return 1 << self.used.bit_length()


@dataclass(frozen=True, eq=False)
class Layout(Target):
    """`codes[i, e]` is the first slot of entry e of image i; the entry repeats wherever the unused bits differ.

    A layout that is `spread` over groups repeats with a difference: group g of `block` slots holds the value rotated by
    g / groups of its period. One and the same rotation then brings different entries to each group, and a linear map
    needs only as many diagonals as one group sees; the groups' results are added up.
    """

    strides: tuple[int, ...] = ()  # slots from one index of an axis to the next, of one image
    order: Indices | None = None  # entry e is entry order[e] of what is packed, or 0 where that is -1
    groups: int = 1
    block: int = 0

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Layout":
        order = None if table["order"] is None else np.asarray(table["order"])
        given = {"codes": np.asarray(table["codes"]), "strides": tuple(table["strides"]), "order": order}
        layout = cls(**{**table, **given})
        if layout.codes.ndim != 2 or not within(layout.codes, layout.slots):
            raise ValueError("a layout reaches beyond the slots")
        if order is not None and not (order.shape == layout.codes.shape[1:] and within(order + 1, 2**31)):
            raise ValueError("a layout takes entries that are not there")
        return layout

    @property
    def turn(self) -> int:
        """After how many slots a rotation is back where it was."""
        return self.slots if self.groups > 1 else self.period

    @property
    def group_bits(self) -> int:
        return (self.groups - 1) * self.block

    @property
    def images(self) -> int:
        return len(self.codes)

    def spread(self, groups: int, block: int) -> "Layout":
        return replace(self, groups=groups, block=block)

    def copies(self) -> "list[Indices]":
        """The codes in each group."""
        shift = self.period // self.groups
        return [(self.codes - g * shift) % self.period + g * self.block for g in range(self.groups)]

    def pack(self, values: Array) -> Array:
        """(images, entries) into slots, with every repetition."""
        values = np.asarray(values)
        if self.order is not None:
            values = np.where(self.order >= 0, values[:, self.order], 0.0)
        vector = np.zeros(self.slots)
        everywhere = subsets(self.slots - 1 & ~self.used & ~self.group_bits)
        for codes in self.copies():
            vector[codes[..., None] + everywhere] = values[..., None]
        return vector

    def unpack(self, vector: Array) -> Array:
        """Slots to (images, entries)."""
        found = np.asarray(vector)[self.codes]
        if self.order is None:
            return found
        entries = np.zeros((self.images, self.order.max() + 1))
        there = self.order >= 0
        entries[:, self.order[there]] = found[:, there]
        return entries


def within(numbers: Indices, end: int) -> bool:
    """Whether these are indices from 0 to below `end`."""
    return numbers.dtype == np.int64 and bool(((numbers >= 0) & (numbers < end)).all())


def subsets(mask: int) -> Indices:
    """All numbers made of the bits of `mask`."""
    numbers = np.zeros(1, dtype=np.int64)
    for bit in bits(mask):
        numbers = np.concatenate([numbers, numbers + bit])
    return numbers


def bits(mask: int) -> list[int]:
    return [1 << i for i in range(mask.bit_length()) if mask >> i & 1]


def same_slots(left: Layout, right: Layout) -> bool:
    """Whether two values can be multiplied as they lie."""
    return (left.groups, left.block) == (right.groups, right.block) and np.array_equal(left.codes, right.codes)
