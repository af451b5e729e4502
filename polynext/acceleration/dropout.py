"""Dropout whose rate is a tensor, so that a compiled network is not recompiled when the rate changes."""

from typing import ClassVar

import torch
from torch import Tensor, nn


class RisingDropout(nn.Dropout):
    """`nn.Dropout` whose `p` may change without recompilation. The tensor `rate` is not part of checkpoints."""

    __jit_unused_properties__: ClassVar = ["p"]

    def __init__(self, p: float = 0.0, device: torch.device | str | None = None, dtype: torch.dtype | None = None):
        nn.Module.__init__(self)
        self.rate: Tensor
        self.register_buffer("rate", torch.tensor(p, device=device, dtype=dtype), persistent=False)
        self.given, self.inplace = p, False

    @property
    def p(self) -> float:
        return self.given

    @p.setter
    def p(self, rate: float) -> None:
        self.given = rate
        self.rate.fill_(rate)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1 - self.rate
        kept = torch.rand_like(x, dtype=torch.float32) < keep
        return x * (kept / keep.clamp_min(1e-12)).to(x.dtype)
