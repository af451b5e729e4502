"""PolyConv mixes positions by convolution."""

import torch
from torch import Tensor, nn

from polynext.nn.conv import DepthwiseConv2d, PointwiseConv2d, init_kaiming
from polynext.nn.inference import infers_on_cpu
from polynext.nn.norm import LayerNorm2d, NormMaker


class PolyConv(nn.Module):
    """Polynomial spatial mixing by two convolutions of different reach (Section 3.2, Equations 3 to 5).

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
        norm: makes the norm from a number of channels; `nn.Identity` for none.
    """

    degree = 2

    def __init__(
        self,
        channels: int,
        ratio: float = 1.0,
        coarse_kernel: int = 5,
        dilation: int = 2,
        norm: NormMaker = LayerNorm2d,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        hidden = int(channels * ratio)
        self.w_in = PointwiseConv2d(channels, hidden, device=device, dtype=dtype)
        self.k_coarse = DepthwiseConv2d(hidden, coarse_kernel, dilation, device=device, dtype=dtype)
        self.k_fine = DepthwiseConv2d(hidden, 3, device=device, dtype=dtype)
        self.k = DepthwiseConv2d(hidden, 3, device=device, dtype=dtype)
        self.w_out = PointwiseConv2d(hidden, channels, device=device, dtype=dtype)
        self.norm = norm(channels, device=device, dtype=dtype)
        init_kaiming(self.w_in, self.k_coarse, self.k_fine, self.k, self.w_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.w_out(self.mix(self.w_in(x))))

    def mix(self, h: Tensor) -> Tensor:
        """K(m): what happens between the two matrix products."""
        if not torch.jit.is_scripting() and infers_on_cpu(h):
            return self.mix_in_place(h)
        return self.k(self.k_coarse(h) * self.k_fine(h).flip(1))

    @torch.jit.unused
    def mix_in_place(self, h: Tensor) -> Tensor:
        """The same in less memory, more of which is in the cache, and as one operation for a compiler."""
        if torch.compiler.is_compiling():
            kernels = self.k_coarse.weight, self.k_fine.weight, self.k.weight
            return torch.ops.polynext.convolved_product(h, *kernels, self.k_coarse.dilation[0])
        return self.k(self.k_fine(h).flip(1).mul_(self.k_coarse(h)))
