"""From a PyTorch model to a circuit.

`torch.export` traces the model for one image. Operations on parameters alone are computed during lowering. Operations
that only move values are applied to a tensor of indices, which gives the move. The rest are linear operations and
products. A product of two matrices that both depend on the image, as in attention, becomes three steps: copy the
entries side by side, multiply them, sum.
"""

import copy
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node as TorchNode

from polynext.arrays import Array
from polynext.circuit.degree import example_image, node_degree
from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Shape, Sum
from polynext.circuit.maps import Collect, Convolution, Dense, Gather, LinearMap, Scale, chain, identity
from polynext.errors import PolyNeXtError

aten = torch.ops.aten

# Operations that move, copy or drop values, or pad with zeros.
MOVES = {
    aten.view, aten._unsafe_view, aten.permute, aten.transpose, aten.t, aten.expand, aten.repeat, aten.unsqueeze,
    aten.squeeze, aten.slice, aten.select, aten.split, aten.split_with_sizes, aten.unbind, aten.flip, aten.roll,
    aten.constant_pad_nd, aten.index, aten.index_select, aten.gather, aten.as_strided, aten.diagonal, aten.reshape,
    aten.cat, aten.stack,
}  # fmt: skip
# Operations that change only how a value is stored.
COPIES = {aten.clone, aten.alias, aten.detach, aten._to_copy, aten.contiguous, aten.lift_fresh_copy, aten.copy}

Value = Any  # a circuit node, a constant tensor, a number, or a list of these


def lower(model: nn.Module, example: Tensor | None = None) -> Circuit:
    """The model in eval mode as a circuit, in double precision.

    Raises NotPolynomialError with the operation if the model is not a polynomial. `example` is one image (1, C, H, W)
    to trace with, by default of the size that the model is built for.
    """
    double = copy.deepcopy(model).double().eval().requires_grad_(False)
    example = (example_image(double) if example is None else example)[:1].double()
    with torch.no_grad():
        program = torch.export.export(double, (example,)).run_decompositions()
        return Lowering(program).circuit(tuple(example.shape[1:]))


