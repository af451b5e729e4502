"""Training in less memory: what is dear is kept, what is cheap is computed again in the backward pass.

Everything dear in our operators is a matrix product, and each is of something cheap: sums, norms, Hadamard products and
depthwise convolutions of the products before. So one backward pass serves them all. For

    u = f(x),    y = W u

PyTorch keeps u and what f makes on the way; here x alone is kept. With the gradients g_u and g_y of the two results,

    g_W = g_y u^T,    (g_x, g_theta) = the gradients of f at x, for g_u + W^T g_y at its end,

where theta are the parameters of f, and u is computed again. No matrix product with weights is done twice. Attention's
weights, N x N for each head, are among what is computed again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from polynext.nn.conv import PointwiseConv2d, over_channels
from polynext.nn.norm import LayerNorm2d, recomputing
from polynext.nn.polyattention import PolyAttention
from polynext.nn.polyconv import PolyConv
from polynext.nn.polymlp import PolyMLP


class Recipe(NamedTuple):
    """A map (B, C, H, W) that can be had again: `function` of `inputs`, with `parameters` inside it."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()

    def value(self) -> Tensor:
        return self.function(*self.inputs)

    def with_product(self, weight: Tensor, before: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """The value u and the matrix product W u, or W before(u); for a backward pass the inputs are kept."""
        parameters = self.parameters + (tuple(before.parameters()) if before is not None else ())
        return ValueAndProduct.apply(self.function, before, weight, len(self.inputs), *self.inputs, *parameters)

    def product(self, weight: Tensor) -> Tensor:
        """The matrix product W u alone."""
        return self.with_product(weight)[1]


class ValueAndProduct(torch.autograd.Function):
    """u = f(x) and y = W before(u), with the backward pass that this file is about."""

    @staticmethod
    def forward(
        ctx: Any, function: Any, before: Any, weight: Tensor, count: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.function, ctx.before, ctx.count = function, before, count
        device = weight.device.type
        ctx.autocast = {
            "device_type": device,
            "enabled": torch.is_autocast_enabled(device),
            "dtype": torch.get_autocast_dtype(device),
        }
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, *tensors)
        u = function(*tensors[:count])
        y = over_channels(u if before is None else before(u), weight)
        return u, y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad_u, grad_y = grads
        weight, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[4:]
        inputs = [t.detach().requires_grad_(n) for t, n in zip(tensors[: ctx.count], needed, strict=False)]
        with torch.enable_grad(), recomputing(), torch.autocast(**ctx.autocast):
            u = ctx.function(*inputs)
            factor = u if ctx.before is None else ctx.before(u)
        grad_weight = grad_factor = None
        if grad_y is not None:
            rows = grad_y.permute(0, 2, 3, 1).flatten(0, 2)
            if ctx.needs_input_grad[2]:
                columns = factor.detach().permute(0, 2, 3, 1).flatten(0, 2)
                grad_weight = (rows.T @ columns.to(rows.dtype)).to(weight.dtype)
            grad_factor = over_channels(grad_y, weight.T.to(rows.dtype)).to(factor.dtype)
        ends = [(u, grad_u), (factor, grad_factor)]
        if factor is u and grad_u is not None and grad_factor is not None:
            ends = [(u, grad_factor.add_(grad_u))]
        ends = [end for end in ends if end[1] is not None]
        if not ends:
            return (None,) * len(ctx.needs_input_grad)
        outputs, gradients = zip(*ends, strict=True)
        wanted = [t for t, n in zip([*inputs, *tensors[ctx.count :]], needed, strict=True) if n]
        found = iter(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True) if wanted else ())
        return None, None, grad_weight, None, *(next(found) if n else None for n in needed)


class Parts(NamedTuple):
    """An operator as its two matrix products and what is around them: `after(last mix(first before(x)))`."""

    before: nn.Module | None
    first: PointwiseConv2d
    mix: Callable[[Tensor], Tensor]
    inside: tuple[Tensor, ...]  # the parameters of `mix`
    last: PointwiseConv2d
    after: nn.Module | None


def parts(branch: nn.Module) -> Parts | None:
    """The parts of an operator, if it has a lean form."""
    if isinstance(branch, PolyConv):
        kernels = (branch.k_coarse.weight, branch.k_fine.weight, branch.k.weight)
        return Parts(None, branch.w_in, branch.mix, kernels, branch.w_out, branch.norm)
    if isinstance(branch, PolyMLP):
        multiplies = type(branch).mix is PolyMLP.mix
        mix = partial(normed_product, branch.norm) if multiplies else branch.mix
        return Parts(None, branch.w_ab, mix, tuple(branch.norm.parameters()), branch.w_o, None)
    if isinstance(branch, PolyAttention):
        outside = {id(p) for module in (branch.norm, branch.w_qkv, branch.w_out) for p in module.parameters()}
        inside = tuple(p for p in branch.parameters() if id(p) not in outside)
        return Parts(branch.norm, branch.w_qkv, branch.mix, inside, branch.w_out, None)
    return None


def add_branch(x: Recipe, branch: nn.Module, scale: Tensor, drop: Tensor | None) -> Recipe:
    """`x + scale drop branch(x)`, with stochastic depth's factors (B, 1, 1, 1).

    A scale acts on the weights of a branch's last step instead of its result, which then need not be kept for the
    scale's gradient: on those of the norm, or of the matrix product.
    """
    found = parts(branch)
    if found is None:
        value = x.value()
        return Recipe(identity, (add(value, scale * branch(value), drop),))
    value, first = x.with_product(found.first.weight.flatten(1), found.before)
    middle, last = Recipe(found.mix, (first,), found.inside), found.last.weight.flatten(1)
    after = found.after
    if after is None:
        return Recipe(identity, (add(value, middle.product(last * scale.reshape(-1, 1)), drop),))

    def again(value: Tensor, result: Tensor, scale: Tensor) -> Tensor:
        if isinstance(after, LayerNorm2d) and after.bias is None:
            return add(value, layer_norm(result, after.weight * scale.flatten(), after.eps), drop)
        return add(value, scale * after(result), drop)

    return Recipe(again, (value, middle.product(last), scale), tuple(after.parameters()))


def add(x: Tensor, y: Tensor, drop: Tensor | None) -> Tensor:
    return x + y if drop is None else torch.addcmul(x, drop, y)


def layer_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, None, eps).permute(0, 3, 1, 2)


def identity(x: Tensor) -> Tensor:
    return x


def normed_product(norm: nn.Module, ab: Tensor) -> Tensor:
    """What `PolyMLP.mix` computes."""
    return norm(ProductOfHalves.apply(ab))


class ProductOfHalves(torch.autograd.Function):
    """(B, 2 C, H, W) to the product of its two halves; the gradients of both are written where they belong."""

    @staticmethod
    def forward(ctx: Any, ab: Tensor) -> Tensor:
        ctx.save_for_backward(ab)
        a, b = ab.chunk(2, dim=1)
        return a * b

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (grad,) = grads
        (ab,) = ctx.saved_tensors
        a, b = ab.chunk(2, dim=1)
        result = torch.empty_like(ab)
        grad_a, grad_b = result.chunk(2, dim=1)
        torch.mul(grad, b, out=grad_a)
        torch.mul(grad, a, out=grad_b)
        return result


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def keep_products(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What `function` gives, for a compiler, which is told to do what this file does: to keep the matrix products."""

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts)
