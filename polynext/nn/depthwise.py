"""Depthwise convolution on CPUs: a backward pass of our own where PyTorch's is slow, one operation for compilers."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from polynext.nn.inference import LIBRARY

FAST_WIDTH = 3  # of a depthwise kernel: oneDNN takes ten times as long for the gradient of a wider one
SMALL_PHASE = 25  # positions: those of a 5x5 kernel


def depthwise(x: Tensor, weight: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    """x (B, C, H, W) with weight (C, 1, k, k)."""
    if not torch.jit.is_scripting():
        if compiles_on_cpu(x):
            return torch.ops.polynext.depthwise(*in_one_precision(x, weight), stride, padding, dilation)
        if trains_on_cpu(x, weight) and is_wide(weight, stride, dilation):
            return WideDepthwise.apply(*in_one_precision(x, weight), padding, dilation)
    return F.conv2d(x, weight, stride=stride, padding=padding, dilation=dilation, groups=weight.shape[0])


@torch.jit.unused
def compiles_on_cpu(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and x.device.type == "cpu"


@torch.jit.unused
def trains_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Whether a backward pass may follow on a CPU. None follows a trace, which holds PyTorch's own operations only."""
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return learns and x.device.type == "cpu" and not torch.jit.is_tracing()


@torch.jit.unused
def is_wide(weight: Tensor, stride: int, dilation: int) -> bool:
    return stride == 1 and (dilation > 1 or weight.shape[-1] > FAST_WIDTH)


@torch.jit.unused
def in_one_precision(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as autocast wants them."""
    if not torch.is_autocast_enabled("cpu"):
        return x, weight
    dtype = torch.get_autocast_dtype("cpu")
    return x.to(dtype), weight.to(dtype)


def gradients(
    x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """Those of x and of the kernel, from that of the result."""
    if x.device.type == "cpu" and is_wide(weight, stride, dilation):
        return wide_gradients(x, weight, grad, padding, dilation)
    shape = (None, [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], len(weight))
    found = torch.ops.aten.convolution_backward(grad, x, weight, *shape, (True, True, False))
    return found[0], found[1]


# PyTorch's compiler asks of each convolution whether a library for batches of 16 and more would do it, and compiles
# again when the answer changes. Of an operation of our own it asks nothing.
LIBRARY.define("depthwise(Tensor x, Tensor weight, int stride, int padding, int dilation) -> Tensor")
LIBRARY.define(
    "depthwise_gradients(Tensor x, Tensor weight, Tensor grad, int stride, int padding, int dilation)"
    " -> (Tensor, Tensor)"
)


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
    grad_x, grad_weight = gradients(x, weight, grad, stride, padding, dilation)
    return grad_x.contiguous(memory_format=torch.channels_last), grad_weight.contiguous()


@torch.library.register_fake("polynext::depthwise_gradients", lib=LIBRARY)
def _(x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.channels_last), torch.empty_like(weight).contiguous()


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.shape = inputs
    ctx.save_for_backward(x, weight)


def pull_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *torch.ops.polynext.depthwise_gradients(*ctx.saved_tensors, grad, *ctx.shape), None, None, None


torch.library.register_autograd("polynext::depthwise", pull_back, setup_context=keep_inputs, lib=LIBRARY)


class WideDepthwise(torch.autograd.Function):
    """PyTorch's CPU backward takes many times its forward if a kernel is dilated or wide; this one a few times.

    The gradient of the input is a depthwise convolution with the kernel turned round. That of the kernel is an ordinary
    one on the interleaved phases of the map, each a dense image: every d-th row and column. On small maps, where phases
    are smaller than the kernel and that is slow again, a matrix product of all pairs of positions is faster.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.dilation = padding, dilation
        return F.conv2d(x, weight, padding=padding, dilation=dilation, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        return *wide_gradients(x, weight, grads[0], ctx.padding, ctx.dilation, wanted), None, None


def wide_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, padding: int, d: int, wanted: tuple[bool, bool] = (True, True)
) -> tuple[Any, Any]:
    """Those of the input and of the kernel, if wanted."""
    grad_x = grad_weight = None
    if wanted[0]:
        grad_x = F.conv2d(grad, weight.flip(2, 3), padding=padding, dilation=d, groups=len(weight))
    if wanted[1]:
        if math.ceil(x.shape[2] / d) * math.ceil(x.shape[3] / d) <= SMALL_PHASE:
            grad_weight = kernel_gradient_by_pairs(x, grad, weight.shape[-1], d)
        else:
            grad_weight = kernel_gradient(phases(x, d), phases(grad, d), weight.shape[-1])
    return grad_x, grad_weight


def phases(x: Tensor, d: int) -> Tensor:
    """(B, C, H, W) to (B d d, C, H/d, W/d): every d-th row and column, from each start, zeros at the far border."""
    height, width = x.shape[2:]
    if height % d or width % d:
        x = F.pad(x, (0, -width % d, 0, -height % d))
    x = x.permute(0, 2, 3, 1)
    x = x.unflatten(2, (-1, d)).unflatten(1, (-1, d))  # (B, H/d, d, W/d, d, C)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(0, 2).permute(0, 3, 1, 2)


def kernel_gradient(x: Tensor, grad: Tensor, kernel: int) -> Tensor:
    """The kernel's gradient (C, 1, k, k) where nothing is dilated, a few columns of taps at a time."""
    channels, half, width = x.shape[1], kernel // 2, grad.shape[3]
    columns = []
    for first in range(0, kernel, FAST_WIDTH):
        taps = min(FAST_WIDTH, kernel - first)
        left = half - first
        seen = x[..., max(0, -left) :]
        seen = F.pad(seen, (max(0, left), width + taps - 1 - max(0, left) - seen.shape[3]))
        columns.append(conv2d_weight(seen, (channels, 1, kernel, taps), grad, padding=(half, 0), groups=channels))
    return torch.cat(columns, dim=3)


def kernel_gradient_by_pairs(x: Tensor, grad: Tensor, kernel: int, d: int) -> Tensor:
    """The kernel's gradient (C, 1, k, k) from the products of all pairs of positions, summed by their distance."""
    height, width = x.shape[2:]
    # (C, H W, B), copied at once: the product of strided ones would copy each channel by itself.
    x, grad = (t.permute(1, 2, 3, 0).flatten(1, 2).contiguous() for t in (x, grad))
    pairs = grad @ x.transpose(1, 2)  # (C, H W, H W)
    rows, columns = (tap_of_distance(n, kernel, d, x) for n in (height, width))  # (k, n, n)
    taps = torch.einsum("ihg,jwv->ijhwgv", rows, columns).flatten(2).flatten(0, 1)  # (k k, (H W)^2)
    return (pairs.flatten(1) @ taps.T).unflatten(1, (1, kernel, kernel))


def tap_of_distance(length: int, kernel: int, d: int, like: Tensor) -> Tensor:
    """(k, n, n): one where tap t carries input position j to output position i, that is j - i = (t - k // 2) d."""
    position = torch.arange(length, device=like.device)
    reach = (torch.arange(kernel, device=like.device) - kernel // 2) * d
    return (position - position[:, None] == reach[:, None, None]).to(like.dtype)
