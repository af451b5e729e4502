"""Training in less memory: keep expensive intermediates, recompute cheap ones in the backward pass.

The expensive part of our operators are matrix products, each of something cheap: sums, norms, Hadamard products and
depthwise convolutions of the products before. So one backward pass serves them all. For

    u = f(x),    y = W u

PyTorch keeps u and the intermediates of f; here x alone is kept. With the gradients g_u and g_y of the two results,

    g_W = g_y u^T,    (g_x, g_theta) = the gradients of f at x for an output gradient of g_u + W^T g_y,

where theta are the parameters of f, and u is recomputed. Attention's N x N weights are recomputed too. Matrix products
over few channels are also recomputed: in a first stage they take little time, and their maps most of the memory.
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

# A matrix product takes as many multiplications for each number of its result as it sums over channels.
FEW_CHANNELS = 128


class Recomputable(NamedTuple):
    """A feature map (B, C, H, W) that can be recomputed as `function(*inputs)`, with `parameters` inside the function.

    `norms` are those whose running statistics a recomputation must not move again.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()
    norms: tuple[RunningNorm, ...] = ()

    def value(self) -> Tensor:
        return self.function(*self.inputs)

    def with_product(self, weight: Tensor, before: "nn.Module | UpToLast | None" = None) -> tuple[Tensor, Tensor]:
        """The value u and the matrix product W u, or W before(u); for a backward pass the inputs are kept."""
        parameters = self.parameters + (tuple(before.parameters()) if before is not None else ())
        return ValueAndProduct.apply(
            self.function, before, self.norms, weight, len(self.inputs), *self.inputs, *parameters
        )

    def product(self, weight: Tensor) -> Tensor:
        """The matrix product W u alone."""
        return self.with_product(weight)[1]


