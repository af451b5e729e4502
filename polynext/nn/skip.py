"""The multi-input skip connection: each cell receives the outputs of the two cells before it."""

from typing import Unpack

import torch
from torch import Tensor, nn

from polynext.nn.placement import Placement


class MultiInputSkip(nn.Module):
    """`x = s0 * x[t-2] + s1 * x[t-1]` with a learnable scale per channel (Section 3.4, Equation 8).

    Both inputs and the output are (B, C, H, W). Both scales start at 1. Degree 1.
    """

    def __init__(self, channels: int, **dd: Unpack[Placement]):
        super().__init__()
        self.s0 = nn.Parameter(torch.ones(channels, **dd))
        self.s1 = nn.Parameter(torch.ones(channels, **dd))

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return torch.addcmul(self.s0[:, None, None] * older, self.s1[:, None, None], newer)

    def extra_repr(self) -> str:
        return str(len(self.s0))
