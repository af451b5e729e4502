"""Whether a model is a polynomial of its input, and its degree, from its traced graph.

The degree is followed from the image through every operation. Linear maps keep the degree and products add degrees.
Values computed from parameters alone are constants, so a sigmoid of a parameter is allowed. The first operation on the
image's values that is not polynomial is reported.
"""

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from polynext.errors import PolyNeXtError

aten = torch.ops.aten

# Linear in all tensor arguments together: sums and moves of values.
SUMS = {
    aten.add, aten.sub, aten.rsub, aten.neg, aten.sum, aten.mean, aten.cat, aten.stack, aten.clone, aten.copy,
    aten.contiguous, aten._to_copy, aten.view, aten._unsafe_view, aten.reshape, aten.permute, aten.transpose, aten.t,
    aten.mT, aten.expand, aten.repeat, aten.unsqueeze, aten.squeeze, aten.flatten, aten.unflatten, aten.slice,
    aten.select, aten.split, aten.split_with_sizes, aten.chunk, aten.unbind, aten.flip, aten.roll,
    aten.constant_pad_nd, aten.pad, aten.alias, aten.detach, aten.lift_fresh_copy,
    aten.as_strided, aten.avg_pool2d, aten.adaptive_avg_pool2d, aten._adaptive_avg_pool2d, aten.diagonal, aten.cumsum,
    aten.to, aten.type_as, aten.narrow, aten.movedim, aten.upsample_bilinear2d, aten.upsample_nearest2d,
}  # fmt: skip
# Linear in the first argument, if the indices are constant.
LOOKUPS = {aten.index, aten.index_select, aten.gather}
# Linear in each of two arguments.
PRODUCTS = {aten.mul, aten.mm, aten.bmm, aten.matmul, aten.dot, aten.mv, aten.convolution, aten.conv2d, aten.linear,
            aten.multiply}  # fmt: skip
# sum + product of the next two.
SUM_AND_PRODUCT = {aten.addmm, aten.baddbmm, aten.addcmul, aten.addmv, aten.addbmm}
# Independent of a tensor's values.
SHAPES = {aten.sym_size, aten.zeros_like, aten.ones_like, aten.empty_like, aten.full_like, aten.new_zeros,
          aten.new_ones, aten.new_full, aten._assert_tensor_metadata}  # fmt: skip


class NotPolynomialError(PolyNeXtError):
    """The model applies an operation to its input's values that is not polynomial."""


def polynomial_degree(model: nn.Module, example: Tensor | None = None) -> int:
    """The degree of the model, in its current mode (train or eval), as a polynomial of its input.

    This is an upper bound that is reached except for special weights. Raises NotPolynomialError with the operation and
    its place if the model is not a polynomial. `example` is an input to trace with, by default one image of the size in
    a timm model's `pretrained_cfg` or `img_size`.
    """
    if example is None:
        example = example_image(model)
    with torch.no_grad():
        program = torch.export.export(model, (example,))
    values = set(program.graph_signature.user_inputs)
    degrees: dict[Node, int] = {}
    result = 0
    for node in program.graph.nodes:
        if node.op == "placeholder":
            degrees[node] = int(node.name in values)
        elif node.op == "output":
            outputs = [a for a in node.all_input_nodes if a.name in program.graph_signature.user_outputs]
            result = max(degrees[a] for a in outputs)
        else:
            degrees[node] = node_degree(node, degrees)
    return result


def is_polynomial(model: nn.Module, example: Tensor | None = None) -> bool:
    """Whether the model, in its current mode, computes a polynomial of its input."""
    try:
        polynomial_degree(model, example)
    except NotPolynomialError:
        return False
    return True


def example_image(model: Any) -> Tensor:
    if getattr(model, "fully_polynomial", False):  # built for one size
        channels, size = model.in_chans, model.img_size
    elif hasattr(model, "pretrained_cfg"):
        channels, *size = model.pretrained_cfg["input_size"]
        channels = getattr(model, "in_chans", channels)
    else:
        raise PolyNeXtError(f"{type(model).__name__} does not define its image size: give an example to trace with.")
    parameter = next(model.parameters())
    return torch.zeros(2, channels, *size, device=parameter.device, dtype=parameter.dtype)


def node_degree(node: Node, degrees: dict[Node, int]) -> int:
    if node.op == "get_attr" or all(degrees[a] == 0 for a in node.all_input_nodes):
        return 0
    if node.target is operator.getitem:
        return degrees[node.all_input_nodes[0]]
    operation: Any = getattr(node.target, "overloadpacket", node.target)
    arguments: Any = node.args

    def degree_of(argument: Any) -> int:
        if isinstance(argument, Node):
            return degrees[argument]
        return max(map(degree_of, argument), default=0) if isinstance(argument, list | tuple) else 0

    d = [degree_of(argument) for argument in arguments]
    if operation in SHAPES:
        return 0
    if operation in SUMS and kinds_agree(node):
        return max(d)
    if operation in LOOKUPS and max(d[1:]) == 0:
        return d[0]
    if operation is aten.einsum:  # linear in each of the tensors in its list
        return sum(map(degree_of, arguments[1]))
    if operation in PRODUCTS:
        return max(d[0] + d[1], *d[2:]) if len(d) > 2 else sum(d[:2])
    if operation in SUM_AND_PRODUCT:
        return max(d[0], d[1] + d[2])
    if operation is aten.square:
        return 2 * d[0]
    if operation is aten.pow and d[1] == 0 and is_natural(arguments[1]):
        return d[0] * int(arguments[1])
    if operation in (aten.div, aten.divide) and d[1] == 0 and not node.kwargs.get("rounding_mode"):
        return d[0]
    if operation is aten.dropout and not arguments[2]:
        return d[0]
    if operation is aten.batch_norm and not arguments[5]:  # running statistics make it affine
        return d[0]
    if operation is aten._native_batch_norm_legit_no_training:
        return d[0]
    raise NotPolynomialError(
        f"{operation.__name__} is not a polynomial operation, and the model applies it to its input's values "
        f"{place(node)}: put the model in eval mode and take a fully polynomial (_bn) variant."
    )


def kinds_agree(node: Node) -> bool:
    """Whether the result is real: a conversion to integers rounds."""
    result = node.meta.get("val")
    return not isinstance(result, Tensor) or result.is_floating_point()


def is_natural(exponent: Any) -> bool:
    return isinstance(exponent, int | float) and float(exponent).is_integer() and exponent >= 0


def place(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    return f"in {paths[-1]}" if paths else "at its top level"
