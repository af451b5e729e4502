"""Linear maps between flat vectors, materialised in the form they came in.

A convolution of an ImageNet-sized network would be a matrix of billions of entries, so a map knows how to act on
vectors (B, n_in) to (B, n_out) without one. `structure.py` has the form that encryption counts and computes with.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from polynext.arrays import Array, Indices


class LinearMap(ABC):
    """A linear map of flat vectors."""

    n_in: int
    n_out: int

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """(B, n_in) to (B, n_out)."""

    @abstractmethod
    def matrix(self) -> sp.csr_array:
        """The (n_out, n_in) matrix."""

    @property
    def entries(self) -> int:
        """How many of the matrix are not zero."""
        return int(self.matrix().nnz)

    def then(self, after: "LinearMap") -> "LinearMap":
        """`after` of this map: the composition, as few maps as possible."""
        return chain([*pieces(self), *pieces(after)])

    def plus(self, other: "LinearMap") -> "LinearMap":
        """The sum of both."""
        return Added((self, other))

    def scaled(self, factors: Array) -> "LinearMap":
        """With entries of the result multiplied by these."""
        return self.then(Scale(factors))

    def undoing(self, factors: Array) -> "LinearMap":
        """The map of a value whose entries were multiplied by these."""
        return Scale(1 / factors).then(self)

    def only_rows(self, materialised: slice) -> "LinearMap":
        """The map to some entries of the result."""
        return Matrix(sp.csr_array(self.matrix()[materialised]))

    def only_columns(self, materialised: slice) -> "LinearMap":
        """The map from some entries, as if the others were zero."""
        return Matrix(sp.csr_array(self.matrix().tocsc()[:, materialised]))


@dataclass(frozen=True, eq=False)
class Gather(LinearMap):
    """`y[i] = x[index[i]]`, and 0 where the index is -1: whatever moves, copies, drops or pads values."""

    index: Indices
    n_in: int

    @property
    def n_out(self) -> int:  # type: ignore[override]
        return len(self.index)

    def __call__(self, x: Array) -> Array:
        y = x[:, self.index]
        return np.where(self.index >= 0, y, 0.0) if self.pads else y

    @cached_property
    def pads(self) -> bool:
        return bool((self.index < 0).any())

    @cached_property
    def is_identity(self) -> bool:
        return self.n_in == self.n_out and bool((self.index == np.arange(self.n_in)).all())

    @cached_property
    def is_permutation(self) -> bool:
        return self.n_in == self.n_out and bool((np.sort(self.index) == np.arange(self.n_in)).all())

    def matrix(self) -> sp.csr_array:
        rows = np.flatnonzero(self.index >= 0)
        return sp.csr_array((np.ones(len(rows)), (rows, self.index[rows])), shape=(self.n_out, self.n_in))


def identity(n: int) -> Gather:
    return Gather(np.arange(n), n)


@dataclass(frozen=True, eq=False)
class Collect(LinearMap):
    """`y[i] = factor * sum of the x[j] with target[j] = i`: sums and means over axes."""

    target: Indices
    n_out: int
    factor: float = 1.0

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return len(self.target)

    @cached_property
    def sums(self) -> sp.csr_array:
        values = np.full(self.n_in, self.factor)
        return sp.csr_array((values, (self.target, np.arange(self.n_in))), shape=(self.n_out, self.n_in))

    def __call__(self, x: Array) -> Array:
        return np.ascontiguousarray((self.sums @ x.T).T)

    def matrix(self) -> sp.csr_array:
        return self.sums


@dataclass(frozen=True, eq=False)
class Scale(LinearMap):
    """`y = values * x`, entry by entry."""

    values: Array

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return len(self.values)

    n_out = n_in

    def __call__(self, x: Array) -> Array:
        return x * self.values

    def matrix(self) -> sp.csr_array:
        return sp.csr_array(sp.diags_array(self.values))


@dataclass(frozen=True, eq=False)
class Dense(LinearMap):
    """`weight` (out, in) applied to each of `rows` consecutive vectors: a linear layer on the last axis."""

    weight: Array
    rows: int = 1

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return self.rows * self.weight.shape[1]

    @property
    def n_out(self) -> int:  # type: ignore[override]
        return self.rows * self.weight.shape[0]

    def __call__(self, x: Array) -> Array:
        return (x.reshape(-1, self.weight.shape[1]) @ self.weight.T).reshape(len(x), -1)

    def matrix(self) -> sp.csr_array:
        return sp.csr_array(sp.kron(sp.eye_array(self.rows), self.weight, format="csr"))


@dataclass(frozen=True, eq=False)
class Convolution(LinearMap):
    """A 2-D convolution of maps (C_in, H, W), with `weight` (C_out, C_in / groups, k_h, k_w) as in PyTorch."""

    weight: Array
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return self.weight.shape[1] * self.groups * self.size[0] * self.size[1]

    @property
    def n_out(self) -> int:  # type: ignore[override]
        return self.weight.shape[0] * math.prod(self.size_out)

    @property
    def size_out(self) -> tuple[int, int]:
        height, width = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(
                self.size, self.padding, self.dilation, self.weight.shape[2:], self.stride, strict=True
            )
        )
        return height, width

    def __call__(self, x: Array) -> Array:
        (height, width), (pad_y, pad_x), groups = self.size_out, self.padding, self.groups
        x = x.reshape(len(x), groups, -1, *self.size)
        x = np.pad(x, ((0, 0), (0, 0), (0, 0), (pad_y, pad_y), (pad_x, pad_x)))
        weight = self.weight.reshape(groups, -1, *self.weight.shape[1:])  # (G, O, I, k_h, k_w)
        y = np.zeros((len(x), groups, weight.shape[1], height * width))
        for i, j in np.ndindex(*weight.shape[3:]):
            top, left = i * self.dilation[0], j * self.dilation[1]
            rows = slice(top, top + self.stride[0] * (height - 1) + 1, self.stride[0])
            columns = slice(left, left + self.stride[1] * (width - 1) + 1, self.stride[1])
            seen = x[..., rows, columns].reshape(*x.shape[:3], -1)
            y += weight[..., i, j] * seen if weight.shape[2] == 1 else weight[..., i, j] @ seen
        return y.reshape(len(x), -1)

    def matrix(self) -> sp.csr_array:
        (height, width), groups = self.size_out, self.groups
        c_out, per_group, *kernel = self.weight.shape
        o, c, i, j, y, x = np.ogrid[:c_out, :per_group, : kernel[0], : kernel[1], :height, :width]
        from_y = y * self.stride[0] - self.padding[0] + i * self.dilation[0]
        from_x = x * self.stride[1] - self.padding[1] + j * self.dilation[1]
        channel = o // (c_out // groups) * per_group + c
        target = (o * height + y) * width + x
        source = (channel * self.size[0] + from_y) * self.size[1] + from_x
        inside = (from_y >= 0) & (from_y < self.size[0]) & (from_x >= 0) & (from_x < self.size[1])
        target, source, inside, values = np.broadcast_arrays(
            target, source, inside, self.weight[:, :, :, :, None, None]
        )
        entries = (values[inside], (target[inside], source[inside]))
        return sp.csr_array(entries, shape=(self.n_out, self.n_in))


@dataclass(frozen=True, eq=False)
class Matrix(LinearMap):
    """A matrix written out."""

    values: sp.csr_array

    def scaled(self, factors: Array) -> "Matrix":
        return Matrix(sp.csr_array(self.values.multiply(factors[:, None])))

    def undoing(self, factors: Array) -> "Matrix":
        return Matrix(sp.csr_array(self.values.multiply(1 / factors)))

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return self.values.shape[1]

    @property
    def n_out(self) -> int:  # type: ignore[override]
        return self.values.shape[0]

    def __call__(self, x: Array) -> Array:
        return np.ascontiguousarray((self.values @ x.T).T)

    def matrix(self) -> sp.csr_array:
        return self.values


@dataclass(frozen=True, eq=False)
class Chain(LinearMap):
    """Maps one after another, the first one first."""

    maps: tuple[LinearMap, ...]

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return self.maps[0].n_in

    @property
    def n_out(self) -> int:  # type: ignore[override]
        return self.maps[-1].n_out

    def __call__(self, x: Array) -> Array:
        for piece in self.maps:
            x = piece(x)
        return x

    @cached_property
    def product(self) -> sp.csr_array:
        result = self.maps[0].matrix()
        for piece in self.maps[1:]:
            result = piece.matrix() @ result
        return sp.csr_array(result)

    def matrix(self) -> sp.csr_array:
        return self.product


@dataclass(frozen=True, eq=False)
class Added(LinearMap):
    """The sum of several maps of one vector."""

    maps: tuple[LinearMap, ...]

    @property
    def n_in(self) -> int:  # type: ignore[override]
        return self.maps[0].n_in

    @property
    def n_out(self) -> int:  # type: ignore[override]
        return self.maps[0].n_out

    def __call__(self, x: Array) -> Array:
        return np.sum([piece(x) for piece in self.maps], axis=0)

    @cached_property
    def total(self) -> sp.csr_array:
        result = self.maps[0].matrix()
        for piece in self.maps[1:]:
            result = result + piece.matrix()
        return sp.csr_array(result)

    def matrix(self) -> sp.csr_array:
        return self.total


LONGEST_MERGED = 2**16


def pieces(linear: LinearMap) -> tuple[LinearMap, ...]:
    return linear.maps if isinstance(linear, Chain) else (linear,)


def chain(maps: Sequence[LinearMap]) -> LinearMap:
    """The composition of maps, first one first, with identities left out and neighbouring moves and scales merged.

    Long ones stay apart: there the merged copies would take more memory than applying both takes time.
    """
    merged: list[LinearMap] = []
    for piece in maps:
        before = merged[-1] if merged else None
        if isinstance(piece, Gather) and piece.is_identity:
            continue
        if piece.n_in > LONGEST_MERGED:
            merged.append(piece)
        elif isinstance(before, Gather) and isinstance(piece, Gather):
            index = np.where(piece.index >= 0, before.index[piece.index], -1)
            merged[-1] = Gather(index, before.n_in)
            if merged[-1].is_identity:  # type: ignore[attr-defined]
                merged.pop()
        elif isinstance(before, Gather) and isinstance(piece, Collect) and before.is_permutation:
            target = np.empty_like(piece.target)
            target[before.index] = piece.target
            merged[-1] = Collect(target, piece.n_out, piece.factor)
        elif isinstance(before, Scale) and isinstance(piece, Scale):
            merged[-1] = Scale(before.values * piece.values)
        else:
            merged.append(piece)
    if not merged:
        return identity(maps[0].n_in)
    return merged[0] if len(merged) == 1 else Chain(tuple(merged))


def is_identity(linear: LinearMap) -> bool:
    return isinstance(linear, Gather) and linear.is_identity
