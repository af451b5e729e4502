"""What a PolyNeXt is built from: its architecture in numbers (Table S2), and the blocks of its cells.

`network.py` assembles them.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from polynext.nn import (
    DepthwiseConv2d,
    LayerNorm2d,
    MultiInputSkip,
    NormMaker,
    PointwiseConv2d,
    PolyAttention,
    PolyConv,
    PolyHead,
    PolyMLP,
    PositionNorm2d,
    RowSumNorm,
    SigmoidScale,
    SyncPositionNorm2d,
    SyncRowSumNorm,
    init_kaiming,
)

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """One stage: cells of stacks at one width.

    Attributes:
        width: channels.
        cells: number of cells.
        stacks: number of stacks in each cell.
        mixer: PolyConv or PolyAttention.
        coarse_kernel: size of PolyConv's coarse kernel.
        conv_ratio: hidden width of PolyConv in units of `width`.
        mlp_ratio: width of both branches of PolyMLP together in units of `width`.
        heads: of PolyAttention; one for each 64 channels by default.
        window: side of PolyAttention's windows; the whole map by default.
        neighbourhood: side of the square around each query that PolyAttention is confined to; the whole map by default.
        dilation: distance between neighbours.
    """

    width: int
    cells: int
    stacks: int
    mixer: Literal["conv", "attention"] = "conv"
    coarse_kernel: int = 5
    conv_ratio: float = 1.0
    mlp_ratio: float = 2.0
    heads: int | None = None
    window: int | None = None
    neighbourhood: int | None = None
    dilation: int = 1

    @property
    def attention(self) -> dict[str, Any]:
        """The options of PolyAttention."""
        names = ("heads", "window", "neighbourhood", "dilation")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class PolyNeXtConfig:
    """A whole network.

    Attributes:
        stages: from the highest to the lowest resolution.
        scale_logits: initial logits of each cell's Sigmoid-Scale, one for each sublayer.
        share_scales: the MLP of a stack and the mixer of the next stack share a scale.
        stem_kernel: size of the stem's kernel.
        stem_stride: stride of the stem.
        full_downsampling: downsample the newer skip path by a full 3x3 convolution instead of a separable one.
        norm_beta: the fully polynomial norms have shifts; the published ones have not.
        share_statistics: the fully polynomial norms share statistics over processes; the paper's do not.
    """

    stages: tuple[StageConfig, ...]
    scale_logits: tuple[float, ...]
    share_scales: bool = False
    stem_kernel: int = 7
    stem_stride: int = 4
    full_downsampling: bool = False
    norm_beta: bool = False
    share_statistics: bool = False

    @property
    def stem_padding(self) -> int:
        """Zero for a stem of non-overlapping patches."""
        return 0 if self.stem_kernel == self.stem_stride else self.stem_kernel // 2

    @property
    def stride(self) -> int:
        """The image's resolution divided by that of the last stage."""
        return self.stem_stride * 2 ** (len(self.stages) - 1)

    def scale_indices(self, stack: int) -> tuple[int, int]:
        """The indices of a stack's mixer and MLP into the cell's scales."""
        return (stack, stack + 1) if self.share_scales else (2 * stack, 2 * stack + 1)


class Blocks:
    """Builds the parts of a cell. Pass a subclass to the network to replace a part everywhere."""

    def configured(self, config: PolyNeXtConfig) -> "Blocks":
        """These blocks with the options of an architecture."""
        return self

    def norm(self, size: Size) -> NormMaker:
        """A function that builds a norm from a number of channels, for feature maps of this size."""
        return LayerNorm2d

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return PolyAttention(stage.width, norm=self.norm(size), **stage.attention, **dd)
        return PolyConv(stage.width, stage.conv_ratio, stage.coarse_kernel, norm=self.norm(size), **dd)

    def mlp(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return PolyMLP(stage.width, stage.mlp_ratio, norm=self.norm(size), **dd)

    def scale(self, config: PolyNeXtConfig, stage: StageConfig, **dd: Any) -> nn.Module:
        return SigmoidScale(config.scale_logits, **dd)

    def skip(self, stage: StageConfig, **dd: Any) -> nn.Module:
        return MultiInputSkip(stage.width, **dd)

    def cell_norm(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return self.norm(size)(stage.width, **dd)

    def downsampling(self, config: PolyNeXtConfig, width_in: int, width_out: int, **dd: Any) -> nn.Module:
        return Downsampling(width_in, width_out, config.full_downsampling, **dd)

    def head(self, channels: int, num_classes: int, **options: Any) -> nn.Module:
        return PolyHead(channels, num_classes, **options)


class FullyPolynomialBlocks(Blocks):
    """Blocks whose norms have running statistics, so that inference is a polynomial of the image (Section 4.6)."""

    # The variance that a Kaiming-initialised PolyConv gives an input of variance 1, the largest growth in a network.
    # With smaller initial statistics, an untrained network would overflow in eval mode.
    initial_var = 64.0

    beta = share_statistics = False

    def configured(self, config: PolyNeXtConfig) -> Blocks:
        blocks = copy.copy(self)
        blocks.beta, blocks.share_statistics = config.norm_beta, config.share_statistics
        return blocks

    def norm(self, size: Size) -> NormMaker:
        norm = SyncPositionNorm2d if self.share_statistics else PositionNorm2d
        return partial(norm, size=size, beta=self.beta, initial_var=self.initial_var)

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "conv":
            return super().mixer(stage, size, **dd)
        return PolyAttention(
            stage.width,
            normalisation="row_sum",
            size=size,
            norm=self.norm(size),
            out_norm=self.norm(size),
            row_norm=SyncRowSumNorm if self.share_statistics else RowSumNorm,
            **stage.attention,
            **dd,
        )


class Downsampling(nn.Module):
    """Halves the resolution and changes the width of the two skip paths, each by its own convolutions.

    The older path has a separable convolution (depthwise 3x3, then 1x1), the newer path a separable or a full 3x3 one.
    """

    def __init__(self, width_in: int, width_out: int, full: bool, **dd: Any):
        super().__init__()
        self.older = self.separable(width_in, width_out, **dd)
        self.newer: nn.Module = self.separable(width_in, width_out, **dd)
        if full:
            self.newer = nn.Conv2d(width_in, width_out, 3, stride=2, padding=1, bias=False, **dd)
            init_kaiming(self.newer)

    @staticmethod
    def separable(width_in: int, width_out: int, **dd: Any) -> nn.Sequential:
        depthwise = DepthwiseConv2d(width_in, width_in, 3, stride=2, **dd)
        pointwise = PointwiseConv2d(width_in, width_out, **dd)
        init_kaiming(depthwise, pointwise)
        return nn.Sequential(depthwise, pointwise)

    def forward(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        return self.older(older), self.newer(newer)
