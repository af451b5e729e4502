"""Training in less memory: keep expensive intermediates, recompute cheap ones in the backward pass.

The expensive part of the operators are matrix products. Everything between them is cheap: sums, norms, Hadamard
products and depthwise convolutions. So one backward pass serves all operators. For

    u = f(x),    y = W u

PyTorch keeps u and the intermediates of f; here only x is kept. With the gradients g_u and g_y of the two results,

    g_W = g_y u^T,    (g_x, g_theta) = the gradients of f at x for an output gradient of g_u + W^T g_y,

where theta are the parameters of f, and u is recomputed. Attention's N x N weights are recomputed too, and so are
matrix products over few channels: in a first stage they take little time, and their results most of the memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from polynext.acceleration.attention import KEEP_PRODUCTS
from polynext.acceleration.depthwise import depthwise_gradients
from polynext.acceleration.kernels import over_channels
from polynext.nn import DepthwiseConv2d, LayerNorm2d, PointwiseConv2d, PolyAttention, PolyConv, PolyMLP, RunningNorm

# Matrix products over fewer channels are recomputed: each number of their result takes that many multiplications.
FEW_CHANNELS = 128

# From the gradient of a function's value to the gradients of its inputs, then of its parameters.
Gradients = Callable[[Tensor], Sequence[Any]]

identity = nn.Identity()


class Recomputable(NamedTuple):
    """A feature map (B, C, H, W) that can be recomputed as `function(*inputs)`.

    `parameters` are those of the function. `norms` must not update their running statistics in a recomputation.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()
    norms: tuple[RunningNorm, ...] = ()

    def value(self) -> Tensor:
        return self.function(*self.inputs)

    def with_product(self, weight: Tensor, before: "nn.Module | Branch" = identity) -> tuple[Tensor, Tensor]:
        """The value u and the matrix product W before(u). Only the inputs are kept for the backward pass."""
        parameters = (*self.parameters, *before.parameters())
        return ValueAndProduct.apply(
            self.function, before, self.norms, weight, len(self.inputs), *self.inputs, *parameters
        )


