"""The two convolutions everything else is made of: pointwise and depthwise.

Both take and return (B, C, H, W) and work in channels-last memory: there a pointwise convolution is a plain
matrix product and a norm over channels runs along contiguous memory, with no copy in between.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polynext.nn.depthwise import depthwise, gradients
from polynext.nn.inference import AVAILABLE, infers_on_cpu

# What they do depends on whether gradients are wanted.
torch.fx.wrap("depthwise")
torch.fx.wrap("over_channels")


class PointwiseConv2d(nn.Conv2d):
    """1x1 convolution without bias, computed as a matrix product over the channel axis: `y = W x`. Degree 1."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_channels, out_channels, 1, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return over_channels(x, self.weight.flatten(1))

    @torch.jit.unused
    def store_by_columns(self) -> None:
        """Changes the order of W in memory and nothing else: all outputs of an input are neighbours."""
        self.weight.data = self.weight.data.flatten(1).T.contiguous().T[:, :, None, None]

    @torch.jit.unused
    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Any:
        """Moves the weight to a device, dtype or memory format; stored by columns, it stays so."""
        by_columns = self.weight.stride(0) < self.weight.stride(1)
        super()._apply(fn, recurse)
        if by_columns:
            self.store_by_columns()
        return self


def store_by_columns(model: nn.Module) -> None:
    """Stores the matrices of a network as inference on CPUs wants them: oneDNN need not transpose them each time."""
    for module in model.modules():
        if AVAILABLE and isinstance(module, PointwiseConv2d) and module.weight.device.type == "cpu":
            module.store_by_columns()


def over_channels(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix product of weight (D, C) with each position of x (B, C, H, W): (B, D, H, W)."""
    rows = x.permute(0, 2, 3, 1)
    if not torch.jit.is_scripting() and infers_on_cpu(rows):
        return torch.ops.polynext.matrix_product(rows, weight).permute(0, 3, 1, 2)
    return F.linear(rows, weight).permute(0, 3, 1, 2)


class DepthwiseConv2d(nn.Conv2d):
    """One k x k kernel per channel, without bias, padded to keep the size at stride 1. Degree 1."""

    padding: tuple[int, ...]  # never a name such as "same"

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        dilation: int = 1,
        stride: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            channels,
            channels,
            kernel_size,
            stride=stride,
            padding=dilation * (kernel_size // 2),
            dilation=dilation,
            groups=channels,
            bias=False,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor) -> Tensor:
        return depthwise(x, self.weight, self.stride[0], self.padding[0], self.dilation[0])

    @torch.jit.unused
    def pull_back(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """From the gradient of the result, those of x and of the kernel."""
        return gradients(x, self.weight, grad, self.stride[0], self.padding[0], self.dilation[0])


def init_kaiming(*convolutions: nn.Conv2d) -> None:
    """Kaiming normal, fan-in, gain sqrt(2): the paper's choice for PolyConv, PolyMLP and downsampling."""
    for convolution in convolutions:
        if not convolution.weight.is_meta:  # where nothing happens, but slowly
            nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
