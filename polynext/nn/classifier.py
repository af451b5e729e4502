"""Classification heads: a linear one on pooled features, and PolyHead, which multiplies before it pools."""

from typing import Unpack

import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn.conv import PointwiseConv2d
from polynext.nn.placement import Placement


class PooledClassifier(nn.Module):
    """`W pool(x) + bias`: (B, C, H, W) to (B, classes); without pooling (B, classes, H, W). Degree 1.

    Args:
        channels: C.
        num_classes: with 0 there is no W (`fc`), and the head returns the pooled features.
        pool: "avg" or "max" over the positions, or "" to classify each position. A maximum is not a polynomial.
        drop_rate: dropout before W.
    """

    def __init__(
        self, channels: int, num_classes: int, pool: str = "avg", drop_rate: float = 0.0, **dd: Unpack[Placement]
    ):
        super().__init__()
        self.channels = channels
        self.drop = nn.Dropout(drop_rate)
        self.reset(num_classes, pool, **dd)

    def reset(self, num_classes: int, pool: str | None = None, **dd: Unpack[Placement]) -> None:
        """Replaces W by an untrained one for `num_classes` classes, and the pooling if `pool` is given."""
        if pool is not None:
            if pool not in ("avg", "max", ""):
                raise PolyNeXtError(f"global_pool is {pool!r}: choose 'avg', 'max', or '' for no pooling.")
            self.pool = pool
        self.fc: nn.Module = nn.Identity()
        if num_classes > 0:
            self.fc = nn.Linear(self.channels, num_classes, **dd)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.classify(x, pre_logits)

    def classify(self, x: Tensor, pre_logits: bool) -> Tensor:
        if self.pool == "avg":
            x = x.mean(dim=(2, 3))
        elif self.pool == "max":
            x = x.amax(dim=(2, 3))
        else:
            x = x.permute(0, 2, 3, 1)
        x = self.drop(x)
        x = x if pre_logits else self.fc(x)
        return x if self.pool else x.permute(0, 3, 1, 2)


class PolyHead(PooledClassifier):
    """Classification head with an inner skip connection around its product (Section 3.1).

        PolyHead(x) = W_o pool(W_a x + (W_a x) * (W_b x)) + bias

    W_a and W_b are the two halves of the 1x1 convolution `w_ab`, each of width 2 C; W_o is the linear layer `fc`.
    Shapes (B, C, H, W) to (B, classes); without pooling (B, classes, H, W). Degree 2.

    Args:
        channels: C.
        num_classes: with 0 there is no W_o, and the head returns features of width 2 C.
        pool: "avg" or "max" over the positions, or "" to classify each position.
        drop_rate: dropout before W_o.
    """

    degree = 2

    def __init__(
        self, channels: int, num_classes: int, pool: str = "avg", drop_rate: float = 0.0, **dd: Unpack[Placement]
    ):
        super().__init__(2 * channels, 0, pool, drop_rate)
        self.w_ab = PointwiseConv2d(channels, 4 * channels, **dd)
        self.reset(num_classes, pool, **dd)

    def fuse(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.addcmul(a, a, b)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        a, b = self.w_ab(x).chunk(2, dim=1)
        return self.classify(self.fuse(a, b), pre_logits)
