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
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from polynext.acceleration.attention import KEEP_PRODUCTS
from polynext.acceleration.cpu import ONEDNN
from polynext.acceleration.kernels import over_channels
from polynext.nn import LayerNorm2d, PointwiseConv2d, PolyAttention, PolyConv, PolyMLP, RunningNorm

# Matrix products over fewer channels are recomputed: each number of their result takes that many multiplications.
FEW_CHANNELS = 128

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
        inputs = [t.detach().requires_grad_() for t in tensors[: ctx.count]]
        autocast = torch.autocast(**ctx.autocast) if ctx.autocast else nullcontext()
        with torch.enable_grad(), recomputing(ctx.norms), autocast:
            u = ctx.function(*inputs)
            factor = ctx.before(u)
        grad_factor = grad_weight = None
        if grad_y is not None:
            grad_factor, grad_weight = gradients_of_product(factor.detach(), weight, grad_y, ctx.needs_input_grad[3])
        pairs = [(value, grad) for value, grad in ((u, grad_u), (factor, grad_factor)) if grad is not None]
        values, known = zip(*pairs, strict=True)
        wanted = [*inputs, *tensors[ctx.count :]]
        learning = [t for t in wanted if t.requires_grad]
        found = iter(torch.autograd.grad(values, learning, known, allow_unused=True))
        return None, None, None, grad_weight, None, *(next(found) if t.requires_grad else None for t in wanted)


def gradients_of_product(x: Tensor, weight: Tensor, grad: Tensor, learns: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, if it learns, of W, from that of the matrix product W x."""
    if ONEDNN and x.device.type == "cpu":  # has faster gradients of convolutions, and uses them for dilated ones
        inputs = grad, x.to(grad.dtype), weight.to(grad.dtype)[:, :, None, None]
        shape = (None, [1, 1], [0, 0], [2, 2], False, [0, 0], 1)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(*inputs, *shape, (True, learns, False))
        return grad_x.to(x.dtype), grad_weight.flatten(1).to(weight.dtype) if learns else None
    rows, columns = (t.permute(0, 2, 3, 1).flatten(0, 2) for t in (grad, x))
    grad_weight = (rows.T @ columns.to(rows.dtype)).to(weight.dtype) if learns else None
    return over_channels(grad, weight.T.to(grad.dtype)).to(x.dtype), grad_weight


class Branch(NamedTuple):
    """An operator as its two matrix products and the steps around them: `after(last mix(first before(x)))`.

    Calling it computes the operator up to its last matrix product, `mix(first before(x))`.
    """

    before: nn.Module
    first: PointwiseConv2d
    mix: Callable[[Tensor], Tensor]
    mix_parameters: tuple[Tensor, ...]
    last: PointwiseConv2d
    after: nn.Module

    def parameters(self) -> tuple[Tensor, ...]:
        return *self.before.parameters(), self.first.weight, *self.mix_parameters

    def __call__(self, x: Tensor) -> Tensor:
        return self.mix(self.first(self.before(x)))


def split_operator(operator: nn.Module) -> Branch | None:
    """The parts of PolyConv, PolyMLP or PolyAttention; None for other modules."""
    parts: tuple[nn.Module, PointwiseConv2d, PointwiseConv2d, nn.Module]  # before, first, last, after
    if isinstance(operator, PolyConv):
        parts = identity, operator.w_in, operator.w_out, operator.norm
    elif isinstance(operator, PolyMLP):
        parts = identity, operator.w_ab, operator.w_o, identity
    elif isinstance(operator, PolyAttention):
        parts = operator.norm, operator.w_qkv, operator.w_out, identity
    else:
        return None
    outside = {id(p) for part in parts for p in part.parameters()}
    inside = tuple(p for p in operator.parameters() if id(p) not in outside)
    before, first, last, after = parts
    return Branch(before, first, operator.mix, inside, last, after)


def add_branch(x: Recomputable, operator: nn.Module, scale: Tensor, drop: Tensor | None) -> Recomputable:
    """`x + scale * drop * operator(x)`, with stochastic depth's factors `drop` (B, 1, 1, 1).

    The scale multiplies the weights of the operator's last step, a matrix product or a LayerNorm. The result of that
    step is then not needed for the gradient of the scale.
    """
    branch = split_operator(operator)
    if branch is None:
        value = x.value()
        return Recomputable(identity, (add(value, scale * operator(value), drop),), norms=x.norms)
    ends_with_product = isinstance(branch.after, nn.Identity)
    last = branch.last.weight.flatten(1)
    if ends_with_product:
        last = last * scale.reshape(-1, 1)
    if branch.first.in_channels < FEW_CHANNELS:
        value, result = x.with_product(last, branch)
    else:
        value, first = x.with_product(branch.first.weight.flatten(1), branch.before)
        _, result = Recomputable(branch.mix, (first,), branch.mix_parameters, x.norms).with_product(last)
    if ends_with_product:
        return Recomputable(identity, (add(value, result, drop),), norms=x.norms)

    norm = branch.after

    def normed_sum(value: Tensor, result: Tensor, scale: Tensor) -> Tensor:
        if isinstance(norm, LayerNorm2d) and norm.bias is None:
            weight = norm.weight * scale.flatten()
            normed = F.layer_norm(result.permute(0, 2, 3, 1), weight.shape, weight, None, norm.eps)
            return add(value, normed.permute(0, 3, 1, 2), drop)
        return add(value, scale * norm(result), drop)

    return Recomputable(normed_sum, (value, result, scale), tuple(norm.parameters()), x.norms)


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
