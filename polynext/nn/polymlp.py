"""PolyMLP mixes channels."""

from typing import Unpack

from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn.conv import PointwiseConv2d, init_kaiming
from polynext.nn.norm import LayerNorm2d, NormMaker
from polynext.nn.placement import Placement


class PolyMLP(nn.Module):
    """Activation-free channel mixing (Section 3.1, Equation 2).

        PolyMLP(x) = W_o norm((W_a x) * (W_b x))

    W_a and W_b are the two halves of one 1x1 convolution `w_ab` of width `int(channels * ratio)`; `w_o` projects back.
    Shapes (B, C, H, W) to (B, C, H, W). Degree 2, the norm aside.

    Args:
        channels: C.
        ratio: width of both branches together, in units of C.
        norm: builds the norm from a number of channels; `nn.Identity` for none.
    """

    degree = 2

    def __init__(self, channels: int, ratio: float = 2.0, norm: NormMaker = LayerNorm2d, **dd: Unpack[Placement]):
        super().__init__()
        both = int(channels * ratio)
        if both < 2 or both % 2:
            raise PolyNeXtError(
                f"PolyMLP got channels={channels} and ratio={ratio}, a width of {both} for its two branches together: "
                "choose a ratio that gives an even width of at least 2."
            )
        self.w_ab = PointwiseConv2d(channels, both, **dd)
        self.norm = norm(both // 2, **dd)
        self.w_o = PointwiseConv2d(both // 2, channels, **dd)
        init_kaiming(self.w_ab, self.w_o)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_o(self.mix(self.w_ab(x)))

    def mix(self, ab: Tensor) -> Tensor:
        """norm(a * b): the operator between its two 1x1 convolutions."""
        a, b = ab.chunk(2, dim=1)
        return self.norm(a * b)
