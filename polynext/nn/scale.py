"""Sigmoid-Scale, which bounds what each sublayer adds to the residual stream, and its rivals in the paper's Table 4."""

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

    def factors(self) -> Tensor:
        """The scales, each entry ready to be multiplied with a map."""
        return self.scales()

    def forward(self, x: Tensor, branch: Tensor, index: int = 0) -> Tensor:
        return torch.addcmul(x, self.factors()[index], branch)

    def extra_repr(self) -> str:
        return f"entries={len(self.logits)}"


class LearnableScale(nn.Module):
    """`y = x + s_i * f(x)` with free scalars: Sigmoid-Scale without its sigmoid. Shapes and degree as there."""

    def __init__(
        self,
        scales: float | Sequence[float] = 0.5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        start = [scales] if isinstance(scales, int | float) else list(scales)
        self.s = nn.Parameter(torch.tensor(start, device=device, dtype=dtype or torch.get_default_dtype()))

    def scales(self) -> Tensor:
        return self.s

    def factors(self) -> Tensor:
        return self.s

    def forward(self, x: Tensor, branch: Tensor, index: int = 0) -> Tensor:
        return torch.addcmul(x, self.factors()[index], branch)


class LayerScale(nn.Module):
    """`y = x + gamma_i * f(x)` with a free scale per channel and sublayer. Shapes and degree as in Sigmoid-Scale."""

    def __init__(
        self,
        channels: int,
        entries: int = 1,
        start: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((entries, channels), start, device=device, dtype=dtype))

    def scales(self) -> Tensor:
        """gamma, a factor per entry and channel."""
        return self.gamma

    def factors(self) -> Tensor:
        return self.gamma[:, :, None, None]

    def forward(self, x: Tensor, branch: Tensor, index: int = 0) -> Tensor:
        return torch.addcmul(x, self.factors()[index], branch)