class Lowering:
    """Lowers one traced program."""

    def __init__(self, program: torch.export.ExportedProgram):
        self.program = program
        self.found: dict[TorchNode, Value] = {}
        self.degrees: dict[TorchNode, int] = {}

    def circuit(self, image_shape: Shape) -> Circuit:
        signature = self.program.graph_signature
        constants: dict[str, Any] = {**self.program.state_dict, **self.program.constants}
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        names |= signature.inputs_to_lifted_tensor_constants
        image = Input(shape=image_shape)
        batched = reshaped(image, (1, *image_shape))  # with the batch axis of the trace
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                is_image = node.name in signature.user_inputs
                self.found[node] = batched if is_image else constants[names[node.name]].detach()
                self.degrees[node] = int(is_image)
            elif node.op == "output":
                (result,) = [a for a in node.all_input_nodes if a.name in signature.user_outputs]
                output = self.found[result]
                if not isinstance(output, Node):
                    raise PolyNeXtError("the model's output does not depend on its input: check its forward method.")
                return Circuit(image, reshaped(output, output.shape[1:]))
            else:
                self.degrees[node] = node_degree(node, self.degrees)
                self.found[node] = self.lower_node(node)
        raise AssertionError("a traced program has an output")

    def lower_node(self, node: TorchNode) -> Value:
        arguments: Any = torch.fx.node.map_arg(node.args, lambda n: self.found[n])
        keywords: Any = torch.fx.node.map_arg(node.kwargs, lambda n: self.found[n])
        if not any(isinstance(self.found[a], Node | list) for a in node.all_input_nodes):
            target: Any = node.target
            return target(*arguments, **keywords)
        if node.target is operator.getitem:
            return arguments[0][arguments[1]]
        operation: Any = getattr(node.target, "overloadpacket", node.target)
        if operation in COPIES:
            return arguments[0]
        if operation in MOVES:
            return self.move(node, arguments, keywords)
        shape = tuple(node.meta["val"].shape) if isinstance(node.meta.get("val"), Tensor) else ()
        match operation:
            case aten.add | aten.sub:
                sign = 1.0 if operation is aten.add else -1.0
                return self.add(arguments[0], scaled(arguments[1], sign * keywords.get("alpha", 1)), shape)
            case aten.neg:
                return scaled(arguments[0], -1.0)
            case aten.mul:
                return self.multiply(arguments[0], arguments[1], shape)
            case aten.div:
                return self.multiply(arguments[0], 1 / torch.as_tensor(arguments[1], dtype=torch.double), shape)
            case aten.addcmul:
                product = self.multiply(arguments[1], arguments[2], shape)
                return self.add(arguments[0], scaled(product, keywords.get("value", 1)), shape)
            case aten.pow:
                return self.power(arguments[0], int(arguments[1]))
            case aten.square:
                return self.power(arguments[0], 2)
            case aten.sum | aten.mean:
                return self.collect(node, arguments, shape)
            case aten.mm | aten.bmm | aten.matmul:
                return self.matrix_product(arguments[0], arguments[1])
            case aten.addmm | aten.baddbmm:
                return self.add(arguments[0], self.matrix_product(arguments[1], arguments[2]), shape)
            case aten.linear:
                product = self.matrix_product(arguments[0], arguments[1].T)
                return product if len(arguments) < 3 else self.add(product, arguments[2], shape)
            case aten.convolution | aten.conv2d:
                return self.convolve(node, arguments, shape)
            case aten._native_batch_norm_legit_no_training:
                return [self.batch_norm(arguments)]
            case aten.avg_pool2d:
                return self.average_pool(arguments, shape)
        raise PolyNeXtError(
            f"{operation.__name__} is a polynomial operation that circuits do not support: "
            "write the model with convolutions, matrix products, sums and products."
        )

    def move(self, node: TorchNode, arguments: Any, keywords: Any) -> Value:
        """Finds where each value goes by moving indices, which count from 1; 0 marks padding."""
        target: Any = node.target
        parts: list[Node] = []

        def collect(value: Value) -> None:
            if isinstance(value, Node):
                parts.append(value)
            elif isinstance(value, list | tuple):
                for v in value:
                    collect(v)

        collect(arguments)

        def moved(part: Node) -> Any:
            def indices(value: Value) -> Value:
                if isinstance(value, Node):
                    return counted(value) if value is part else torch.zeros_like(counted(value))
                if isinstance(value, list | tuple):
                    return [indices(v) for v in value]
                return value

            if sum(p is part for p in parts) > 1:
                raise PolyNeXtError(
                    f"circuits do not support {target.__name__} of a value with itself: apply it to different values."
                )
            return target(*indices(arguments), **keywords)

        results = [(part, moved(part)) for part in [part for part in parts if part.size] or parts[:1]]
        if isinstance(results[0][1], Tensor):
            return together([gathered(part, index) for part, index in results])
        ((part, several),) = results
        return [gathered(part, index) for index in several]

    def add(self, left: Value, right: Value, shape: Shape) -> Node:
        if not isinstance(left, Node):
            left, right = right, left
        left = broadcast(left, shape)
        if isinstance(right, Node):
            return total([left, broadcast(right, shape)])
        return linear(left, identity(left.size), shape, bias=constant(right, shape))

    def multiply(self, left: Value, right: Value, shape: Shape) -> Node:
        if not isinstance(left, Node):
            left, right = right, left
        left = broadcast(left, shape)
        if isinstance(right, Node):
            return Product(shape=shape, left=left, right=broadcast(right, shape))
        factors = constant(right, shape)
        return left if (factors == 1).all() else linear(left, Scale(factors), shape)

    def power(self, value: Node, exponent: int) -> Node:
        """Repeated squaring, which has the least depth."""
        if exponent < 1:
            raise PolyNeXtError(f"circuits do not support a power of {exponent}: use an exponent of at least 1.")
        if exponent == 1:
            return value
        half = self.power(value, exponent // 2)
        square = Product(shape=value.shape, left=half, right=half)
        return Product(shape=value.shape, left=square, right=value) if exponent % 2 else square

    def collect(self, node: TorchNode, arguments: Any, shape: Shape) -> Node:
        (value, *rest) = arguments
        axes = rest[0] if rest and rest[0] is not None else list(range(len(value.shape)))
        axes = [a % len(value.shape) for a in ([axes] if isinstance(axes, int) else axes)]
        reduced = [1 if i in axes else n for i, n in enumerate(value.shape)]
        target = np.broadcast_to(np.arange(math.prod(reduced)).reshape(reduced), value.shape).ravel()
        count = math.prod(value.shape[a] for a in axes)
        is_mean = getattr(node.target, "overloadpacket", None) is aten.mean
        return linear(value, Collect(target, math.prod(reduced), 1 / count if is_mean else 1.0), shape)

    def matrix_product(self, left: Value, right: Value) -> Node:
        """(..., n, k) times (..., k, m), of two values or of a value and a constant."""
        if isinstance(left, Node) and isinstance(right, Tensor) and is_one_matrix(right):
            right = right.flatten(0, -3)[0] if right.ndim > 2 else right
            weight = right.T.double().numpy()
            rows = left.size // weight.shape[1]
            return linear(left, Dense(np.ascontiguousarray(weight), rows), (*left.shape[:-1], len(weight)))
        n, k = left.shape[-2:]
        m = right.shape[-1]
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        shape = (*batch, n, m, k)

        def side_by_side(value: Value, turn: Callable[[Tensor], Tensor]) -> Value:
            if isinstance(value, Tensor):
                return turn(value).expand(shape)
            return gathered(value, turn(counted(value)).expand(shape))

        a = side_by_side(left, lambda t: t.unsqueeze(-2))
        b = side_by_side(right, lambda t: t.mT.unsqueeze(-3))
        product = self.multiply(a, b, shape)
        target = np.repeat(np.arange(math.prod(shape[:-1])), k)
        return linear(product, Collect(target, math.prod(shape[:-1])), shape[:-1])

    def convolve(self, node: TorchNode, arguments: Any, shape: Shape) -> Node:
        defaults: list[Any] = [None, None, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1]
        if getattr(node.target, "overloadpacket", None) is aten.conv2d:
            *first, groups = filled(arguments, [None, None, None, (1, 1), (0, 0), (1, 1), 1])
            arguments = [*first, False, (0, 0), groups]
        value, weight, bias, stride, padding, dilation, transposed, _, groups = filled(arguments, defaults)
        if not isinstance(value, Node) or not isinstance(weight, Tensor) or transposed or weight.ndim != 4:
            raise PolyNeXtError(
                "circuits support only 2-D convolutions with constant kernels: rewrite the other convolutions."
            )
        size = (value.shape[-2], value.shape[-1])
        convolution = Convolution(weight.numpy(), size, tuple(stride), tuple(padding), tuple(dilation), groups)
        every_position = None if bias is None else constant(bias[:, None, None], shape)
        return linear(value, convolution, shape, bias=every_position)

    def batch_norm(self, arguments: Any) -> Node:
        value, weight, bias, mean, var, _, eps = arguments
        factor = (var + eps).rsqrt() * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * factor
        channels = (-1, *[1] * (len(value.shape) - 2))
        return self.add(
            self.multiply(value, factor.reshape(channels), value.shape), shift.reshape(channels), value.shape
        )

    def average_pool(self, arguments: Any, shape: Shape) -> Node:
        defaults: list[Any] = [None, None, [], (0, 0), False, True, None]
        value, kernel, stride, padding, ceil_mode, count_padding, divisor = filled(arguments, defaults)
        if ceil_mode or divisor or (not count_padding and any(padding)):
            raise PolyNeXtError(
                "circuits support average pooling with whole windows only: use ceil_mode=False and no divisor."
            )
        channels = value.shape[-3]
        weight = np.full((channels, 1, *kernel), 1 / math.prod(kernel))
        size = (value.shape[-2], value.shape[-1])
        pool = Convolution(weight, size, tuple(stride or kernel), tuple(padding), (1, 1), channels)
        return linear(value, pool, shape)


def is_one_matrix(constant: Tensor) -> bool:
    """Whether a constant is a matrix, or one matrix repeated along a batch, as linear layers are traced."""
    if constant.ndim < 3:
        return constant.ndim == 2
    batch = constant.flatten(0, -3)
    return bool((batch == batch[:1]).all())


def filled(arguments: Sequence[Any], defaults: list[Any]) -> list[Any]:
    """Positional arguments, completed with defaults."""
    return [*arguments, *defaults[len(arguments) :]]


def linear(source: Node, mapping: LinearMap, shape: Shape, bias: Array | None = None) -> Node:
    """A linear map of a value. If the value is only a move of another, the move becomes part of the map."""
    if isinstance(source, Linear) and source.bias is None and isinstance(source.map, Gather):
        mapping = chain([source.map, mapping])
        source = source.source
    return Linear(shape=shape, map=mapping, source=source, bias=bias)


def counted(value: Node) -> Tensor:
    """The indices of a value, from 1, in its shape."""
    return torch.arange(1, value.size + 1).reshape(value.shape)


def gathered(value: Node, index: Tensor) -> Node:
    """The value moved like its 1-based indices."""
    return linear(value, Gather(index.reshape(-1).numpy() - 1, value.size), tuple(index.shape))


def together(parts: list[Node]) -> Node:
    """The sum of values that were moved to different places of one tensor. Parts of one value become one move."""
    moves = [part for part in parts if isinstance(part, Linear) and isinstance(part.map, Gather) and part.bias is None]
    if len(moves) < len(parts) or any(part.source is not moves[0].source for part in moves):
        return total(parts)
    index = np.max([part.map.index for part in moves], axis=0)  # type: ignore[attr-defined]  # -1 in other parts
    return Linear(shape=moves[0].shape, map=Gather(index, moves[0].map.n_in), source=moves[0].source)


def reshaped(value: Node, shape: Shape) -> Node:
    return linear(value, identity(value.size), shape)


def broadcast(value: Node, shape: Shape) -> Node:
    if value.shape == shape:
        return value
    return gathered(value, counted(value).expand(shape))


def scaled(value: Value, factor: float) -> Value:
    if factor == 1:
        return value
    if isinstance(value, Node):
        return linear(value, Scale(np.full(value.size, float(factor))), value.shape)
    return value * factor


def total(terms: list[Node]) -> Node:
    return terms[0] if len(terms) == 1 else Sum(shape=terms[0].shape, terms=tuple(terms))


def constant(value: Any, shape: Shape) -> Array:
    tensor = torch.as_tensor(value, dtype=torch.double)
    return np.ascontiguousarray(tensor.expand(shape).reshape(-1).numpy())
