"""MONet, a prior polynomial network that the paper compares with (Cheng et al., "Multilinear Operator Networks", 2024).

Activation-free except for LayerNorm. Shifts by one pixel mix positions.

    x = x + spatial(norm(x))
    y = x + channel(norm(x)),    with the same norm

The fully polynomial models (`_bn`, the paper's Table 7) have batch norm in place of every LayerNorm.
"""

from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from polynext.models.pyramid import Pyramid, RunningBatchNorm2d, pyramid_cfgs, register_sizes


class BatchNormLast(nn.Module):
    """Batch norm over the channels of (B, H, W, C)."""

    def __init__(self, channels: int, **dd: Any):
        super().__init__()
        self.norm = RunningBatchNorm2d(channels, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def norm_of(channels: int, polynomial: bool, **dd: Any) -> nn.Module:
    return BatchNormLast(channels, **dd) if polynomial else nn.LayerNorm(channels, eps=1e-6, **dd)


class MuLayer(nn.Module):
    """`C (a + alpha * a * b)` with `a = norm(U1 x)` and `b = norm(U3 U2 x)`. Degree 2, LayerNorms aside.

    Shapes (B, H, W, d) to (B, H, W, d). The spatial layer shifts `U1 x` and `U2 x` by one pixel.
    """

    degree = 2

    def __init__(self, channels: int, hidden: int, spatial: bool, polynomial: bool, **dd: Any):
        super().__init__()
        self.spatial = spatial
        self.u1 = nn.Linear(channels, hidden, **dd)
        self.u2 = nn.Linear(channels, hidden // 8, **dd)
        self.u3 = nn.Linear(hidden // 8, hidden, **dd)
        self.c = nn.Linear(hidden, channels, **dd)
        self.norm_a = norm_of(hidden, polynomial, **dd)
        self.norm_b = norm_of(hidden, polynomial, **dd)
        self.alpha = nn.Parameter(torch.ones(1, **dd))
        for linear in (self.u1, self.u2, self.u3):
            nn.init.ones_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.u1(x), self.u2(x)
        if self.spatial:
            a, b = shift(a), shift(b)
        a, b = self.norm_a(a), self.norm_b(self.u3(b))
        return self.c(torch.addcmul(a, self.alpha, a * b))


def shift(x: Tensor) -> Tensor:
    """Shifts the quarters of the channels of (B, H, W, C) down, up, right and left by a pixel; borders are repeated."""
    down, up, right, left = x.chunk(4, dim=3)
    return torch.cat(
        [
            torch.cat([down[:, :1], down[:, :-1]], dim=1),
            torch.cat([up[:, 1:], up[:, -1:]], dim=1),
            torch.cat([right[:, :, :1], right[:, :, :-1]], dim=2),
            torch.cat([left[:, :, 1:], left[:, :, -1:]], dim=2),
        ],
        dim=3,
    )


class MonetBlock(nn.Module):
    """A spatial and a channel mu-layer, each with a residual connection: (B, C, H, W) to (B, C, H, W)."""

    def __init__(self, channels: int, polynomial: bool, drop_path_rate: float, **dd: Any):
        super().__init__()
        self.norm: Any = norm_of(channels, polynomial, **dd)
        self.spatial = MuLayer(channels, channels, spatial=True, polynomial=polynomial, **dd)
        self.channel = MuLayer(channels, 3 * channels, spatial=False, polynomial=polynomial, **dd)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = x + self.drop_path(self.spatial(self.norm(x)))
        x = x + self.drop_path(self.channel(self.norm(x)))
        return x.permute(0, 3, 1, 2)


class MONet(Pyramid):
    """MONet, with the interface of a timm model."""

    downsampling_kernel = 3

    def block(self, width: int, number: int, polynomial: bool, drop_path_rate: float, **dd: Any) -> MonetBlock:
        return MonetBlock(width, polynomial, drop_path_rate, **dd)


SIZES = {
    "tiny": dict(depths=(4, 8, 12, 10), widths=(64, 128, 192, 192)),
    "small": dict(depths=(4, 6, 12, 14), widths=(128, 192, 256, 384)),
}
default_cfgs = pyramid_cfgs("monet", SIZES)
register_sizes(MONet, "monet", SIZES)
