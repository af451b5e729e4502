"""1x1 convolutions as `nn.Linear`, which quantisation libraries support."""

from typing import Any

from torch import Tensor, nn

from polynext.acceleration.fast_module import replace_modules
from polynext.nn import PointwiseConv2d


class PointwiseLinear(nn.Module):
    """A 1x1 convolution by `nn.Linear` on the channels of each position: (B, C, H, W) to (B, D, H, W)."""

    def __init__(self, conv: PointwiseConv2d):
        super().__init__()
        self.linear = nn.Linear(conv.in_channels, conv.out_channels, bias=conv.bias is not None, device="meta")
        self.linear.weight = nn.Parameter(conv.weight.detach().flatten(1))
        if conv.bias is not None:
            self.linear.bias = nn.Parameter(conv.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def linear_form(model: nn.Module) -> Any:
    """A copy that computes the same with an `nn.Linear` for each 1x1 convolution."""
    return replace_modules(model, lambda part: PointwiseLinear(part) if isinstance(part, PointwiseConv2d) else part)
