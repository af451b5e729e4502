"""Sigmoid-Scale, which bounds what each sublayer adds to the residual stream."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SigmoidScale(nn.Module):
    """Residual addition with a learnable bounded scale (Section 3.4, Equation 7).

        y = x + sigmoid(lambda_i) * f(x)

    Holds one logit lambda per sublayer of a cell; `index` says whose turn it is. Shapes of x, f(x) and y are equal.
    The scale is a constant of the network, so the degree is that of f.
    """

    def __init__(
        self,
        logits: float | Sequence[float] = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        start = [logits] if isinstance(logits, int | float) else list(logits)
        self.logits = nn.Parameter(torch.tensor(start, device=device, dtype=dtype or torch.get_default_dtype()))

    def scales(self) -> Tensor:
        """sigmoid(lambda), one factor per entry."""
        return self.logits.sigmoid()

    def forward(self, x: Tensor, branch: Tensor, index: int = 0) -> Tensor:
        return torch.addcmul(x, self.scales()[index], branch)

    def extra_repr(self) -> str:
        return f"entries={len(self.logits)}"