class ValueAndProduct(torch.autograd.Function):
    """u = f(x) and y = W before(u), with the backward pass that this file is about."""

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
        return u, over_channels(u if before is None else before(u), weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad_u, grad_y = grads
        if grad_u is None and grad_y is None:
            return (None,) * len(ctx.needs_input_grad)
        weight, *tensors = ctx.saved_tensors
        inputs, parameters = tensors[: ctx.count], tensors[ctx.count :]
        last = tuple(ctx.before.parameters()) if ctx.before is not None else ()
        with recomputing(ctx.norms), torch.autocast(**ctx.autocast) if ctx.autocast else nullcontext():
            u, gradients = value_and_gradients(ctx.function, inputs, parameters[: len(parameters) - len(last)])
            if ctx.before is not None:
                factor, gradients_before = value_and_gradients(ctx.before, [u], last)
            else:
                factor, gradients_before = u, alone
        grad_weight = None
        grads_of_last: Sequence[Any] = (None,) * len(last)
        if grad_y is not None:
            grad_factor, grad_weight = gradients_of_product(factor, weight, grad_y, ctx.needs_input_grad[3])
            grad_before, *grads_of_last = gradients_before(grad_factor)
            grad_u = grad_before if grad_u is None else grad_before.add_(grad_u)
        return None, None, None, grad_weight, None, *gradients(grad_u), *grads_of_last


# From the gradient of a value to those of what it was made of: inputs first, then parameters.
Gradients = Callable[[Tensor], Sequence[Any]]


def in_one_precision(inputs: Sequence[Tensor]) -> bool:
    return not torch.is_autocast_enabled(inputs[0].device.type)


def value_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[Tensor, Gradients]:
    """A function's value, and a function from its gradient to those of the inputs and parameters.

    Some functions have a method of this name that does so without PyTorch's record of operations.
    """
    own = getattr(function, "value_and_gradients", None)
    if has_weight_alone(function):
        own = partial(layer_norm, weight=function.weight, eps=function.eps)
    if own is not None and in_one_precision(inputs):
        return own(*inputs)
    sources = [t.detach().requires_grad_() for t in inputs]
    with torch.enable_grad():
        value = function(*sources)
    wanted = [*sources, *parameters]

    def gradients(grad: Tensor) -> list[Tensor | None]:
        learning = [t for t in wanted if t.requires_grad]
        found = iter(torch.autograd.grad(value, learning, grad, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in wanted]

    return value.detach(), gradients


def alone(grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def gradients_of_product(x: Tensor, weight: Tensor, grad: Tensor, learns: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, if it learns, of W, from that of the matrix product W x."""
    grad_weight = None
    if learns:
        rows, columns = (t.permute(0, 2, 3, 1).flatten(0, 2) for t in (grad, x))
        grad_weight = (rows.T @ columns.to(rows.dtype)).to(weight.dtype)
    return over_channels(grad, weight.T.to(grad.dtype)).to(x.dtype), grad_weight


class Identity:
    """x, which is kept as it is."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def value_and_gradients(self, x: Tensor) -> tuple[Tensor, Gradients]:
        return x, alone


identity = Identity()


class Convolved:
    """What `PolyConv.mix` makes of h: K(K_c(h) flip(K_f(h)))."""

    def __init__(self, branch: PolyConv):
        self.k_coarse, self.k_fine, self.k = branch.k_coarse, branch.k_fine, branch.k

    def __call__(self, h: Tensor) -> Tensor:
        return self.k(self.k_coarse(h) * self.k_fine(h).flip(1))

    def value_and_gradients(self, h: Tensor) -> tuple[Tensor, Gradients]:
        coarse, fine = self.k_coarse(h), self.k_fine(h).flip(1)
        product = coarse * fine

        def gradients(grad: Tensor) -> tuple[Tensor, ...]:
            grad_product, grad_k = gradients_of_kernel(self.k, product, grad)
            grad_h, grad_coarse = gradients_of_kernel(self.k_coarse, h, grad_product * fine)
            grad_fine_h, grad_fine = gradients_of_kernel(self.k_fine, h, grad_product.mul_(coarse).flip(1))
            return grad_h.add_(grad_fine_h), grad_coarse, grad_fine, grad_k

        return self.k(product), gradients


def gradients_of_kernel(conv: DepthwiseConv2d, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of a depthwise convolution's kernel."""
    padding: Any = conv.padding
    return depthwise_gradients(x, conv.weight, grad, conv.stride[0], padding[0], conv.dilation[0])


class NormedProduct:
    """What `PolyMLP.mix` makes of (B, 2 C, H, W): the product of its halves, normed."""

    def __init__(self, norm: nn.LayerNorm):
        self.norm = norm

    def __call__(self, ab: Tensor) -> Tensor:
        a, b = ab.chunk(2, dim=1)
        return self.norm(a * b)

    def value_and_gradients(self, ab: Tensor) -> tuple[Tensor, Gradients]:
        a, b = ab.chunk(2, dim=1)
        value, gradients_of_norm = layer_norm(a * b, self.norm.weight, self.norm.eps)

        def gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
            grad_product, grad_weight = gradients_of_norm(grad)
            grad_ab = torch.empty_like(ab)
            grad_a, grad_b = grad_ab.chunk(2, dim=1)
            torch.mul(grad_product, b, out=grad_a)
            torch.mul(grad_product, a, out=grad_b)
            return grad_ab, grad_weight

        return value, gradients


class NormedSum:
    """x + scale drop norm(y), the scale being a part of the norm's weight."""

    def __init__(self, norm: nn.LayerNorm, drop: Tensor | None):
        self.norm, self.drop = norm, drop

    def __call__(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        weight = self.norm.weight * scale.flatten()
        normed = F.layer_norm(y.permute(0, 2, 3, 1), weight.shape, weight, None, self.norm.eps)
        return add(x, normed.permute(0, 3, 1, 2), self.drop)

    def value_and_gradients(self, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Gradients]:
        own = self.norm.weight
        normed, gradients_of_norm = layer_norm(y, own * scale.flatten(), self.norm.eps)

        def gradients(grad: Tensor) -> tuple[Tensor, ...]:
            grad_y, grad_weight = gradients_of_norm(grad if self.drop is None else grad * self.drop)
            grad_scale = (grad_weight * own).sum_to_size(scale.flatten().shape).view_as(scale)
            return grad, grad_y, grad_scale, grad_weight * scale.flatten()

        return add(x, normed, self.drop), gradients


def layer_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """LayerNorm over the channels of (B, C, H, W), and the gradients of x and the weight."""
    x = x.permute(0, 2, 3, 1)
    value, mean, deviation = torch.native_layer_norm(x, weight.shape, weight, None, eps)

    def gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
        arguments = (grad.permute(0, 2, 3, 1), x, weight.shape, mean, deviation, weight, None, [True, True, False])
        grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(*arguments)
        return grad_x.permute(0, 3, 1, 2), grad_weight

    return value.permute(0, 3, 1, 2), gradients


class Parts(NamedTuple):
    """An operator as its two matrix products and what is around them: `after(last mix(first before(x)))`."""

    before: nn.Module | None
    first: PointwiseConv2d
    mix: Callable[[Tensor], Tensor]
    inside: tuple[Tensor, ...]  # the parameters of `mix`
    last: PointwiseConv2d
    after: nn.Module | None


class UpToLast:
    """An operator up to its last matrix product, with the first one inside: mix(first before(x))."""

    def __init__(self, found: Parts):
        self.found = found

    def parameters(self) -> Iterator[Tensor]:
        before = self.found.before
        yield from before.parameters() if before is not None else ()
        yield self.found.first.weight
        yield from self.found.inside

    def __call__(self, x: Tensor) -> Tensor:
        before, first, mix = self.found.before, self.found.first, self.found.mix
        return mix(first(x if before is None else before(x)))

    def value_and_gradients(self, x: Tensor) -> tuple[Tensor, Gradients]:
        before, first = self.found.before, self.found.first
        weight = first.weight
        factor: Tensor = x
        gradients_before: Gradients = alone
        if before is not None:
            factor, gradients_before = value_and_gradients(before, [x], [*before.parameters()])
        value, gradients_mix = value_and_gradients(self.found.mix, [first(factor)], self.found.inside)

        def gradients(grad: Tensor) -> tuple[Any, ...]:
            grad_first, *grads_inside = gradients_mix(grad)
            grad_factor, grad_weight = gradients_of_product(factor, weight.flatten(1), grad_first, weight.requires_grad)
            grad_weight = grad_weight if grad_weight is None else grad_weight.view_as(weight)
            return *gradients_before(grad_factor), grad_weight, *grads_inside

        return value, gradients


def parts(branch: nn.Module) -> Parts | None:
    """The parts of an operator, if it has a lean form."""
    mix: Callable[[Tensor], Tensor]
    if isinstance(branch, PolyConv):
        kernels = (branch.k_coarse.weight, branch.k_fine.weight, branch.k.weight)
        mix = Convolved(branch) if type(branch).mix is PolyConv.mix else branch.mix
        return Parts(None, branch.w_in, mix, kernels, branch.w_out, branch.norm)
    if isinstance(branch, PolyMLP):
        norm, as_published = branch.norm, type(branch).mix is PolyMLP.mix
        mix = NormedProduct(norm) if as_published and has_weight_alone(norm) else branch.mix
        return Parts(None, branch.w_ab, mix, tuple(norm.parameters()), branch.w_o, None)
    if isinstance(branch, PolyAttention):
        outside = {id(p) for module in (branch.norm, branch.w_qkv, branch.w_out) for p in module.parameters()}
        inside = tuple(p for p in branch.parameters() if id(p) not in outside)
        return Parts(branch.norm, branch.w_qkv, branch.mix, inside, branch.w_out, None)
    return None


def add_branch(x: Recomputable, branch: nn.Module, scale: Tensor, drop: Tensor | None) -> Recomputable:
    """`x + scale drop branch(x)`, with stochastic depth's factors (B, 1, 1, 1).

    A scale acts on the weights of a branch's last step instead of its result, which then need not be kept for the
    scale's gradient: on those of the norm, or of the matrix product.
    """
    found = parts(branch)
    if found is None:
        value = x.value()
        return Recomputable(identity, (add(value, scale * branch(value), drop),), norms=x.norms)
    after, last = found.after, found.last.weight.flatten(1)
    if after is None:
        last = last * scale.reshape(-1, 1)
    if found.first.in_channels < FEW_CHANNELS:
        value, result = x.with_product(last, UpToLast(found))
    else:
        value, first = x.with_product(found.first.weight.flatten(1), found.before)
        result = Recomputable(found.mix, (first,), found.inside, x.norms).product(last)
    if after is None:
        return Recomputable(identity, (add(value, result, drop),), norms=x.norms)
    if has_weight_alone(after):
        return Recomputable(NormedSum(after, drop), (value, result, scale), tuple(after.parameters()), x.norms)

    def again(value: Tensor, result: Tensor, scale: Tensor) -> Tensor:
        return add(value, scale * after(result), drop)

    return Recomputable(again, (value, result, scale), tuple(after.parameters()), x.norms)


def has_weight_alone(norm: object) -> TypeGuard[LayerNorm2d]:
    return isinstance(norm, LayerNorm2d) and norm.bias is None


def add(x: Tensor, y: Tensor, drop: Tensor | None) -> Tensor:
    return x + y if drop is None else torch.addcmul(x, drop, y)


@contextmanager
def recomputing(norms: Sequence[RunningNorm]) -> Iterator[None]:
    """A forward pass for the backward pass that follows at once: running statistics stay as they are."""
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


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def keep_products(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)` for a compiler, which is told to do what this file does: keep the matrix products."""

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        expensive = operation in PRODUCTS and args[-2].shape[1] >= FEW_CHANNELS
        return CheckpointPolicy.MUST_SAVE if expensive else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts)
