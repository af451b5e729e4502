"""Where the entries of a value are in a ciphertext's slots, and what a linear map becomes there.

A ciphertext is a vector of `slots` numbers, a power of two. It can be added, multiplied slot by slot, and rotated. A
linear map is therefore a sum of rotated copies, each times a constant vector, one of the map's diagonals:

    y[s] = sum over offsets o of diagonal_o[s] * x[s + o]

The entries of a value use some bits of the slot number. The value repeats along all other bits, so that offsets count
modulo its period, and a rotation never brings in anything else. Several images lie between a value's leading axis (its
channels) and the rest (its positions), so that they have the same offsets as one image.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from polynext.arrays import Array, Indices
from polynext.circuit.maps import LinearMap
from polynext.circuit.rewrites import Affine
from polynext.circuit.structure import Kronecker
from polynext.encrypted.runtime.diagonals import ONE, Diagonals, Factor, LinearCombination
from polynext.encrypted.runtime.layout import Layout, Target, bits, subsets

# Entries of a map that are this much smaller than its largest are rounding errors and get no diagonal.
NEGLIGIBLE = 1e-11


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def make_layout(
    shape: Sequence[int],
    axes: Sequence[int],
    images: int,
    slots: int,
    mirrored: bool = False,
    stride: int = 0,
    phases: int = 1,
) -> Layout | None:
    """The layout with a value's axes in this order and the images inside the leading axis; None if it does not fit.

    `mirrored` reverses the second half of the leading axis, so that reversing the channels is a shift by half of them.
    `stride` is the number of slots from one index of the leading axis to the next, for one image. In a feature map,
    positions with equal row and column modulo `phases` lie together, as if phases were channels: a map to a smaller
    feature map then moves whole blocks of slots.
    """
    counted = np.arange(math.prod(shape)).reshape(shape)
    if phases > 1:
        channels, height, width = shape
        parts = counted.reshape(channels, height // phases, phases, width // phases, phases)
        counted = parts.transpose(0, 2, 4, 1, 3).reshape(channels, phases**2, -1)
    counted = counted.transpose(axes)
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


def make_target(layout: Layout, operands: int) -> tuple[Target, int]:
    """The slots of a step's operands, one after the other and each in every group, and the distance between them."""
    distance = (layout.groups * layout.block if layout.groups > 1 else layout.period) if operands == 2 else 0
    codes = [c + i * distance for i in range(operands) for c in layout.copies()]
    return Target(np.concatenate(codes, axis=1), layout.slots), distance


def pack_combination(
    operands: Sequence[Affine[int]], layouts: Sequence[Layout], target: Target, images: int
) -> LinearCombination:
    """The diagonals of operands of equal length, one after the other in a target, for the first `images` images."""
    sources = sorted({k for affine in operands for k in affine.maps})
    summed = 0
    for source in sources:
        summed |= (layouts[source].used | layouts[source].group_bits) & ~target.used
    repeated = target.slots - 1 & ~target.used & ~summed
    found = {
        k: make_diagonals([a.maps.get(k) for a in operands], layouts[k], target, repeated, images) for k in sources
    }
    terms = {k: d for k, d in found.items() if len(d.offsets)}
    if not terms:  # all weights are zero, but a linear combination needs a term
        source, empty = next(iter(found.items()))
        terms = {source: replace(empty, offsets=np.zeros(1, np.int64), starts=np.zeros(2, np.int64))}
    packed = None
    if any(a.bias is not None and np.any(a.bias) for a in operands):
        size = target.codes.shape[1] // len(operands)
        bias = np.concatenate([np.zeros(size) if a.bias is None else a.bias for a in operands])
        packed = np.zeros(target.slots)
        everywhere = subsets(target.slots - 1 & ~target.used)
        packed[target.codes[..., None] + everywhere] = bias[None, :, None]
    return LinearCombination(terms, packed, tuple(bits(summed)), not 0 < summed & -summed < target.period)


def make_diagonals(
    maps: Sequence[LinearMap | None], source: Layout, target: Target, repeated: int, images: int
) -> Diagonals:
    """The diagonals of maps below each other, by their Kronecker structure if the layouts preserve it."""
    found = structured_diagonals(maps, source, target, repeated, images)
    if found is not None:
        return found
    size = target.codes.shape[1] // len(maps)
    empty = sp.csr_array((size, source.codes.shape[1]))
    return matrix_diagonals(
        sp.vstack([empty if m is None else m.matrix() for m in maps]), source, target, repeated, images
    )


