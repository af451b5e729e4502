"""Gradients of depthwise convolutions on CPUs, where PyTorch's own are slow in several cases."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

FAST_WIDTH = 3  # of a depthwise kernel: oneDNN takes ten times as long for the gradient of a wider one
SMALL_PHASE = 25  # positions, as many as a 5x5 kernel has


def is_slow(x: Tensor, weight: Tensor, stride: int, dilation: int) -> bool:
    """Whether PyTorch's own gradients take many times as long on a CPU."""
    return is_wide(weight, stride, dilation) or is_strided_in_half(x, stride)


def is_wide(weight: Tensor, stride: int, dilation: int) -> bool:
    return stride == 1 and (dilation > 1 or weight.shape[-1] > FAST_WIDTH)


def is_strided_in_half(x: Tensor, stride: int) -> bool:
    """For these oneDNN has no fast kernel."""
    return stride > 1 and x.dtype in (torch.bfloat16, torch.float16)


def depthwise_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """The gradients of x and the kernel, given the gradient of the result."""
    if x.device.type == "cpu":
        if is_wide(weight, stride, dilation):
            return wide_gradients(x, weight, grad, padding, dilation)
        if is_strided_in_half(x, stride):
            found = depthwise_gradients(x.float(), weight.float(), grad.float(), stride, padding, dilation)
            return found[0].to(x.dtype), found[1].to(weight.dtype)
    shape = (None, [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], len(weight))
    found = torch.ops.aten.convolution_backward(grad, x, weight, *shape, (True, True, False))
    return found[0], found[1]


class FastGradients(torch.autograd.Function):
    """A depthwise convolution whose gradients are those of `depthwise_gradients`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *shape: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape = stride, padding, dilation = shape
        return F.conv2d(x, weight, stride=stride, padding=padding, dilation=dilation, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return *depthwise_gradients(x, weight, grads[0], *ctx.shape), None, None, None


def wide_gradients(x: Tensor, weight: Tensor, grad: Tensor, padding: int, d: int) -> tuple[Tensor, Tensor]:
    """The gradients of the input and of a dilated or wide kernel.

    That of the input is a depthwise convolution with the kernel rotated by 180 degrees. That of the kernel is the
    gradient of an undilated convolution on the phases of the map, each with every d-th row and column. This is slow
    for phases smaller than the kernel; there, the products of all pairs of positions are summed by distance.
    """
    grad_x = F.conv2d(grad, weight.flip(2, 3), padding=padding, dilation=d, groups=len(weight))
    if math.ceil(x.shape[2] / d) * math.ceil(x.shape[3] / d) <= SMALL_PHASE:
        return grad_x, kernel_gradient_by_pairs(x, grad, weight.shape[-1], d)
    return grad_x, kernel_gradient(phases(x, d), phases(grad, d), weight.shape[-1])


def phases(x: Tensor, d: int) -> Tensor:
    """(B, C, H, W) to (B d d, C, H/d, W/d): every d-th row and column from each offset, zero-padded at the end."""
    height, width = x.shape[2:]
    if height % d or width % d:
        x = F.pad(x, (0, -width % d, 0, -height % d))
    x = x.permute(0, 2, 3, 1)
    x = x.unflatten(2, (-1, d)).unflatten(1, (-1, d))  # (B, H/d, d, W/d, d, C)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(0, 2).permute(0, 3, 1, 2)


def kernel_gradient(x: Tensor, grad: Tensor, kernel: int) -> Tensor:
    """The kernel's gradient (C, 1, k, k) without dilation, FAST_WIDTH columns of taps at a time."""
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
    images, _, height, width = x.shape
    # (C, B, H W), as the transpose of a matrix, which PyTorch copies faster than other permutations.
    x, grad = (t.permute(0, 2, 3, 1).flatten(0, 2).T.contiguous().unflatten(1, (images, -1)) for t in (x, grad))
    pairs = grad.transpose(1, 2) @ x  # (C, H W, H W)
    rows, columns = (tap_of_distance(n, kernel, d, x) for n in (height, width))  # (k, n, n)
    taps = torch.einsum("ihg,jwv->ijhwgv", rows, columns).flatten(2).flatten(0, 1)  # (k k, (H W)^2)
    return (pairs.flatten(1) @ taps.T).unflatten(1, (1, kernel, kernel))


def tap_of_distance(length: int, kernel: int, d: int, like: Tensor) -> Tensor:
    """(k, n, n): 1 where tap t connects input position j to output position i, that is j - i = (t - k // 2) d."""
    position = torch.arange(length, device=like.device)
    reach = (torch.arange(kernel, device=like.device) - kernel // 2) * d
    return (position - position[:, None] == reach[:, None, None]).to(like.dtype)
