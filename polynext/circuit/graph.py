"""An arithmetic circuit: linear maps, sums and elementwise products of flat vectors."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from polynext.arrays import Array, Indices
from polynext.circuit.maps import LinearMap

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A value of the circuit. `shape` says what the flat vector was in the network.

    A value that is `kept` is computed once and for all: the rewrites compose linear maps around it, not through it.
    """

    shape: Shape
    kept: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sources(self) -> "tuple[Node, ...]":
        return ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Input(Node):
    """The image, or its entries in another order, some several times: entry e of the value is then entry `order[e]` of
    an `image`, which is this node before, and 0 where that is -1."""

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
        """What each node is for these images, as (B, size) arrays."""
        return dict(self.each_value(images))

    def each_value(self, images: Array) -> Iterator[tuple[Node, Array]]:
        """The same one after the other: a large network's values do not all fit into memory at once."""
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
        """Who takes each value; once per use."""
        found: dict[Node, list[Node]] = {node: [] for node in self.order}
        for node in self.order:
            for source in node.sources:
                found[source].append(node)
        return found

    def count(self) -> Counter[str]:
        """Nodes by kind: linear, sum, product."""
        return Counter(type(node).__name__.lower() for node in self.order if not isinstance(node, Input))

    def degree(self) -> int:
        """The polynomial degree in the image: an upper bound that all but special weights reach."""
        degrees: dict[Node, int] = {}
        for node in self.order:
            below = [degrees[source] for source in node.sources]
            degrees[node] = 1 if isinstance(node, Input) else sum(below) if isinstance(node, Product) else max(below)
        return degrees[self.output]

    def multiplicative_depth(self) -> int:
        """The most products between the image and the result."""
        return self.deepest(linear=0)

    def levels(self, shared_rescale: bool = False) -> int:
        """How many times encryption has to rescale: after every product and every linear map on the longest path.

        With `shared_rescale` a product that goes into linear maps only leaves its rescale to them.
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
    """Whether a value reaches other values through linear maps only."""
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


def topological(output: Node) -> Iterator[Node]:
    """Every node the output needs, sources first; without recursion, because networks are deep."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(output, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(node.sources))
