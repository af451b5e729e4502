"""Fast implementations of the operators, for CPUs and for PyTorch's compiler."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polynext.acceleration.operators  # noqa: F401  (registers torch.ops.polynext)
from polynext.acceleration.attention import FastAttention, needs_gradients
from polynext.acceleration.cpu import ONEDNN, is_compiled_cpu_inference, is_cpu_inference
from polynext.acceleration.depthwise import FastGradients, is_slow
from polynext.acceleration.fast_module import FastModule, SavedContiguous
from polynext.nn import DepthwiseConv2d, LayerNorm2d, PointwiseConv2d, PolyConv


class FastPointwise(FastModule, SavedContiguous, PointwiseConv2d):
    """A matrix product: in inference on CPUs by oneDNN, and one operation for any batch when compiled.

    On GPUs, an undilated convolution, which more of their libraries' routines support.
    """

    plain = PointwiseConv2d

    @classmethod
    def supports(cls, module: Any) -> bool:
        return ONEDNN and (module.stride, module.padding, module.groups, module.bias) == ((1, 1), (0, 0), 1, None)

    def fast(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or is_cpu_inference(x):
            return over_channels(x, self.weight.flatten(1))
        return super().fast(x) if x.device.type == "cpu" else F.conv2d(x, self.weight)

    def store_by_columns(self) -> None:
        """Changes the memory order of W, so that oneDNN need not transpose it in each call."""
        self.weight.data = self.weight.data.flatten(1).T.contiguous().T[:, :, None, None]


def over_channels(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix product of weight (D, C) with each position of x (B, C, H, W): (B, D, H, W)."""
    rows = x.permute(0, 2, 3, 1)
    product = torch.ops.polynext.matrix_product if is_cpu_inference(x) else F.linear
    return product(rows, weight).permute(0, 3, 1, 2)


class FastDepthwise(FastModule, DepthwiseConv2d):
    """Trains several times as fast on CPUs, and is one operation when compiled."""

    plain = DepthwiseConv2d

    @classmethod
    def supports(cls, module: Any) -> bool:
        return module.bias is None and module.padding_mode == "zeros" and module.groups == module.out_channels

    def fast(self, x: Tensor) -> Tensor:
        shape = (self.stride[0], self.padding[0], self.dilation[0])
        if x.device.type == "cpu":
            inputs = cast_for_autocast(x, self.weight)
            if torch.compiler.is_compiling():
                return torch.ops.polynext.depthwise(*inputs, *shape)
            if needs_gradients(x, self.weight) and is_slow(*inputs, shape[0], shape[2]):
                return FastGradients.apply(*inputs, *shape)
        return super().fast(x)


def cast_for_autocast(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in autocast's dtype, if it is enabled: PyTorch does not cast for custom operations."""
    if not torch.is_autocast_enabled("cpu"):
        return x, weight
    dtype = torch.get_autocast_dtype("cpu")
    return x.to(dtype), weight.to(dtype)


class FastLayerNorm(FastModule, LayerNorm2d):
    """Elementary operations in compiled inference: one pass over memory, where `F.layer_norm` takes three."""

    plain = LayerNorm2d

    def fast(self, x: Tensor) -> Tensor:
        if not is_compiled_cpu_inference(x):
            return super().fast(x)
        return elementary_layer_norm(x.permute(0, 2, 3, 1), self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


def elementary_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last axis in elementary operations."""
    share = 1 / x.shape[-1]
    centred = x - share * x.sum(-1, keepdim=True)
    y = centred * (share * centred.square().sum(-1, keepdim=True) + eps).rsqrt() * weight
    return y if bias is None else y + bias


class FastPolyConv(FastModule, PolyConv):
    """Multiplies in place in inference, and is one operation between its 1x1 convolutions when compiled."""

    plain = PolyConv

    def fast(self, x: Tensor) -> Tensor:
        if not is_cpu_inference(x):
            return super().fast(x)
        h = self.w_in(x)
        if torch.compiler.is_compiling():
            kernels = self.k_coarse.weight, self.k_fine.weight, self.k.weight
            mixed = torch.ops.polynext.convolved_product(h, *kernels, self.k_coarse.dilation[0], self.k.dilation[0])
        else:
            mixed = self.k(self.k_fine(h).flip(1).mul_(self.k_coarse(h)))
        return self.norm(self.w_out(mixed))


OPERATORS = (FastPointwise, FastDepthwise, FastLayerNorm, FastPolyConv, FastAttention)


def store_by_columns(model: nn.Module) -> None:
    """Stores the matrices of a network in the order that oneDNN multiplies them in."""
    for module in model.modules():
        if isinstance(module, FastPointwise) and module.weight.device.type == "cpu":
            module.store_by_columns()
