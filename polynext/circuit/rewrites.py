"""Rewrites: functions from a circuit to an equal circuit with fewer levels or fewer operations.

Under encryption, depth is expensive. These rewrites bring a network's circuit into the cheapest form:

    patches_first        rearranges the image into patches, if the network starts with patches
    structured           maps between feature maps become sums of Kronecker products
    factor_sums          x + x y becomes x (1 + y), so that x is used once
    merge_linear_maps    neighbouring linear maps become one
    rebase               materialises values, and recovers the sums they are computed from
    expand_sums          expands all other sums: A (x + s W m) becomes A x + (s A W) m, in one level
    split                splits values that are too long for a ciphertext
    normalise            scales values to about the same size, where fixed-point arithmetic is most precise
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import scipy.sparse as sp

from polynext.arrays import Array
from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum, topological
from polynext.circuit.maps import Convolution, Gather, LinearMap, Matrix, Scale, chain, identity, is_identity, pieces
from polynext.circuit.structure import Kronecker, is_diagonal, kronecker, mean_condition, positions_of

Source = TypeVar("Source")


@dataclass(frozen=True)
class Affine(Generic[Source]):
    """`sum of M_k x_k + b`: a value as an affine function of several sources."""

    maps: dict[Source, LinearMap]
    bias: Array | None = None

    def then(self, mapping: LinearMap, bias: Array | None = None) -> "Affine[Source]":
        maps = {source: m.then(mapping) for source, m in self.maps.items()}
        carried = None if self.bias is None else mapping(self.bias[None])[0]
        return Affine(maps, added(carried, bias))

    def plus(self, other: "Affine[Source]") -> "Affine[Source]":
        maps = dict(self.maps)
        for source, m in other.maps.items():
            maps[source] = maps[source].plus(m) if source in maps else m
        return Affine(maps, added(self.bias, other.bias))


def added(left: Array | None, right: Array | None) -> Array | None:
    return right if left is None else left if right is None else left + right


def affine_of(node: Node) -> Affine[Node]:
    """A value as an affine function of the products, materialised values and the image that it is computed from."""

    def sources(value: Node) -> tuple[Node, ...]:
        return value.sources if isinstance(value, Linear | Sum) and (value is node or not value.materialised) else ()

    found: dict[Node, Affine[Node]] = {}
    for value in topological(node, sources):
        if not sources(value):
            found[value] = Affine({value: identity(value.size)})
        elif isinstance(value, Linear):
            found[value] = found[value.source].then(value.map, value.bias)
        elif isinstance(value, Sum):
            first, *rest = (found[term] for term in value.terms)
            for other in rest:
                first = first.plus(other)
            found[value] = first
    return found[node]


def rebuild(circuit: Circuit, rule: Callable[[Node, dict[Node, Node]], Node]) -> Circuit:
    """A new circuit, node by node: `rule` gets an old node and the new nodes of those before it."""
    became: dict[Node, Node] = {}
    for node in circuit.order:
        became[node] = rule(node, became)
    image = became.get(circuit.input, circuit.input)
    assert isinstance(image, Input)
    return Circuit(image, became[circuit.output])


def renewed(node: Node, became: dict[Node, Node]) -> Node:
    """The same node with the new sources."""
    if all(became[source] is source for source in node.sources):
        return node
    match node:
        case Linear():
            return replace(node, source=became[node.source])
        case Sum():
            return replace(node, terms=tuple(became[term] for term in node.terms))
        case Product():
            return replace(node, left=became[node.left], right=became[node.right])
    return node


def factor_sums(circuit: Circuit) -> Circuit:
    """`x + x y` as `x (1 + y)`, as in PolyHead: only the product uses x then."""
    users = circuit.users()

    def rule(node: Node, became: dict[Node, Node]) -> Node:
        if isinstance(node, Sum) and len(node.terms) == 2:
            for product, other in (node.terms, node.terms[::-1]):
                if isinstance(product, Product) and other in product.sources and len(users[product]) == 1:
                    factor = product.right if other is product.left else product.left
                    one_more = Linear(
                        shape=factor.shape, map=identity(factor.size), source=became[factor], bias=np.ones(factor.size)
                    )
                    return Product(shape=node.shape, left=became[other], right=one_more)
        return renewed(node, became)

    return rebuild(circuit, rule)


def merge_linear_maps(circuit: Circuit) -> Circuit:
    """Composes every linear map with the one before it, unless other nodes use that one too. Affine norms, scales,
    moves and pooling are absorbed into convolutions; nothing is computed twice."""
    users = circuit.users()

    def rule(node: Node, became: dict[Node, Node]) -> Node:
        node_now = renewed(node, became)
        if not isinstance(node_now, Linear) or not isinstance(node_now.source, Linear) or node_now.source.materialised:
            return node_now
        before = node_now.source
        assert isinstance(node, Linear)
        if len(users[node.source]) > 1 and not is_cheap(before.map):
            return node_now
        if mixes_positions_only(before.map) and mixes_channels(node_now.map):
            return node_now  # each has few diagonals; their composition has the product of both numbers
        bias = added(moved_bias(before, node_now.map), node_now.bias)
        return replace(node_now, source=before.source, map=before.map.then(node_now.map), bias=bias)

    return rebuild(circuit, rule)


def is_cheap(mapping: LinearMap) -> bool:
    """Whether a map only moves and scales, which another map can absorb at no cost."""
    return all(isinstance(piece, Gather | Scale) for piece in pieces(mapping))


def mixes_positions_only(mapping: LinearMap) -> bool:
    return isinstance(mapping, Kronecker) and len(mapping.moves) > 1 and all(map(is_diagonal, mapping.mixes))


def mixes_channels(mapping: LinearMap) -> bool:
    return isinstance(mapping, Kronecker) and not all(map(is_diagonal, mapping.mixes))


def expand_sums(circuit: Circuit) -> Circuit:
    """Expands the residual stream: every operand of a product, every materialised value and the output become one sum
    of linear maps of products, materialised values and the image."""
    became: dict[Node, Node] = {}

    def flat(node: Node) -> Node:
        if node in became:
            return became[node]
        affine = affine_of(node)
        if not node.materialised and affine.bias is None and len(affine.maps) == 1 and node is not circuit.output:
            (source, only), *_ = affine.maps.items()
            if is_identity(only):
                return became[source]
        *others, last = affine.maps.items()
        terms: list[Node] = [Linear(shape=node.shape, map=m, source=became[s]) for s, m in others]
        source, m = last
        terms.append(Linear(shape=node.shape, map=m, source=became[source], bias=affine.bias, materialised=False))
        if len(terms) == 1:
            return replace(terms[0], materialised=node.materialised)
        return Sum(shape=node.shape, terms=tuple(terms), materialised=node.materialised)

    for node in circuit.order:
        if isinstance(node, Input):
            became[node] = node
        elif isinstance(node, Product):
            left = flat(node.left)
            right = left if node.right is node.left else flat(node.right)
            became[node] = replace(node, left=left, right=right)
        elif node.materialised:
            became[node] = flat(node)
    return Circuit(circuit.input, flat(circuit.output))


# A change of basis with a worse condition loses too many digits for the time that it saves.
WORST_CONDITION = 20.0
LARGEST_INVERSE = 2048


def inverse(mapping: LinearMap) -> tuple[LinearMap, float] | None:
    """The inverse of a map and its mean condition; None if the map is not square and well-conditioned."""
    if isinstance(mapping, Kronecker):
        found = mapping.inverse()
        return found if found and found[1] <= WORST_CONDITION else None
    if mapping.n_in != mapping.n_out or mapping.n_in > LARGEST_INVERSE:
        return None
    dense = mapping.matrix().toarray()
    try:
        inverted = np.linalg.inv(dense)
    except np.linalg.LinAlgError:
        return None
    if (condition := mean_condition(dense, inverted)) > WORST_CONDITION:
        return None
    inverted[np.abs(inverted) < 1e-12 * np.abs(inverted).max()] = 0  # rounding where the exact inverse is zero
    return Matrix(sp.csr_array(inverted)), condition


def rebase(circuit: Circuit, *values: Linear, materialised: Collection[Node] = ()) -> Circuit | None:
    """Materialises each `h = W z + b` and replaces all other uses of z by `W^-1 (h - b)`, so that z is not computed.

    After PolyConv's W_in, both branches are depthwise maps of h, with a few diagonals each. Other values can be
    `materialised` at the same time. None if a W has no well-conditioned inverse.
    """
    backwards = {value: inverse(value.map) for value in values}
    order = list(circuit.order)
    for value in values:  # must come before all other users of its source
        order.remove(value)
        order.insert(order.index(value.source) + 1, value)
    became: dict[Node, Node] = {}
    instead: dict[Node, Node] = {}  # replacements of sums that are not computed
    for node in order:
        if isinstance(node, Linear) and node in backwards:
            became[node] = replace(renewed(node, became), materialised=True)
            found = backwards[node]
            if found is None:
                return None
            back, _ = found
            bias = None if node.bias is None else -back(node.bias[None])[0]
            instead[node.source] = Linear(shape=node.source.shape, map=back, source=became[node], bias=bias)
        else:
            now = renewed(node, {**became, **instead})
            became[node] = replace(now, materialised=True) if node in materialised else now
    return Circuit(circuit.input, became[circuit.output])


def split(circuit: Circuit, longest: int) -> Circuit:
    """Splits products and materialised values with more than `longest` entries into equal parts, along their first axis
    if possible.

    For circuits whose sums are expanded. The users of a split value take the columns of their maps for each part.
    """
    parts: dict[Node, list[tuple[Node, slice]]] = {}
    became: dict[Node, Node] = {}

    def columns(node: Node) -> list[Node]:
        """A linear map of a split value as linear maps of its parts."""
        assert isinstance(node, Linear)
        if node.source not in parts:
            return [replace(node, source=became[node.source])]
        made = [replace(node, source=p, map=node.map.only_columns(s), bias=None) for p, s in parts[node.source]]
        return [*made[:-1], replace(made[-1], bias=node.bias)]

    def operand(node: Node, rows: slice | None) -> Node:
        """An operand with the new sources, or only some of its rows."""
        if not isinstance(node, Linear | Sum) or (node.materialised and node in became):
            if node in parts:
                (match,) = [p for p, s in parts[node] if s == rows]
                return match
            return became[node]
        terms = [t for term in (node.terms if isinstance(node, Sum) else (node,)) for t in columns(term)]
        if rows is not None:
            terms = [
                replace(t, map=t.map.only_rows(rows), bias=None if t.bias is None else t.bias[rows])
                for t in terms
                if isinstance(t, Linear)
            ]
        shape = node.shape if rows is None else cut_shape(node.shape, rows)
        terms = [replace(t, shape=shape, materialised=False) for t in terms]
        return (
            replace(terms[0], materialised=node.materialised)
            if len(terms) == 1
            else Sum(shape=shape, terms=tuple(terms), materialised=node.materialised)
        )

    for node in circuit.order:
        if isinstance(node, Input):
            became[node] = node
        elif isinstance(node, Product) or node.materialised:
            count = -(-node.size // longest)
            while node.size % count:
                count += 1
            slices = [slice(i * node.size // count, (i + 1) * node.size // count) for i in range(count)]
            for rows in slices if count > 1 else [None]:
                made: Node
                if isinstance(node, Product):
                    left = operand(node.left, rows)
                    right = left if node.right is node.left else operand(node.right, rows)
                    made = replace(node, shape=left.shape, left=left, right=right)
                else:
                    made = operand(node, rows)
                if rows is None:
                    became[node] = made
                else:
                    parts.setdefault(node, []).append((made, rows))
    return Circuit(circuit.input, operand(circuit.output, None))


def cut_shape(shape: tuple[int, ...], rows: slice) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    count = rows.stop - rows.start
    rest = int(np.prod(shape[1:]))
    return (count // rest, *shape[1:]) if count % rest == 0 else (count,)


# A channel is enlarged by at most this factor, compared to the largest channel of its value.
LARGEST_GAIN = 256.0


def normalise(circuit: Circuit, images: Array, target: float = 1.0) -> Circuit:
    """Scales the operands of products and the materialised values so that the largest entry of each channel over these
    images is about `target`. The maps that use them undo it. For circuits whose sums are expanded.
    """
    largest = {node: np.abs(value).max(axis=0) for node, value in circuit.each_value(images)}
    factors: dict[Node, Array] = {}  # new value / old value
    became: dict[Node, Node] = {}

    def scaled(node: Node, factor: Array) -> Node:
        """`factor` times an old operand, with the new sources."""
        terms = node.terms if isinstance(node, Sum) else (node,)
        made = []
        for term in terms:
            assert isinstance(term, Linear)
            mapping = term.map if term.source not in factors else term.map.undoing(factors[term.source])
            bias = None if term.bias is None else term.bias * factor
            made.append(replace(term, source=became[term.source], map=mapping.scaled(factor), bias=bias))
        return made[0] if len(made) == 1 else replace(node, terms=tuple(made))  # type: ignore[call-arg]

    def wanted(node: Node) -> Array:
        """The factors of a value: powers of two, which do not round."""
        positions = positions_of(node.shape)
        channels = largest[node].reshape(-1, positions)
        if positions == 1:
            channels = np.full_like(channels, channels.max())
        most = channels.max(axis=1, keepdims=True)
        # A channel that is nearly zero stays small: enlarging it would enlarge noise.
        most = np.maximum(most, most.max() / LARGEST_GAIN)
        factor = 2.0 ** -np.round(np.log2(most / target)) if most.max() > 0 else np.ones_like(most)
        return np.broadcast_to(factor, channels.shape).ravel()

    def operand(node: Node) -> tuple[Node, Array]:
        if node in became:
            return became[node], factors.get(node, np.ones(node.size))
        factor = wanted(node)
        return scaled(node, factor), factor

    for node in circuit.order:
        if isinstance(node, Input):
            became[node] = node
        elif isinstance(node, Product):
            left, left_factor = operand(node.left)
            right, right_factor = (left, left_factor) if node.right is node.left else operand(node.right)
            became[node] = replace(node, left=left, right=right)
            factors[node] = left_factor * right_factor
        elif node.materialised:
            factors[node] = wanted(node)
            became[node] = scaled(node, factors[node])
    return Circuit(circuit.input, scaled(circuit.output, np.ones(circuit.output.size)))


def merge_moves(circuit: Circuit) -> Circuit:
    """Composes moves and scales with the map before them, so that values have channels first, as the next map
    expects."""
    turned: dict[tuple[Node, bytes], Linear] = {}

    def rule(node: Node, became: dict[Node, Node]) -> Node:
        now = renewed(node, became)
        if not isinstance(now, Linear) or not isinstance(now.source, Linear) or now.source.materialised:
            return now
        before = now.source
        if is_cheap(now.map) or is_cheap(before.map):
            return replace(composed(before, now.map, now.shape), bias=added(moved_bias(before, now.map), now.bias))
        first, *rest = pieces(now.map)
        if not isinstance(first, Gather) or not first.is_permutation or not isinstance(rest[0], Convolution):
            return now
        key, size = (before, first.index.tobytes()), rest[0].size
        if key not in turned:
            turned[key] = composed(before, first, (1, first.n_out // math.prod(size), *size))
        return replace(now, source=turned[key], map=chain(rest))

    return rebuild(circuit, rule)


def composed(before: Linear, after: LinearMap, shape: tuple[int, ...]) -> Linear:
    return replace(before, shape=shape, map=before.map.then(after), bias=moved_bias(before, after))


def moved_bias(before: Linear, after: LinearMap) -> Array | None:
    return None if before.bias is None else after(before.bias[None])[0]


def structured(circuit: Circuit) -> Circuit:
    """Turns every linear map into a sum of Kronecker products if possible, and into a matrix otherwise."""

    def rule(node: Node, became: dict[Node, Node]) -> Node:
        now = renewed(node, became)
        if not isinstance(now, Linear):
            return now
        found = kronecker(now.map, positions_of(now.source.shape))
        return replace(now, map=Matrix(now.map.matrix()) if found is None else found)

    return rebuild(merge_moves(circuit), rule)


def patches_first(circuit: Circuit) -> Circuit:
    """Space to depth: if the network starts with patches, adjacent or overlapping, the pixels of a patch become
    channels and the first map becomes 1x1. The input's `order` maps entries to pixels."""
    users = circuit.users()[circuit.input]
    stems = [first_convolution(user) for user in users]
    if not stems or any(stem is None or not takes_patches(stem) for stem in stems):
        return circuit
    windows = {(s.weight.shape[1:], s.size, s.stride, s.padding) for s in stems if s is not None}
    if len(windows) > 1:
        return circuit
    (((channels, *patch), (height, width), stride, padding),) = windows
    pixels = np.arange(circuit.input.size).reshape(channels, height, width)
    around = [(0, 0), *((p, p) for p in padding)]
    padded = np.pad(pixels, around, constant_values=-1)
    patches = np.lib.stride_tricks.sliding_window_view(padded, patch, axis=(1, 2))[:, :: stride[0], :: stride[1]]
    rows, columns = patches.shape[1:3]
    order = patches.transpose(0, 3, 4, 1, 2).reshape(-1)
    image = Input(shape=(channels * patch[0] * patch[1], rows, columns), order=order, image=circuit.input)

    def rule(node: Node, became: dict[Node, Node]) -> Node:
        if node is circuit.input:
            return image
        stem = first_convolution(node) if isinstance(node, Linear) and node.source is circuit.input else None
        if stem is None:
            return renewed(node, became)
        assert isinstance(node, Linear)
        pointwise = Convolution(stem.weight.reshape(len(stem.weight), -1, 1, 1), (rows, columns))
        rest = [piece for piece in pieces(node.map) if not isinstance(piece, Gather) or not piece.is_identity][1:]
        mapping: LinearMap = pointwise
        for piece in rest:
            mapping = mapping.then(piece)
        return replace(node, source=image, map=mapping)

    return rebuild(circuit, rule)


def first_convolution(node: Node) -> Convolution | None:
    """The convolution that a linear map of the image starts with, if it does."""
    if not isinstance(node, Linear):
        return None
    first = next((p for p in pieces(node.map) if not isinstance(p, Gather) or not p.is_identity), None)
    return first if isinstance(first, Convolution) else None


def takes_patches(convolution: Convolution) -> bool:
    strided = convolution.stride != (1, 1) and convolution.weight.shape[2:] != (1, 1)
    return strided and convolution.dilation == (1, 1) and convolution.groups == 1
