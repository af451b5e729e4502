"""Where the entries of a value are in the slots of a ciphertext."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from polynext.arrays import Array, Indices


@dataclass(frozen=True, eq=False)
class Target:
    """The slots of a linear combination: `codes[i, r]` for row r of its maps and image i."""

    codes: Indices
    slots: int

    @cached_property
    def used(self) -> int:
        """The bits of the slot number that entries differ in."""
        return int(np.bitwise_or.reduce(self.codes, axis=None))

    @cached_property
    def period(self) -> int:
        return 1 << self.used.bit_length()


@dataclass(frozen=True, eq=False)
class Layout(Target):
    """`codes[i, e]` is the first slot of entry e of image i. The entry repeats at all other values of the unused bits.

    A layout can be spread over groups: group g of `block` slots then holds the value rotated by g / groups of its
    period. One rotation brings different entries to each group, so that a linear map needs only the diagonals of one
    group, and the results of the groups are added.
    """

    strides: tuple[int, ...] = ()  # slots from one index of an axis to the next, for one image
    order: Indices | None = None  # entry e is entry order[e] of the packed values, or 0 if that is -1
    groups: int = 1
    block: int = 0

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Layout":
        order = None if table["order"] is None else np.asarray(table["order"])
        given = {"codes": np.asarray(table["codes"]), "strides": tuple(table["strides"]), "order": order}
        layout = cls(**{**table, **given})
        if layout.codes.ndim != 2 or not within(layout.codes, layout.slots):
            raise ValueError("a layout exceeds the slots")
        if order is not None and not (order.shape == layout.codes.shape[1:] and within(order + 1, 2**31)):
            raise ValueError("a layout refers to missing entries")
        return layout

    @property
    def turn(self) -> int:
        """The rotation that changes nothing."""
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
        """(images, entries) to slots, with all repetitions."""
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
    """Whether all numbers are integers from 0 to below `end`."""
    return numbers.dtype == np.int64 and bool(((numbers >= 0) & (numbers < end)).all())


def subsets(mask: int) -> Indices:
    """All numbers whose bits are in `mask`."""
    numbers = np.zeros(1, dtype=np.int64)
    for bit in bits(mask):
        numbers = np.concatenate([numbers, numbers + bit])
    return numbers


def bits(mask: int) -> list[int]:
    return [1 << i for i in range(mask.bit_length()) if mask >> i & 1]


def same_slots(left: Layout, right: Layout) -> bool:
    """Whether two values have the same layout, so that they can be multiplied slot by slot."""
    return (left.groups, left.block) == (right.groups, right.block) and np.array_equal(left.codes, right.codes)