class ValueAndProduct(torch.autograd.Function):
    """u = f(x) and y = W before(u), with the backward pass described at the top of this file."""

    @staticmethod
    def forward(
        ctx: Any, function: Any, before: Any, norms: Any, weight: Tensor, count: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.function, ctx.before, ctx.norms, ctx.count = function, before, norms, count
        device = weight.device.type
        ctx.autocast = None
        if torch.is_autocast_enabled(device):
            ctx.autocast = {"device_type": device, "dtype": torch.get_autocast_dtype(device)}
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, *tensors)
        u = function(*tensors[:count])
        return u, over_channels(before(u), weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad_u, grad_y = grads
        if grad_u is None and grad_y is None:
            return (None,) * len(ctx.needs_input_grad)
        weight, *tensors = ctx.saved_tensors
        inputs, parameters = tensors[: ctx.count], tensors[ctx.count :]
        of_before = tuple(ctx.before.parameters())
        with recomputing(ctx.norms), torch.autocast(**ctx.autocast) if ctx.autocast else nullcontext():
            u, gradients = value_and_gradients(ctx.function, inputs, parameters[: len(parameters) - len(of_before)])
            factor, gradients_before = value_and_gradients(ctx.before, [u], of_before)
        grad_weight = None
        grads_of_before: Sequence[Any] = (None,) * len(of_before)
        if grad_y is not None:
            grad_factor, grad_weight = gradients_of_product(factor, weight, grad_y, ctx.needs_input_grad[3])
            grad_before, *grads_of_before = gradients_before(grad_factor)
            grad_u = grad_before if grad_u is None else grad_before.add_(grad_u)
        return None, None, None, grad_weight, None, *gradients(grad_u), *grads_of_before


def value_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[Tensor, Gradients]:
    """A function's value, and a function from the value's gradient to those of the inputs and parameters."""
    if isinstance(function, nn.Identity):
        return inputs[0], unchanged
    written_out = explicit_gradients(function)
    if written_out is not None and not torch.is_autocast_enabled(inputs[0].device.type):
        return written_out(*inputs)
    sources = [t.detach().requires_grad_() for t in inputs]
    with torch.enable_grad():
        value = function(*sources)
    wanted = [*sources, *parameters]

    def gradients(grad: Tensor) -> list[Tensor | None]:
        learning = [t for t in wanted if t.requires_grad]
        found = iter(torch.autograd.grad(value, learning, grad, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in wanted]

    return value.detach(), gradients


def unchanged(grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def explicit_gradients(function: Any) -> Callable[..., tuple[Tensor, Gradients]] | None:
    """`value_and_gradients` of a function without autograd, which is faster; None where it is not written out."""
    if is_weight_only(function):
        return partial(layer_norm, weight=function.weight, eps=function.eps)
    method: Any = getattr(function, "__func__", None)
    owner: Any = getattr(function, "__self__", None)
    if method is PolyConv.mix:
        return partial(conv_mix, owner)
    if method is PolyMLP.mix and is_weight_only(owner.norm):
        return partial(mlp_mix, owner.norm)
    return getattr(function, "value_and_gradients", None)


def is_weight_only(norm: object) -> TypeGuard[LayerNorm2d]:
    return isinstance(norm, LayerNorm2d) and norm.bias is None


def layer_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """LayerNorm over the channels of (B, C, H, W), and the gradients of x and the weight."""
    x = x.permute(0, 2, 3, 1)
    value, mean, deviation = torch.native_layer_norm(x, weight.shape, weight, None, eps)

    def gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
        arguments = (grad.permute(0, 2, 3, 1), x, weight.shape, mean, deviation, weight, None, [True, True, False])
        grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(*arguments)
        return grad_x.permute(0, 3, 1, 2), grad_weight

    return value.permute(0, 3, 1, 2), gradients


def conv_mix(branch: PolyConv, h: Tensor) -> tuple[Tensor, Gradients]:
    """`PolyConv.mix`, K(K_c(h) * flip(K_f(h))), and the gradients of h and the three kernels."""
    coarse, fine = branch.k_coarse(h), branch.k_fine(h).flip(1)
    product = coarse * fine

    def gradients(grad: Tensor) -> tuple[Tensor, ...]:
        grad_product, grad_k = gradients_of_kernel(branch.k, product, grad)
        grad_h, grad_coarse = gradients_of_kernel(branch.k_coarse, h, grad_product * fine)
        grad_fine_h, grad_fine = gradients_of_kernel(branch.k_fine, h, grad_product.mul_(coarse).flip(1))
        return grad_h.add_(grad_fine_h), grad_coarse, grad_fine, grad_k

    return branch.k(product), gradients


def mlp_mix(norm: LayerNorm2d, ab: Tensor) -> tuple[Tensor, Gradients]:
    """`PolyMLP.mix`, norm(a * b), and the gradients of (a, b) and the norm's weight."""
    a, b = ab.chunk(2, dim=1)
    value, gradients_of_norm = layer_norm(a * b, norm.weight, norm.eps)

    def gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
        grad_product, grad_weight = gradients_of_norm(grad)
        grad_ab = torch.empty_like(ab)
        grad_a, grad_b = grad_ab.chunk(2, dim=1)
        torch.mul(grad_product, b, out=grad_a)
        torch.mul(grad_product, a, out=grad_b)
        return grad_ab, grad_weight

    return value, gradients


def gradients_of_kernel(conv: DepthwiseConv2d, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of a depthwise convolution's kernel."""
    padding: Any = conv.padding
    return depthwise_gradients(x, conv.weight, grad, conv.stride[0], padding[0], conv.dilation[0])


def gradients_of_product(x: Tensor, weight: Tensor, grad: Tensor, learns: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, if it learns, of W, from that of the matrix product W x."""
    grad_weight = None
    if learns:
        rows, columns = (t.permute(0, 2, 3, 1).flatten(0, 2) for t in (grad, x))
        grad_weight = (rows.T @ columns.to(rows.dtype)).to(weight.dtype)
    return over_channels(grad, weight.T.to(grad.dtype)).to(x.dtype), grad_weight


class NormedSum:
    """`x + scale * drop * norm(y)`. The scale multiplies the norm's weight."""

    def __init__(self, norm: LayerNorm2d, drop: Tensor | None):
        self.norm, self.drop = norm, drop

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        weight = self.norm.weight * scale.flatten()
        normed = F.layer_norm(y.permute(0, 2, 3, 1), weight.shape, weight, None, self.norm.eps)
        return add(x, normed.permute(0, 3, 1, 2), self.drop)

    def value_and_gradients(self, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Gradients]:
        weight = self.norm.weight
        normed, gradients_of_norm = layer_norm(y, weight * scale.flatten(), self.norm.eps)

        def gradients(grad: Tensor) -> tuple[Tensor, ...]:
            grad_y, grad_weight = gradients_of_norm(grad if self.drop is None else grad * self.drop)
            grad_scale = (grad_weight * weight).sum_to_size(scale.flatten().shape).view_as(scale)
            return grad, grad_y, grad_scale, grad_weight * scale.flatten()

        return add(x, normed, self.drop), gradients


class Branch(NamedTuple):
    """An operator as its two matrix products and the steps around them: `after(last mix(first before(x)))`.

    Calling it computes the operator up to its last matrix product, `mix(first before(x))`.
    """

    before: nn.Module
    first: PointwiseConv2d
    mix: Callable[[Tensor], Tensor]
    mix_parameters: tuple[Tensor, ...]
    last: PointwiseConv2d
    after: nn.Module | None = None

    def parameters(self) -> tuple[Tensor, ...]:
        return *self.before.parameters(), self.first.weight, *self.mix_parameters

    def __call__(self, x: Tensor) -> Tensor:
        return self.mix(self.first(self.before(x)))

    def value_and_gradients(self, x: Tensor) -> tuple[Tensor, Gradients]:
        weight = self.first.weight
        factor, gradients_before = value_and_gradients(self.before, [x], [*self.before.parameters()])
        value, gradients_of_mix = value_and_gradients(self.mix, [self.first(factor)], self.mix_parameters)

        def gradients(grad: Tensor) -> tuple[Any, ...]:
            grad_first, *grads_of_mix = gradients_of_mix(grad)
            grad_factor, grad_weight = gradients_of_product(factor, weight.flatten(1), grad_first, weight.requires_grad)
            grad_weight = grad_weight if grad_weight is None else grad_weight.view_as(weight)
            return *gradients_before(grad_factor), grad_weight, *grads_of_mix

        return value, gradients


def split_operator(operator: nn.Module) -> Branch | None:
    """The parts of PolyConv, PolyMLP or PolyAttention; None for other modules."""
    if isinstance(operator, PolyConv):
        kernels = (operator.k_coarse.weight, operator.k_fine.weight, operator.k.weight)
        return Branch(identity, operator.w_in, operator.mix, kernels, operator.w_out, operator.norm)
    if isinstance(operator, PolyMLP):
        return Branch(identity, operator.w_ab, operator.mix, tuple(operator.norm.parameters()), operator.w_o)
    if isinstance(operator, PolyAttention):
        outside = {id(p) for module in (operator.norm, operator.w_qkv, operator.w_out) for p in module.parameters()}
        inside = tuple(p for p in operator.parameters() if id(p) not in outside)
        return Branch(operator.norm, operator.w_qkv, operator.mix, inside, operator.w_out)
    return None


def add_branch(x: Recomputable, operator: nn.Module, scale: Tensor, drop: Tensor | None) -> Recomputable:
    """`x + scale * drop * operator(x)`, with stochastic depth's factors `drop` (B, 1, 1, 1).

    The scale multiplies the weights of the operator's last step, a norm or a matrix product. The result of that step
    then need not be kept for the gradient of the scale.
    """
    branch = split_operator(operator)
    if branch is None:
        value = x.value()
        return Recomputable(identity, (add(value, scale * operator(value), drop),), norms=x.norms)
    after, last = branch.after, branch.last.weight.flatten(1)
    if after is None:
        last = last * scale.reshape(-1, 1)
    if branch.first.in_channels < FEW_CHANNELS:
        value, result = x.with_product(last, branch)
    else:
        value, first = x.with_product(branch.first.weight.flatten(1), branch.before)
        _, result = Recomputable(branch.mix, (first,), branch.mix_parameters, x.norms).with_product(last)
    if after is None:
        return Recomputable(identity, (add(value, result, drop),), norms=x.norms)
    if is_weight_only(after):
        return Recomputable(NormedSum(after, drop), (value, result, scale), tuple(after.parameters()), x.norms)

    def scaled_sum(value: Tensor, result: Tensor, scale: Tensor) -> Tensor:
        return add(value, scale * after(result), drop)

    return Recomputable(scaled_sum, (value, result, scale), tuple(after.parameters()), x.norms)


def add(x: Tensor, y: Tensor, drop: Tensor | None) -> Tensor:
    return x + y if drop is None else torch.addcmul(x, drop, y)


@contextmanager
def recomputing(norms: Sequence[RunningNorm]) -> Iterator[None]:
    """For a forward pass that the backward pass follows at once: does not update running statistics."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    token = KEEP_PRODUCTS.set(True)
    try:
        yield
    finally:
        KEEP_PRODUCTS.reset(token)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def running_norms(module: nn.Module) -> tuple[RunningNorm, ...]:
    return tuple(m for m in module.modules() if isinstance(m, RunningNorm) and m.training)


def keep_products(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)` for PyTorch's compiler, which keeps matrix products and recomputes the rest."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        expensive = operation in products and args[-2].shape[1] >= FEW_CHANNELS
        return CheckpointPolicy.MUST_SAVE if expensive else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts)
