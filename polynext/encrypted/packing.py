"""Where the entries of a value sit in a ciphertext's slots, and what a linear map is there.

A ciphertext holds a vector of `slots` numbers, a power of two. All that can be done with it is to add, to multiply
entry by entry, and to rotate. A linear map is then a sum of rotated copies times constant vectors, its diagonals

    y[s] = sum over offsets o of diagonal_o[s] * x[s + o]

A value whose entries need few bits of the slot number repeats along all the others, so that offsets count modulo its
period and a rotation never brings in anything foreign. Several images lie between a value's leading axis (its channels)
and the rest (its positions): the offsets are then those of one image.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from polynext.circuit.maps import Array, Indices

# Entries this much smaller than the largest of a map are rounding: they are no reason for a diagonal.
NEGLIGIBLE = 1e-11


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
    groups: int = 1
    block: int = 0

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Layout":
        layout = cls(**{**table, "codes": np.asarray(table["codes"]), "strides": tuple(table["strides"])})
        if layout.codes.ndim != 2 or not within(layout.codes, layout.slots):
            raise ValueError("a layout reaches beyond the slots")
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
        vector = np.zeros(self.slots)
        everywhere = subsets(self.slots - 1 & ~self.used & ~self.group_bits)
        for codes in self.copies():
            vector[codes[..., None] + everywhere] = np.asarray(values)[..., None]
        return vector

    def unpack(self, vector: Array) -> Array:
        """Slots to (images, entries)."""
        return np.asarray(vector)[self.codes]


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


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def layout_of(
    shape: Sequence[int], axes: Sequence[int], images: int, slots: int, mirrored: bool = False, stride: int = 0
) -> Layout | None:
    """A value's axes in this order, the leading one with the images inside it; None if that does not fit.

    `mirrored` turns the second half of the leading axis around, so that reversing the channels is a shift by half of
    them. `stride` is how many slots each index of the leading axis takes for one image.
    """
    counted = np.arange(math.prod(shape)).reshape(shape).transpose(axes)
    lead = counted.shape[0] if counted.ndim else 1
    rest = counted.size // lead
    stride = stride or rest
    place = np.arange(lead)
    if mirrored and lead % 2 == 0:
        place = np.concatenate([np.arange(lead // 2), np.arange(lead // 2, lead)[::-1]])
    image = np.arange(images)[:, None, None]
    code = place[None, :, None] * (images * stride) + image * stride + np.arange(rest)[None, None, :]
    if code.max() >= slots:
        return None
    codes = np.empty((images, counted.size), dtype=np.int64)
    codes[:, counted.reshape(lead, rest)] = code
    inner = [math.prod(counted.shape[i:]) for i in range(2, counted.ndim)]
    return Layout(codes, slots, (stride * images, *inner))


@dataclass(frozen=True, eq=False)
class Diagonals:
    """The diagonals of one map from a source to a target, sparse: for each offset, slots and what stands there."""

    offsets: Indices
    starts: Indices
    where: Indices
    values: Array
    repeat: Indices
    slots: int
    period: int

    @property
    def nbytes(self) -> int:
        return self.where.nbytes + self.values.nbytes

    def vector(self, i: int) -> Array:
        """The diagonal of the i-th offset, in every slot."""
        part = slice(self.starts[i], self.starts[i + 1])
        vector = np.zeros(self.slots)
        vector[self.where[part, None] + self.repeat] = self.values[part, None]
        return vector


@dataclass(frozen=True, eq=False)
class Form:
    """One ciphertext to be computed as a sum of linear maps of others, and then over some bits of the slot number.

    It `repeats` in the slots that its target leaves free, unless it is summed over bits below those the target uses:
    then it is right in one place only, and rotations would bring in the others.
    """

    terms: dict[int, Diagonals]
    bias: Array | None
    summed_bits: tuple[int, ...]
    repeats: bool


def target_of(layout: Layout, operands: int) -> tuple[Target, int]:
    """Where the operands of a step go, one after the other and each in every group, and how far apart they are."""
    distance = (layout.groups * layout.block if layout.groups > 1 else layout.period) if operands == 2 else 0
    codes = [c + i * distance for i in range(operands) for c in layout.copies()]
    return Target(np.concatenate(codes, axis=1), layout.slots), distance


def form_of(
    matrices: dict[int, sp.csr_array], bias: Array | None, layouts: Sequence[Layout], target: Target, images: int
) -> Form:
    """The diagonals of maps from several sources into one target, of the first so many images."""
    summed = 0
    for source in matrices:
        summed |= (layouts[source].used | layouts[source].group_bits) & ~target.used
    repeated = target.slots - 1 & ~target.used & ~summed
    found = {k: diagonals_of(m, layouts[k], target, repeated, images) for k, m in matrices.items()}
    terms = {k: d for k, d in found.items() if len(d.offsets)}
    if not terms:  # all weights are zero, but a form has to be made of something
        source, empty = next(iter(found.items()))
        terms = {source: replace(empty, offsets=np.zeros(1, np.int64), starts=np.zeros(2, np.int64))}
    packed = None
    if bias is not None and np.any(bias):
        packed = np.zeros(target.slots)
        everywhere = subsets(target.slots - 1 & ~target.used)
        packed[target.codes[..., None] + everywhere] = bias[None, :, None]
    return Form(terms, packed, tuple(bits(summed)), not 0 < summed & -summed < target.period)


def diagonals_of(matrix: sp.csr_array, source: Layout, target: Target, repeated: int, images: int) -> Diagonals:
    entries = sp.coo_array(matrix)
    real = np.abs(entries.data) > NEGLIGIBLE * np.abs(entries.data).max(initial=0.0)
    rows, columns, data = entries.row[real], entries.col[real], entries.data[real]
    into, out_of = target.codes[:images, rows].ravel(), source.codes[:images, columns].ravel()
    values = np.tile(data, images)
    if source.groups > 1:
        # Repetitions inside a block differ in where they cross its end.
        inside = subsets(repeated & (source.block - 1))
        repeated &= -source.block
        into, out_of, values = (into[:, None] + inside).ravel(), out_of.repeat(len(inside)), values.repeat(len(inside))
        offset, where = offsets_in_groups(into, out_of, source, target.used)
    else:
        # Where the target does not care, stay in the source's own slot, and sum over those slots in the end.
        where = into | (out_of & ~target.used)
        offset = (out_of - where) % source.period
        if source.period > target.period:  # bits above the target's are summed over: no offset need reach them
            offset %= target.period
            where = (out_of - offset) % source.period
    order = np.argsort(offset, kind="stable")
    offsets, starts = np.unique(offset[order], return_index=True)
    starts = np.append(starts, len(offset))
    return Diagonals(offsets, starts, where[order], values[order], subsets(repeated), target.slots, source.turn)


def offsets_in_groups(into: Indices, out_of: Indices, source: Layout, fixed: int) -> tuple[Indices, Indices]:
    """For each entry of a map the offset and the slot, in the group where the offset is smallest.

    Offsets are counted from half an index of an axis below zero, so that a neighbour to the left is a small offset too.
    The target slot's group is free except for the bits that are `fixed`. A rotation beyond the end of a block arrives
    in the next group, which is rotated by one share more.
    """
    share = source.period // source.groups
    below = max((s for s in source.strides if 2 * s <= share), default=1) // 2
    inside = into & (source.block - 1)
    wanted = (out_of - into) % source.period
    best = np.full(len(into), np.iinfo(np.int64).max)
    chosen = np.empty_like(into)
    where = np.empty_like(into)
    fixed &= source.group_bits
    for group in range(source.groups):
        allowed = (group * source.block & fixed) == (into & fixed)
        for crossing in (-1, 0, 1):
            up = (wanted - (group + crossing) * share) % source.period
            for offset in (up, up - source.period):
                arrives = (inside + offset) // source.block == crossing
                distance = np.where(offset >= -below, offset + below, source.slots - offset)  # backwards if it must
                better = allowed & arrives & (distance < best)
                best[better] = distance[better]
                chosen[better] = offset[better]
                where[better] = (into[better] & ~source.group_bits) | group * source.block
    return chosen % source.slots, where