def structured_diagonals(
    maps: Sequence[LinearMap | None], source: Layout, target: Target, repeated: int, images: int
) -> Diagonals | None:
    """The diagonals of sums of Kronecker products, between layouts in which the slot of an entry is a channel's number
    plus a position's, in different bits; None for other maps and layouts."""
    found = [(i, m) for i, m in enumerate(maps) if isinstance(m, Kronecker)]
    if source.groups > 1 or not found or len(found) < sum(m is not None for m in maps):
        return None
    size = target.codes.shape[1] // len(maps)
    rows: list[tuple[Indices, Indices, Indices, Array]] = []  # of each entry: target slot, source slot, term, value
    columns: list[tuple[Indices, Indices, Indices, Array]] = []
    terms = 0
    for number, mapping in found:
        into = target.codes[:images, number * size : (number + 1) * size].reshape(images, *mapping.shape_out)
        out_of = source.codes[:images].reshape(images, *mapping.shape_in)
        channels_into, channels_out = into[:, :, 0], out_of[:, :, 0]
        positions_into, positions_out = into[0, 0] - into[0, 0, 0], out_of[0, 0] - out_of[0, 0, 0]
        if not (adds_up(into, channels_into, positions_into) and adds_up(out_of, channels_out, positions_out)):
            return None
        for mix, move in mapping.terms:
            real = np.abs(mix) > NEGLIGIBLE * np.abs(mapping.mixes).max(initial=0.0)
            c_out, c_in = np.nonzero(real)
            term = np.full(len(c_out), terms)
            rows += [(channels_into[i, c_out], channels_out[i, c_in], term, mix[real]) for i in range(images)]
            p_out, p_in = move.nonzero()
            term = np.full(len(p_out), terms)
            columns.append((positions_into[p_out], positions_out[p_in], term, np.asarray(move[p_out, p_in])))
            terms += 1
    outer_entries, inner_entries = (
        [np.concatenate(each) for each in zip(*side, strict=True)] for side in (rows, columns)
    )
    wraps = source.period > target.period  # bits above the target's are summed over, so no offset has to reach them
    turn = min(source.period, target.period)
    sides = []
    for into, out_of, term, value in (outer_entries, inner_entries):
        # In bits that the target does not use, stay in the source's slot; these bits are summed over at the end.
        where = into | (out_of & ~target.used)
        sides.append(factor_of(out_of - where, where, term, value, terms))
    (outer_offsets, outer), (inner_offsets, inner) = sides
    meets = (outer.active().T.astype(np.int64) @ inner.active().astype(np.int64)) > 0
    g, h = np.nonzero(meets)
    exact = outer_offsets[g] + inner_offsets[h]
    offset = exact % turn
    moved = exact - offset if wraps else np.zeros_like(exact)
    order = np.argsort(offset, kind="stable")
    offsets, starts = np.unique(offset[order], return_index=True)
    blocks = np.stack([g, h, moved % source.period], axis=1)[order]
    wrap = source.period if wraps else target.slots
    return Diagonals(
        offsets, np.append(starts, len(g)), blocks, outer, inner, subsets(repeated), target.slots, source.turn, wrap
    )


def adds_up(codes: Indices, channels: Indices, positions: Indices) -> bool:
    """Whether slots (images, channels, positions) are the sums of these, and these have no bits in common."""
    mixed = np.bitwise_or.reduce(channels, axis=None) & np.bitwise_or.reduce(positions)
    return not mixed and bool((codes == channels[:, :, None] + positions).all())


def factor_of(offset: Indices, where: Indices, term: Indices, value: Array, terms: int) -> tuple[Indices, Factor]:
    """Groups entries by offset. Entries of several terms in one slot stay together."""
    turn = int(where.max(initial=0)) + 1
    distinct, place = np.unique(offset * turn + where, return_inverse=True)
    values = np.zeros((terms, len(distinct)))
    np.add.at(values, (term, place.reshape(-1)), value)
    return Factor.grouped(distinct // turn, distinct % turn, values)


def matrix_diagonals(matrix: sp.csr_array, source: Layout, target: Target, repeated: int, images: int) -> Diagonals:
    entries = sp.coo_array(matrix)
    real = np.abs(entries.data) > NEGLIGIBLE * np.abs(entries.data).max(initial=0.0)
    rows, columns, data = entries.row[real], entries.col[real], entries.data[real]
    into, out_of = target.codes[:images, rows].ravel(), source.codes[:images, columns].ravel()
    values = np.tile(data, images)
    if source.groups > 1:
        # Repetitions inside a block cross its end at different offsets.
        inside = subsets(repeated & (source.block - 1))
        repeated &= -source.block
        into, out_of, values = (into[:, None] + inside).ravel(), out_of.repeat(len(inside)), values.repeat(len(inside))
        offset, where = offsets_in_groups(into, out_of, source, target.used)
    else:
        where = into | (out_of & ~target.used)
        offset = (out_of - where) % source.period
        if source.period > target.period:
            offset %= target.period
            where = (out_of - offset) % source.period
    offsets, outer = Factor.grouped(offset, where, values[None])
    count = len(offsets)
    blocks = np.stack([np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64)], axis=1)
    starts = np.arange(count + 1)
    slots = target.slots
    return Diagonals(offsets, starts, blocks, outer, ONE, subsets(repeated), slots, source.turn, slots)


def offsets_in_groups(into: Indices, out_of: Indices, source: Layout, fixed: int) -> tuple[Indices, Indices]:
    """The offset and slot of each entry of a map, in the group where the offset is smallest.

    Offsets count from half an axis stride below zero, so that the left neighbour has a small offset too. The group of
    the target slot is free except for its `fixed` bits. A rotation beyond the end of a block reaches the next group,
    whose copy is rotated by one more share.
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
                distance = np.where(offset >= -below, offset + below, source.slots - offset)  # backwards last
                better = allowed & arrives & (distance < best)
                best[better] = distance[better]
                chosen[better] = offset[better]
                where[better] = (into[better] & ~source.group_bits) | group * source.block
    return chosen % source.slots, where
