"""Linear maps between flat vectors, each in its original form.

The matrix of a convolution on ImageNet-sized images would have billions of entries. A map is therefore applied to
vectors, (B, n_in) to (B, n_out), without its matrix. `structure.py` has the form that encryption uses.
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
    """A linear map of flat vectors, of `shape` (n_out, n_in)."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    def n_in(self) -> int:
        return self.shape[1]

    @property
    def n_out(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """(B, n_in) to (B, n_out)."""

    @abstractmethod
    def matrix(self) -> sp.csr_array:
        """The (n_out, n_in) matrix."""

    @property
    def entries(self) -> int:
        """The number of nonzero entries of the matrix."""
        return int(self.matrix().nnz)

    def then(self, after: "LinearMap") -> "LinearMap":
        """The composition: first this map, then `after`, in as few maps as possible."""
        return chain([*pieces(self), *pieces(after)])

    def plus(self, other: "LinearMap") -> "LinearMap":
        """The sum of both maps."""
        return Added((self, other))

    def scaled(self, factors: Array) -> "LinearMap":
        """The map followed by a multiplication of the result's entries by these factors."""
        return self.then(Scale(factors))

    def undoing(self, factors: Array) -> "LinearMap":
        """The same map for a value whose entries have been multiplied by these factors."""
        return Scale(1 / factors).then(self)

    def only_rows(self, rows: slice) -> "LinearMap":
        """The map to some entries of the result."""
        return Matrix(sp.csr_array(self.matrix()[rows]))

    def only_columns(self, columns: slice) -> "LinearMap":
        """The map from some entries, as if the others were zero."""
        return Matrix(sp.csr_array(self.matrix().tocsc()[:, columns]))


@dataclass(frozen=True, eq=False)
class Gather(LinearMap):
    """`y[i] = x[index[i]]`, or 0 if the index is -1: moves, copies, drops and pads values."""

    index: Indices
    length_in: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.length_in

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
        return sp.csr_array((np.ones(len(rows)), (rows, self.index[rows])), shape=self.shape)


def identity(n: int) -> Gather:
    return Gather(np.arange(n), n)


@dataclass(frozen=True, eq=False)
class Collect(LinearMap):
    """`y[i] = factor * sum of the x[j] with target[j] = i`: sums and means over axes."""

    target: Indices
    length_out: int
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.length_out, len(self.target)

    @cached_property
    def sums(self) -> sp.csr_array:
        values = np.full(self.n_in, self.factor)
        return sp.csr_array((values, (self.target, np.arange(self.n_in))), shape=self.shape)

    def __call__(self, x: Array) -> Array:
        return np.ascontiguousarray((self.sums @ x.T).T)

    def matrix(self) -> sp.csr_array:
        return self.sums


@dataclass(frozen=True, eq=False)
class Scale(LinearMap):
    """`y = values * x`, entry by entry."""

    values: Array

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), len(self.values)

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
    def shape(self) -> tuple[int, int]:
        return self.rows * self.weight.shape[0], self.rows * self.weight.shape[1]

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
    def shape(self) -> tuple[int, int]:
        c_out, per_group = self.weight.shape[:2]
        return c_out * math.prod(self.size_out), per_group * self.groups * math.prod(self.size)

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
        return sp.csr_array(entries, shape=self.shape)


@dataclass(frozen=True, eq=False)
class Matrix(LinearMap):
    """An explicit sparse matrix."""

    values: sp.csr_array

    def scaled(self, factors: Array) -> "Matrix":
        return Matrix(sp.csr_array(self.values.multiply(factors[:, None])))

    def undoing(self, factors: Array) -> "Matrix":
        return Matrix(sp.csr_array(self.values.multiply(1 / factors)))

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    def __call__(self, x: Array) -> Array:
        return np.ascontiguousarray((self.values @ x.T).T)

    def matrix(self) -> sp.csr_array:
        return self.values


@dataclass(frozen=True, eq=False)
class Chain(LinearMap):
    """A composition of maps, the first one first."""

    maps: tuple[LinearMap, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return self.maps[-1].n_out, self.maps[0].n_in

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
    def shape(self) -> tuple[int, int]:
        return self.maps[0].shape

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
    """The composition of maps, first one first, without identities and with neighbouring moves and scales merged.

    Long maps are not merged: the merged copies would take too much memory.
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
