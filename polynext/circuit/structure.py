"""Maps between feature maps as sums of Kronecker products, which are much smaller than their matrices.

A feature map is (channels, positions). Mixing channels is A ⊗ 1. A convolution is a sum over its taps of A ⊗ shift,
with a diagonal A if it is depthwise. A norm scales by a channel's number times a position's. Pooling is 1 ⊗ mean.
Compositions and sums of such maps are such maps again. A map of 64 channels at 8x8 positions has a matrix of 16 million
entries, but only as many numbers in this form as the network has weights.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from polynext.arrays import Array, Indices
from polynext.circuit.maps import Added, Collect, Convolution, Dense, Gather, LinearMap, Scale, identity, pieces

# A composition with more numbers than this is refused: it would have thousands of diagonals.
WIDEST = 2**23
# The largest number of terms for a scale of channels and positions.
MOST_FACTORS = 4
ROUNDING = 1e-13


class TooWideError(ValueError):
    """A composed map has too many entries to be useful."""


@dataclass(frozen=True, eq=False)
class Kronecker(LinearMap):
    """`y[c', p'] = sum over terms t, c, p of mixes[t, c', c] moves[t][p', p] x[c, p]`."""

    mixes: Array  # (terms, channels out, channels in)
    moves: tuple[sp.csr_array, ...]  # (positions out, positions in) each

    @classmethod
    def of(cls, terms: Iterable[tuple[Array, sp.csr_array]]) -> "Kronecker":
        """Merges terms with the same map of positions."""
        merged: dict[bytes, tuple[Array, sp.csr_array]] = {}
        for mix, move in terms:
            key = move.indptr.tobytes() + move.indices.tobytes() + move.data.tobytes()
            merged[key] = (merged[key][0] + mix, move) if key in merged else (mix, move)
        return cls(np.stack([mix for mix, _ in merged.values()]), tuple(move for _, move in merged.values()))

    @property
    def shape(self) -> tuple[int, int]:
        return math.prod(self.shape_out), math.prod(self.shape_in)

    @property
    def shape_in(self) -> tuple[int, int]:
        """Channels and positions."""
        return self.mixes.shape[2], self.moves[0].shape[1]

    @property
    def shape_out(self) -> tuple[int, int]:
        return self.mixes.shape[1], self.moves[0].shape[0]

    @property
    def terms(self) -> "Iterable[tuple[Array, sp.csr_array]]":
        return zip(self.mixes, self.moves, strict=True)

    def __call__(self, x: Array) -> Array:
        batch, (channels, positions) = len(x), self.shape_in
        flat = np.ascontiguousarray(x.reshape(batch * channels, positions).T)
        y = np.zeros((batch, *self.shape_out))
        for mix, move in self.terms:
            moved = (move @ flat).T.reshape(batch, channels, -1)
            y += np.diagonal(mix)[:, None] * moved if is_diagonal(mix) else mix @ moved
        return y.reshape(batch, -1)

    @cached_property
    def written_out(self) -> sp.csr_array:
        total = sp.csr_array((self.n_out, self.n_in))
        for mix, move in self.terms:
            total = total + sp.kron(sp.csr_array(mix), move, format="csr")
        return sp.csr_array(total)

    def matrix(self) -> sp.csr_array:
        return self.written_out

    @property
    def entries(self) -> int:
        """An upper bound: overlapping terms have fewer."""
        return sum(np.count_nonzero(mix) * move.nnz for mix, move in self.terms)

    def then(self, after: LinearMap) -> LinearMap:
        if not isinstance(after, Kronecker) or after.shape_in != self.shape_out:
            return super().then(after)
        if len(self.moves) * len(after.moves) * after.mixes.shape[1] * self.mixes.shape[2] > WIDEST:
            raise TooWideError
        composed = (
            (second @ first, sorted_csr(later @ earlier))
            for first, earlier in self.terms
            for second, later in after.terms
        )
        return Kronecker.of([(mix, move) for mix, move in composed if move.nnz] or [(first_zero(self, after))])

    def plus(self, other: LinearMap) -> LinearMap:
        if isinstance(other, Kronecker) and (other.shape_in, other.shape_out) == (self.shape_in, self.shape_out):
            return Kronecker.of([*self.terms, *other.terms])
        return super().plus(other)

    def scaled(self, factors: Array) -> LinearMap:
        channels = alike_everywhere(factors, self.shape_out)
        return super().scaled(factors) if channels is None else replace(self, mixes=self.mixes * channels[:, None])

    def undoing(self, factors: Array) -> LinearMap:
        channels = alike_everywhere(factors, self.shape_in)
        return super().undoing(factors) if channels is None else replace(self, mixes=self.mixes / channels)

    def only_rows(self, rows: slice) -> LinearMap:
        channels = whole_channels(rows, self.shape_out[1])
        return super().only_rows(rows) if channels is None else replace(self, mixes=self.mixes[:, channels])

    def only_columns(self, columns: slice) -> LinearMap:
        channels = whole_channels(columns, self.shape_in[1])
        return super().only_columns(columns) if channels is None else replace(self, mixes=self.mixes[:, :, channels])

    def inverse(self) -> "tuple[Kronecker, float] | None":
        """The inverse of a map that mixes channels and scales positions, with its mean condition."""
        (mix, *more), (move, *_) = self.mixes, self.moves
        factors = move.diagonal()
        if more or mix.shape[0] != mix.shape[1] or not is_diagonal(move) or not factors.all():
            return None
        try:
            inverted = np.linalg.inv(mix)
        except np.linalg.LinAlgError:
            return None
        condition = mean_condition(mix, inverted) * mean_condition(factors, 1 / factors)
        return Kronecker(inverted[None], (sp.csr_array(sp.diags_array(1 / factors)),)), condition


def whole_channels(entries: slice, positions: int) -> slice | None:
    """The channels of these entries; None if they are not whole channels."""
    if entries.start % positions or entries.stop % positions:
        return None
    return slice(entries.start // positions, entries.stop // positions)


def mean_condition(matrix: Array, inverse: Array) -> float:
    """How much more the inverse enlarges noise than values, on average over all directions: 1 for an orthogonal map.

    The usual condition number is that of the worst direction, which values with many channels rarely have."""
    return float(np.linalg.norm(matrix) * np.linalg.norm(inverse) / len(matrix))


def alike_everywhere(entries: Array, shape: tuple[int, int]) -> Array | None:
    """One number for each channel; None if positions have different numbers."""
    channels = entries.reshape(shape)
    return channels[:, 0] if (channels == channels[:, :1]).all() else None


def is_diagonal(matrix: Any) -> bool:
    diagonal = matrix.diagonal()
    entries = matrix.nnz if sp.issparse(matrix) else np.count_nonzero(matrix)
    return matrix.shape[0] == matrix.shape[1] and entries == np.count_nonzero(diagonal)


def sorted_csr(matrix: sp.csr_array) -> sp.csr_array:
    """The canonical form, in which equal matrices have equal arrays."""
    matrix = sp.csr_array(matrix)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def first_zero(before: Kronecker, after: Kronecker) -> tuple[Array, sp.csr_array]:
    shape = (after.shape_out[1], before.shape_in[1])
    return np.zeros((after.shape_out[0], before.shape_in[0])), sp.csr_array(shape)


def positions_of(shape: tuple[int, ...]) -> int:
    """The number of positions of a value: the last two axes of a feature map."""
    return shape[-1] * shape[-2] if len(shape) >= 3 else 1


def kronecker(mapping: LinearMap, positions: int) -> Kronecker | None:
    """A map of (channels, positions) as a sum of Kronecker products; None if it is not one.

    In between, values may be `transposed` to (positions, channels), as linear layers on the last axis need them.
    """
    if mapping.n_in % positions:
        return None
    total: LinearMap | None = None
    transposed = False
    for piece in pieces(mapping):
        factored, transposed = one_kronecker(piece, (piece.n_in // positions, positions), transposed)
        if factored is None:
            return None
        total = factored if total is None else total.then(factored)
        positions = factored.shape_out[1]
    ends_well = isinstance(total, Kronecker) and (not transposed or 1 in total.shape_out)
    return total if ends_well and isinstance(total, Kronecker) else None


def one_kronecker(piece: LinearMap, shape: tuple[int, int], transposed: bool) -> tuple[Kronecker | None, bool]:
    """One piece as a map of (channels, positions), and whether its result is transposed."""
    channels, positions = shape
    nothing_moves = identity(positions).matrix()
    match piece:
        case Kronecker() if piece.shape_in == shape and not transposed:
            return piece, transposed
        case Added() if not transposed:
            return sum_of_kroneckers([kronecker(each, positions) for each in piece.maps]), transposed
        case Gather():
            return kronecker_of_gather(piece, shape, transposed)
        case Scale():
            return kronecker_of_scale(as_feature_map(piece.values, shape, transposed)), transposed
        case Convolution() if piece.size[0] * piece.size[1] == positions and not transposed:
            return kronecker_of_convolution(piece), transposed
        case Dense() if piece.rows == positions and (transposed or positions == 1):
            return Kronecker(piece.weight[None], (nothing_moves,)), transposed
        case Collect():
            target = as_feature_map(piece.target, shape, transposed)
            if (target == target[:, :1]).all():  # sums over all positions
                mix = np.zeros((piece.n_out, channels))
                mix[target[:, 0], np.arange(channels)] = piece.factor
                return Kronecker(mix[None], (sp.csr_array(np.ones((1, positions))),)), False
    return None, transposed


def as_feature_map(entries: Any, shape: tuple[int, int], transposed: bool) -> Any:
    """Entries in memory order as (channels, positions)."""
    return entries.reshape(shape[::-1]).T if transposed else entries.reshape(shape)


def sum_of_kroneckers(parts: "list[Kronecker | None]") -> Kronecker | None:
    total: LinearMap | None = parts[0]
    for part in parts[1:]:
        if total is None or part is None:
            return None
        total = total.plus(part)
    return total if isinstance(total, Kronecker) else None


def kronecker_of_gather(gather: Gather, shape: tuple[int, int], transposed: bool) -> tuple[Kronecker | None, bool]:
    """A move of whole channels, or the same move of positions in all channels."""
    channels, positions = shape
    index = gather.index
    if transposed:
        index = np.where(index >= 0, index % channels * positions + index // channels, -1)
    for channels_out in (gather.n_out // positions, channels):
        if channels_out == 0 or gather.n_out % channels_out:
            continue
        for transposes in (False, True):
            found = factored_move(
                as_feature_map(index, (channels_out, gather.n_out // channels_out), transposes), shape
            )
            if found is not None:
                return found, transposes
    return None, transposed


def factored_move(index: Indices, shape: tuple[int, int]) -> Kronecker | None:
    """A move that is a move of channels and a move of positions; None for other moves."""
    channels, positions = shape
    there = index >= 0
    rows, columns = np.any(there, axis=1), np.any(there, axis=0)
    if not there.any() or not (there == rows[:, None] & columns).all():
        return None
    channel = np.where(rows, index[:, columns.argmax()] // positions, -1)
    position = np.where(columns, index[rows.argmax()] % positions, -1)
    if not (np.where(there, channel[:, None] * positions + position, -1) == index).all():
        return None
    mix = Gather(channel, channels).matrix().toarray()
    return Kronecker(mix[None], (sorted_csr(Gather(position, positions).matrix()),))


def kronecker_of_scale(values: Array) -> Kronecker | None:
    left, sizes, right = np.linalg.svd(values, full_matrices=False)
    rank = max(int((sizes > ROUNDING * sizes[0]).sum()), 1)
    if rank > MOST_FACTORS:
        return None
    if rank == 1:  # without rounding, so that constant factors stay constant
        row = np.abs(values).max(axis=1).argmax()
        column = np.abs(values[row]).argmax()
        at = values[row, column]
        pairs = [(values[:, column], values[row] / at if at else values[row])]
    else:
        pairs = [(left[:, t] * sizes[t], right[t]) for t in range(rank)]
    return Kronecker.of([(np.diag(a), sp.csr_array(sp.diags_array(b))) for a, b in pairs])


def kronecker_of_convolution(convolution: Convolution) -> Kronecker:
    weight, groups = convolution.weight, convolution.groups
    c_out, per_group = weight.shape[:2]
    whole = np.zeros((c_out, per_group * groups, *weight.shape[2:]))
    for group in range(groups):
        rows = slice(group * c_out // groups, (group + 1) * c_out // groups)
        whole[rows, group * per_group : (group + 1) * per_group] = weight[rows]
    taps = [(whole[:, :, i, j], tap(convolution, i, j)) for i, j in np.ndindex(*weight.shape[2:])]
    return Kronecker.of([(mix, move) for mix, move in taps if move.nnz])


def tap(convolution: Convolution, i: int, j: int) -> sp.csr_array:
    """The map of positions of one entry of the kernel."""
    height, width = convolution.size_out
    y, x = np.ogrid[:height, :width]
    y = y * convolution.stride[0] - convolution.padding[0] + i * convolution.dilation[0]
    x = x * convolution.stride[1] - convolution.padding[1] + j * convolution.dilation[1]
    inside = (y >= 0) & (y < convolution.size[0]) & (x >= 0) & (x < convolution.size[1])
    index: Indices = np.where(inside, y * convolution.size[1] + x, -1).ravel()
    return sorted_csr(Gather(index, convolution.size[0] * convolution.size[1]).matrix())
