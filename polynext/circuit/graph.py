"""An arithmetic circuit: linear maps, sums and elementwise products of flat vectors."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from polynext.arrays import Array, Indices
from polynext.circuit.maps import LinearMap

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A value of the circuit. `shape` is the shape that the flat vector has in the network.

    A `materialised` value is computed once: rewrites do not compose linear maps through it.
    """

    shape: Shape
    materialised: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sources(self) -> "tuple[Node, ...]":
        return ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Input(Node):
    """The image, or a rearrangement of it: entry e is then entry `order[e]` of the original `image`, or 0 if the order
    is -1. Entries can occur several times."""

    order: Indices | None = None
    image: "Input | None" = None

    @property
    def image_shape(self) -> Shape:
        return self.shape if self.image is None else self.image.image_shape


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Node):
    """`M x`, or `M x + b`."""

    map: LinearMap
    source: Node
    bias: Array | None = None

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Node):
    """`x + y + ...`"""

    terms: tuple[Node, ...]

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.terms


@dataclass(frozen=True, eq=False, kw_only=True)
class Product(Node):
    """`x * y`, entry by entry."""

    left: Node
    right: Node

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Circuit:
    """A function of an image by additions and multiplications alone."""

    input: Input
    output: Node
    order: tuple[Node, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tuple(topological(self.output)))

    def __call__(self, images: Array) -> Array:
        """(B, *image shape) to (B, *output shape) in float64."""
        for node, value in self.each_value(images):
            if node is self.output:
                return value.reshape(len(images), *self.output.shape)
        raise AssertionError("a circuit has an output")

    def values(self, images: Array) -> dict[Node, Array]:
        """The value of each node for these images, as (B, size) arrays."""
        return dict(self.each_value(images))

    def each_value(self, images: Array) -> Iterator[tuple[Node, Array]]:
        """The same one after another, because the values of a large network do not all fit into memory."""
        images = np.asarray(images, dtype=np.float64)
        waiting = {node: len(users) for node, users in self.users().items()}
        found: dict[Node, Array] = {}
        for node in self.order:
            found[node] = evaluate_node(node, found, images)
            yield node, found[node]
            for source in node.sources:
                waiting[source] -= 1
                if not waiting[source]:
                    found.pop(source, None)

    def users(self) -> dict[Node, list[Node]]:
        """The nodes that use each value, once per use."""
        found: dict[Node, list[Node]] = {node: [] for node in self.order}
        for node in self.order:
            for source in node.sources:
                found[source].append(node)
        return found

    def count(self) -> Counter[str]:
        """Nodes by kind: linear, sum, product."""
        return Counter(type(node).__name__.lower() for node in self.order if not isinstance(node, Input))

    def degree(self) -> int:
        """The polynomial degree in the image: an upper bound that is reached except for special weights."""
        degrees: dict[Node, int] = {}
        for node in self.order:
            below = [degrees[source] for source in node.sources]
            degrees[node] = 1 if isinstance(node, Input) else sum(below) if isinstance(node, Product) else max(below)
        return degrees[self.output]

    def multiplicative_depth(self) -> int:
        """The largest number of products on a path from the image to the result."""
        return self.deepest(linear=0)

    def levels(self, shared_rescale: bool = False) -> int:
        """The number of rescales on the longest path: one after every product and every linear map.

        With `shared_rescale`, a product that only linear maps use shares their rescale.
        """
        return self.deepest(linear=1, shared_rescale=shared_rescale)

    def deepest(self, linear: int, shared_rescale: bool = False) -> int:
        users = self.users()
        depth: dict[Node, int] = {}
        for node in self.order:
            below = max((depth[source] for source in node.sources), default=0)
            if isinstance(node, Product):
                below += not (shared_rescale and only_linear_users(node, users))
            elif isinstance(node, Linear):
                below += linear
            depth[node] = below
        return depth[self.output]


def only_linear_users(node: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether only linear maps use a value."""
    return bool(users[node]) and all(isinstance(user, Linear) for user in users[node])


def evaluate_node(node: Node, values: dict[Node, Array], images: Array) -> Array:
    match node:
        case Input():
            flat = images.reshape(len(images), -1)
            return flat if node.order is None else np.where(node.order >= 0, flat[:, node.order], 0.0)
        case Linear():
            result = node.map(values[node.source])
            return result if node.bias is None else result + node.bias
        case Sum():
            return np.sum([values[term] for term in node.terms], axis=0)
        case Product():
            return values[node.left] * values[node.right]
    raise TypeError(type(node).__name__)


def topological(output: Node, sources: Callable[[Node], Sequence[Node]] = lambda node: node.sources) -> Iterator[Node]:
    """Every node that the output needs, each after its sources. There is no recursion, because networks are deep."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(output, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(sources(node)))
