"""Pointwise and depthwise convolutions: `nn.Conv2d` with other defaults, no bias and padding that keeps the size."""

from typing import Any

from torch import nn

from polynext.errors import PolyNeXtError


class PointwiseConv2d(nn.Conv2d):
    """1x1 convolution: the matrix product `y = W x` over the channels of each position. Degree 1.

    Dilation does not change the result of a 1x1 kernel. The default of 2 makes PyTorch use oneDNN on one CPU thread;
    otherwise, batches below 16 go to its BLAS, which takes twice as long on some processors. The effect of the dilation
    on the speed of GPUs has not been measured: `polynext.accelerate` removes it there.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 1,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 2,
        groups: int = 1,
        bias: bool = False,
        **options: Any,
    ):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **options)
        if self.kernel_size != (1, 1):
            raise PolyNeXtError(f"PointwiseConv2d got kernel_size={kernel_size}: give 1, or use nn.Conv2d.")


class DepthwiseConv2d(nn.Conv2d):
    """One k x k kernel per channel, padded to keep the size at stride 1. Degree 1."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
        dilation: int = 1,
        groups: int | None = None,
        bias: bool = False,
        **options: Any,
    ):
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=dilation * (kernel_size // 2) if padding is None else padding,
            dilation=dilation,
            groups=groups or in_channels,
            bias=bias,
            **options,
        )


def init_kaiming(*convolutions: nn.Conv2d) -> None:
    """Kaiming normal, fan-in, gain sqrt(2), as the paper initialises PolyConv, PolyMLP and downsampling."""
    for convolution in convolutions:
        if not convolution.weight.is_meta:  # initialising meta tensors is a slow no-op
            nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
