"""A network for ONNX engines: the same function of the same weights, in operations that they run fast.

These engines choose the memory layout of feature maps themselves. Permuting, splitting or reversing channels is then a
copy that takes as long as a product. So norms are over the second axis, and the two halves of a convolution's output
are two convolutions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polynext.acceleration.fast_module import replace_modules
from polynext.nn import DepthwiseConv2d, LayerNorm2d, PointwiseConv2d, PolyConv, PolyMLP


class ChannelNorm(nn.Module):
    """LayerNorm2d over the second axis of (B, C, H, W), in elementary operations."""

    def __init__(self, norm: LayerNorm2d):
        super().__init__()
        self.eps = norm.eps
        self.weight = norm.weight.detach()[:, None, None]
        self.bias = None if norm.bias is None else norm.bias.detach()[:, None, None]

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=1, keepdim=True)
        y = centred * (centred.square().mean(dim=1, keepdim=True) + self.eps).rsqrt() * self.weight
        return y if self.bias is None else y + self.bias


class TwoBranchMLP(nn.Module):
    """PolyMLP with a convolution for each branch."""

    def __init__(self, mlp: PolyMLP):
        super().__init__()
        w_a, w_b = mlp.w_ab.weight.chunk(2)
        self.w_a, self.w_b, self.w_o = pointwise(w_a), pointwise(w_b), pointwise(mlp.w_o.weight)
        self.norm = onnx_part(mlp.norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_o(self.norm(self.w_a(x) * self.w_b(x)))


class HalvedConv(nn.Module):
    """PolyConv with its hidden channels in two halves, the second one in reverse order.

    `flip` then exchanges the halves, so no channel has to move.
    """

    def __init__(self, conv: PolyConv):
        super().__init__()
        width = len(conv.w_in.weight)
        halves = torch.arange(width // 2), torch.arange(width - 1, width // 2 - 1, -1)
        self.w_in = nn.ModuleList(pointwise(conv.w_in.weight[half]) for half in halves)
        self.k_coarse = nn.ModuleList(depthwise(conv.k_coarse, half) for half in halves)
        self.k_fine = nn.ModuleList(depthwise(conv.k_fine, half) for half in halves)
        self.k = nn.ModuleList(depthwise(conv.k, half) for half in halves)
        self.w_out = nn.ModuleList(pointwise(conv.w_out.weight[:, half]) for half in halves)
        self.norm = onnx_part(conv.norm)

    def forward(self, x: Tensor) -> Tensor:
        h = [w_in(x) for w_in in self.w_in]
        m = [self.k[i](self.k_coarse[i](h[i]) * self.k_fine[1 - i](h[1 - i])) for i in (0, 1)]
        return self.norm(self.w_out[0](m[0]) + self.w_out[1](m[1]))


def pointwise(weight: Tensor) -> nn.Conv2d:
    return with_weight(nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=False, device="meta"), weight)


def depthwise(convolution: DepthwiseConv2d, channels: Tensor) -> nn.Conv2d:
    """The depthwise convolution of these channels alone."""
    size, count = convolution.kernel_size[0], len(channels)
    reach: Any = {"padding": convolution.padding, "dilation": convolution.dilation}
    selected = nn.Conv2d(count, count, size, **reach, groups=count, bias=False, device="meta")
    return with_weight(selected, convolution.weight[channels])


def with_weight(convolution: nn.Conv2d, weight: Tensor) -> nn.Conv2d:
    convolution.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return convolution


def onnx_form(model: nn.Module) -> nn.Module:
    """A copy of a network that computes the same, for export to ONNX."""
    return replace_modules(model, onnx_part)


def onnx_part(module: nn.Module) -> nn.Module:
    """The replacement of a module. Variants of the operators with another formula stay as they are."""
    if isinstance(module, LayerNorm2d):
        return ChannelNorm(module)
    if isinstance(module, PointwiseConv2d) and module.bias is None:
        return pointwise(module.weight)
    if type(module) is PolyMLP:
        return TwoBranchMLP(module)
    if type(module) is PolyConv and len(module.w_in.weight) % 2 == 0:
        return HalvedConv(module)
    return module
