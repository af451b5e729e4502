"""PolyConv mixes positions by convolution."""

from typing import Unpack

from torch import Tensor, nn

from polynext.nn.conv import DepthwiseConv2d, PointwiseConv2d, init_kaiming
from polynext.nn.norm import LayerNorm2d, NormMaker
from polynext.nn.placement import Placement


class PolyConv(nn.Module):
    """Polynomial spatial mixing by two convolutions with different receptive fields (Section 3.2, Equations 3 to 5).

        h = W_in x
        m = K_c(h) * flip(K_f(h))
        y = norm(W_out K(m))

    W_in and W_out are 1x1 (`w_in`, `w_out`); the coarse K_c (`k_coarse`) is depthwise and dilated, the fine K_f
    (`k_fine`) and the consolidating K (`k`) are depthwise 3x3; flip reverses the channels.
    Shapes (B, C, H, W) to (B, C, H, W). Degree 2, the norm aside.

    Args:
        channels: C.
        ratio: hidden width in units of C, truncated.
        coarse_kernel: size of K_c; the paper uses 5, and 3 in stage 1.
        dilation: of K_c.
        norm: builds the norm from a number of channels; `nn.Identity` for none.
    """

    degree = 2

    def __init__(
        self,
        channels: int,
        ratio: float = 1.0,
        coarse_kernel: int = 5,
        dilation: int = 2,
        norm: NormMaker = LayerNorm2d,
        **dd: Unpack[Placement],
    ):
        super().__init__()
        hidden = int(channels * ratio)
        self.w_in = PointwiseConv2d(channels, hidden, **dd)
        self.k_coarse = DepthwiseConv2d(hidden, hidden, coarse_kernel, dilation=dilation, **dd)
        self.k_fine = DepthwiseConv2d(hidden, hidden, 3, **dd)
        self.k = DepthwiseConv2d(hidden, hidden, 3, **dd)
        self.w_out = PointwiseConv2d(hidden, channels, **dd)
        self.norm = norm(channels, **dd)
        init_kaiming(self.w_in, self.k_coarse, self.k_fine, self.k, self.w_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.w_out(self.mix(self.w_in(x))))

    def mix(self, h: Tensor) -> Tensor:
        """K(m): the operator between its two 1x1 convolutions."""
        return self.k(self.k_coarse(h) * self.k_fine(h).flip(1))
