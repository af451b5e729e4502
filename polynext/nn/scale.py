"""Sigmoid-Scale, which bounds each sublayer's contribution to the residual stream, and the alternatives of Table 4."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from polynext.nn.placement import Placement


class ResidualScale(nn.Module):
    """`y = x + s_i * f(x)`, with one learnable scale s_i for each sublayer of a cell.

    x, f(x) and y have the same shape. The scales are constants at inference, so the degree is that of f.
    Subclasses define `scales`.
    """

    def scales(self) -> Tensor:
        """One scale for each sublayer: (sublayers,), or (sublayers, C) if each channel has its own."""
        raise NotImplementedError

    def factors(self) -> Tensor:
        """The scales in a shape that broadcasts with feature maps (B, C, H, W)."""
        return self.scales()

    def forward(self, x: Tensor, branch: Tensor, index: int = 0) -> Tensor:
        return torch.addcmul(x, self.factors()[index], branch)


class SigmoidScale(ResidualScale):
    """Residual addition with a learnable bounded scale (Section 3.4, Equation 7).

        y = x + sigmoid(lambda_i) * f(x)

    `logits` holds one lambda for each sublayer of a cell; `index` selects it. Degree of f.
    """

    def __init__(self, logits: float | Sequence[float] = 0.0, **dd: Unpack[Placement]):
        super().__init__()
        self.logits = one_number_each(logits, **dd)

    def scales(self) -> Tensor:
        return self.logits.sigmoid()

    def extra_repr(self) -> str:
        return f"sublayers={len(self.logits)}"


class LearnableScale(ResidualScale):
    """`y = x + s_i * f(x)` with unbounded scalars: Sigmoid-Scale without its sigmoid."""

    def __init__(self, scales: float | Sequence[float] = 0.5, **dd: Unpack[Placement]):
        super().__init__()
        self.s = one_number_each(scales, **dd)

    def scales(self) -> Tensor:
        return self.s


class LayerScale(ResidualScale):
    """`y = x + gamma_i * f(x)` with an unbounded scale for each channel and sublayer."""

    def __init__(self, channels: int, entries: int = 1, start: float = 1e-6, **dd: Unpack[Placement]):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((entries, channels), start, **dd))

    def scales(self) -> Tensor:
        return self.gamma

    def factors(self) -> Tensor:
        return self.gamma[:, :, None, None]


def one_number_each(start: float | Sequence[float], **dd: Unpack[Placement]) -> nn.Parameter:
    """A parameter with one number for each sublayer."""
    numbers = [start] if isinstance(start, int | float) else start
    return nn.Parameter(torch.tensor([float(number) for number in numbers], **dd))
