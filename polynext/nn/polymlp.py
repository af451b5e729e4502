"""PolyMLP mixes channels; PolyHead is its form in the classifier."""

import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn.conv import PointwiseConv2d, init_kaiming
from polynext.nn.dropout import RisingDropout
from polynext.nn.norm import LayerNorm2d, NormMaker


class PolyMLP(nn.Module):
    """Activation-free channel mixing (Section 3.1, Equation 2).

        PolyMLP(x) = W_o norm((W_a x) * (W_b x))

    W_a and W_b are the two halves of one 1x1 convolution `w_ab` of width `int(channels * ratio)`; `w_o` projects back.
    Shapes (B, C, H, W) to (B, C, H, W). Degree 2, the norm aside.

    Args:
        channels: C.
        ratio: width of both branches together, in units of C.
        norm: makes the norm from a number of channels; `nn.Identity` for none.
    """

    degree = 2

    def __init__(
        self,
        channels: int,
        ratio: float = 2.0,
        norm: NormMaker = LayerNorm2d,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        both = int(channels * ratio)
        if both < 2 or both % 2:
            raise PolyNeXtError(
                f"PolyMLP got channels={channels} and ratio={ratio}, a width of {both} for its two branches: "
                "choose a ratio that gives an even width of at least 2."
            )
        self.w_ab = PointwiseConv2d(channels, both, device=device, dtype=dtype)
        self.norm = norm(both // 2, device=device, dtype=dtype)
        self.w_o = PointwiseConv2d(both // 2, channels, device=device, dtype=dtype)
        init_kaiming(self.w_ab, self.w_o)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_o(self.mix(self.w_ab(x)))

    def mix(self, ab: Tensor) -> Tensor:
        """norm(a * b): what happens between the two matrix products."""
        a, b = ab.chunk(2, dim=1)
        return self.norm(a * b)


class PolyHead(nn.Module):
    """Classification head with an inner skip, so that nothing bottlenecks through the product (Section 3.1).

        PolyHead(x) = W_o pool(W_a x + (W_a x) * (W_b x)) + bias

    W_a and W_b are the two halves of the 1x1 convolution `w_ab`, each of width 2 C; pooling before the linear W_o
    (`fc`) equals pooling after it. Shapes (B, C, H, W) to (B, classes); without pooling (B, classes, H, W). Degree 2.

    Args:
        channels: C.
        num_classes: 0 leaves out W_o and returns its input, of width 2 C.
        pool: "avg", or "" to classify each position.
        drop_rate: dropout before W_o.
    """

    degree = 2

    def __init__(
        self,
        channels: int,
        num_classes: int,
        pool: str = "avg",
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.hidden = 2 * channels
        self.w_ab = PointwiseConv2d(channels, 2 * self.hidden, device=device, dtype=dtype)
        self.drop = RisingDropout(drop_rate, device=device, dtype=dtype)
        self.reset(num_classes, pool)

    def reset(self, num_classes: int, pool: str | None = None) -> None:
        """A new, untrained W_o for another number of classes; optionally another pooling."""
        if pool is not None:
            if pool not in ("avg", ""):
                raise PolyNeXtError(f"PolyHead got pool={pool!r}: choose 'avg', or '' for no pooling.")
            self.pool = pool
        weight = self.w_ab.weight
        self.fc: nn.Module = nn.Identity()
        if num_classes > 0:
            self.fc = nn.Linear(self.hidden, num_classes, device=weight.device, dtype=weight.dtype)

    def fuse(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.addcmul(a, a, b)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        a, b = self.w_ab(x).chunk(2, dim=1)
        x = self.fuse(a, b).permute(0, 2, 3, 1)  # (B, H, W, hidden)
        if self.pool:
            x = x.mean(dim=(1, 2))
        x = self.drop(x)
        x = x if pre_logits else self.fc(x)
        return x if self.pool else x.permute(0, 3, 1, 2)
