"""DTTN, a prior polynomial network that the paper compares with (Nie et al., "Deep Tree Tensor Networks", 2025).

Activation-free except for LayerNorm: each block multiplies two convolutional branches.

    block = x + alpha * BN(P(norm((L2 L1 x) * (R2 R1 x))))

The fully polynomial models (`_bn`, "no norm" in the paper's Table 7) have batch norms on the two factors instead of a
LayerNorm after the product. Depths and widths are those of the public code. It gives 7.80, 12.91 and 35.17 million
parameters, where the publication prints 7.1, 12.3 and 35.9. No weights are published.
"""

from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from polynext.models.pyramid import Pyramid, RunningBatchNorm2d, pyramid_cfgs, register_sizes
from polynext.nn import LayerNorm2d, init_kaiming


class DttnBlock(nn.Module):
    """`x + alpha * BN(P(norm((L2 L1 x) * (R2 R1 x))))`: (B, d, H, W) to (B, d, H, W). Degree 2, the LayerNorm aside.

    L1 is a grouped 3x3 convolution from d to h channels, L2 a 1x1; R1 a 1x1 from d to h, R2 a depthwise 3x3; P a 1x1
    back to d.
    """

    degree = 2

    def __init__(self, channels: int, hidden: int, polynomial: bool, drop_path_rate: float, **dd: Any):
        super().__init__()
        self.l1 = nn.Conv2d(channels, hidden, 3, padding=1, groups=channels, **dd)
        self.l2 = nn.Conv2d(hidden, hidden, 1, **dd)
        self.r1 = nn.Conv2d(channels, hidden, 1, **dd)
        self.r2 = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, **dd)
        self.norm_l: nn.Module = RunningBatchNorm2d(hidden, **dd) if polynomial else nn.Identity()
        self.norm_r: nn.Module = RunningBatchNorm2d(hidden, **dd) if polynomial else nn.Identity()
        self.norm = nn.Identity() if polynomial else LayerNorm2d(hidden, eps=1e-6, bias=True, **dd)
        self.p = nn.Conv2d(hidden, channels, 1, **dd)
        self.norm_p: Any = RunningBatchNorm2d(channels, **dd)
        self.alpha = nn.Parameter(torch.ones(1, **dd))
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        product = self.norm_l(self.l2(self.l1(x))) * self.norm_r(self.r2(self.r1(x)))
        return x + self.drop_path(self.alpha * self.norm_p(self.p(self.norm(product))))


class DTTN(Pyramid):
    """DTTN, with the interface of a timm model. Every other block of a stage is three times as wide inside."""

    downsampling_kernel = 2

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for convolution in self.modules():
            if isinstance(convolution, nn.Conv2d) and convolution.bias is not None:
                init_kaiming(convolution)
                nn.init.zeros_(convolution.bias)

    def block(self, width: int, number: int, polynomial: bool, drop_path_rate: float, **dd: Any) -> DttnBlock:
        return DttnBlock(width, width if number % 2 == 0 else 3 * width, polynomial, drop_path_rate, **dd)


SIZES = {
    "tiny": dict(depths=(6, 6, 16, 6), widths=(96, 128, 160, 192)),
    "small": dict(depths=(6, 6, 24, 8), widths=(96, 128, 192, 192)),
    "base": dict(depths=(8, 8, 32, 8), widths=(128, 192, 256, 384)),
}
default_cfgs = pyramid_cfgs("dttn", SIZES)
register_sizes(DTTN, "dttn", SIZES)
