"""Custom CPU operations for PyTorch's compiler. It treats each as one step of its program, for any batch size.

Otherwise it would compile separate programs for batches of 16 and more and for every constant weight, and would spend
a second on code that it cannot improve. `torch.library.custom_op` is shorter but adds overhead to each call.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from polynext.acceleration.depthwise import depthwise_gradients

LIBRARY = torch.library.Library("polynext", "DEF")
LIBRARY.define("matrix_product(Tensor x, Tensor weight) -> Tensor")
LIBRARY.define(
    "convolved_product(Tensor h, Tensor coarse, Tensor fine, Tensor last, int coarse_dilation, int dilation) -> Tensor"
)
LIBRARY.define("add_scaled_to(Tensor x, Tensor scale, Tensor(a!) y) -> ()")
LIBRARY.define("depthwise(Tensor x, Tensor weight, int stride, int padding, int dilation) -> Tensor")
LIBRARY.define(
    "depthwise_gradients(Tensor x, Tensor weight, Tensor grad, int stride, int padding, int dilation)"
    " -> (Tensor, Tensor)"
)


@torch.library.impl(LIBRARY, "matrix_product", "CPU")
def _(x: Tensor, weight: Tensor) -> Tensor:
    """`W x` along the last axis: (..., in) with weight (out, in) to (..., out)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


@torch.library.register_fake("polynext::matrix_product", lib=LIBRARY)
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@register_flop_formula(torch.ops.polynext.matrix_product)
def _(x_shape: Any, weight_shape: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x_shape) * weight_shape[0]


@torch.library.impl(LIBRARY, "convolved_product", "CPU")
def _(h: Tensor, coarse: Tensor, fine: Tensor, last: Tensor, coarse_dilation: int, dilation: int) -> Tensor:
    """K(K_c(h) * flip(K_f(h))): PolyConv between its 1x1 convolutions."""
    product = convolved(h, fine, dilation).flip(1).mul_(convolved(h, coarse, coarse_dilation))
    return convolved(product, last, dilation).contiguous(memory_format=torch.channels_last)


def convolved(x: Tensor, kernel: Tensor, dilation: int) -> Tensor:
    padding = dilation * (kernel.shape[-1] // 2)
    return F.conv2d(x, kernel, padding=padding, dilation=dilation, groups=len(kernel))


@torch.library.register_fake("polynext::convolved_product", lib=LIBRARY)
def _(h: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(h, memory_format=torch.channels_last)


@torch.library.impl(LIBRARY, "add_scaled_to", "CPU")
def _(x: Tensor, scale: Tensor, y: Tensor) -> None:
    torch.addcmul(x, scale, y, out=y)


@torch.library.register_fake("polynext::add_scaled_to", lib=LIBRARY)
def _(x: Tensor, scale: Tensor, y: Tensor) -> None:
    pass


@torch.library.impl(LIBRARY, "depthwise", "CPU")
def _(x: Tensor, weight: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    y = F.conv2d(x, weight, stride=stride, padding=padding, dilation=dilation, groups=len(weight))
    return y.contiguous(memory_format=torch.channels_last)


@torch.library.register_fake("polynext::depthwise", lib=LIBRARY)
def _(x: Tensor, weight: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    reach = 2 * padding - dilation * (weight.shape[-1] - 1) - 1
    shape = (x.shape[0], x.shape[1], *((n + reach) // stride + 1 for n in x.shape[2:]))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.impl(LIBRARY, "depthwise_gradients", "CPU")
def _(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int, dilation: int) -> tuple[Tensor, Tensor]:
    grad_x, grad_weight = depthwise_gradients(x, weight, grad, stride, padding, dilation)
    return grad_x.contiguous(memory_format=torch.channels_last), grad_weight.contiguous()


@torch.library.register_fake("polynext::depthwise_gradients", lib=LIBRARY)
def _(x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.channels_last), torch.empty_like(weight).contiguous()


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.shape = inputs
    ctx.save_for_backward(x, weight)


def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *torch.ops.polynext.depthwise_gradients(*ctx.saved_tensors, grad, *ctx.shape), None, None, None


torch.library.register_autograd("polynext::depthwise", backward, setup_context=keep_inputs, lib=LIBRARY)
