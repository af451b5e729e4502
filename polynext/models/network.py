"""PolyNeXt: activation-free vision backbones.

Paper: "Activation-Free Backbones for Image Recognition: Polynomial Alternatives within MetaFormer-Style Vision Models",
Wang, Gregory and Chrysos, ICML 2026. Section 3.5 and Table S2 describe the network assembled here from the
operators in `polynext.nn`.

    stem -> stage 1 -> ... -> stage 4 -> norm -> PolyHead
    stage = [downsampling of both skip paths] + cells
    cell  = norm(multi-input skip of the two cells before) + stacks
    stack = mixer (PolyConv or PolyAttention), then PolyMLP, each under Sigmoid-Scale
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.backbone import Backbone, check_image_size
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
    """One stage: `cells` cells of `stacks` stacks each, at one width.

    `heads` of attention are one for each 64 channels unless given, and see the whole map unless there is a `window`.
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


@dataclass(frozen=True, kw_only=True)
class PolyNeXtConfig:
    """A whole network: its stages and what they share.

    `scale_logits` are the Sigmoid-Scale's initial logits, of which a cell uses as many as it has sublayers. With
    `share_scales` the MLP of a stack and the mixer of the next use one and the same. The last two are of the fully
    polynomial norms: whether they have a beta, which the published networks do not, and whether the processes of a
    distributed run share their statistics, which the paper's do not.
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
        """Around the image; none if the stem takes patches side by side, which cover it without."""
        return 0 if self.stem_kernel == self.stem_stride else self.stem_kernel // 2

    @property
    def stride(self) -> int:
        """By how much the network reduces an image."""
        return self.stem_stride * 2 ** (len(self.stages) - 1)

    def scale_indices(self, stack: int) -> tuple[int, int]:
        """The Sigmoid-Scale entries of a stack's mixer and MLP."""
        return (stack, stack + 1) if self.share_scales else (2 * stack, 2 * stack + 1)


class Blocks:
    """How the parts of a cell are built; hand the network another one to change a part everywhere."""

    def fitted(self, config: PolyNeXtConfig) -> "Blocks":
        """These, as the architecture wants them."""
        return self

    def norm(self, size: Size) -> NormMaker:
        """Makes a norm from a number of channels, for feature maps of this size."""
        return LayerNorm2d

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return PolyAttention(stage.width, stage.heads, window=stage.window, norm=self.norm(size), **dd)
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
    """Norms with running statistics, so that inference is additions and multiplications only (Section 4.6)."""

    # Before it has seen a batch, a norm should divide by too much rather than too little: then an untrained network
    # is quiet in eval mode, where it would overflow. 64 is what a Kaiming-initialised PolyConv makes of variance 1,
    # the largest growth in a network.
    initial_var = 64.0

    beta = shared = False

    def fitted(self, config: PolyNeXtConfig) -> Blocks:
        fitted = copy.copy(self)
        fitted.beta, fitted.shared = config.norm_beta, config.share_statistics
        return fitted

    def norm(self, size: Size) -> NormMaker:
        norm = SyncPositionNorm2d if self.shared else PositionNorm2d
        return partial(norm, size=size, beta=self.beta, initial_var=self.initial_var)

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            norm = self.norm(size)
            return PolyAttention(
                stage.width,
                stage.heads,
                normalisation="row_sum",
                size=size,
                window=stage.window,
                norm=norm,
                out_norm=norm,
                row_norm=SyncRowSumNorm if self.shared else RowSumNorm,
                **dd,
            )
        return super().mixer(stage, size, **dd)


class Stack(nn.Module):
    """A spatial mixer and a PolyMLP, added to the residual stream under two of their cell's scales (Equation 7).

        x = x + s_mixer mixer(x)
        y = x + s_mlp mlp(x)

    Stochastic depth leaves branches out of some images in training.
    """

    def __init__(self, mixer: nn.Module, mlp: nn.Module, scale_indices: tuple[int, int], drop_path_rate: float = 0.0):
        super().__init__()
        self.mixer = mixer
        self.mlp = mlp
        self.scale_indices = scale_indices
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0 else nn.Identity()

    def forward(self, x: Tensor, mixer_scale: Tensor, mlp_scale: Tensor) -> Tensor:
        x = torch.addcmul(x, mixer_scale, self.drop_path(self.mixer(x)))
        return torch.addcmul(x, mlp_scale, self.drop_path(self.mlp(x)))


class Cell(nn.Module):
    """Stacks on the normed combination of the two cell outputs before (Section 3.4, Figure 3).

        x = norm(s0 older + s1 newer)    (Equation 8)
        y = stacks(x)

    Its Sigmoid-Scale holds the scales of all its stacks.
    """

    def __init__(
        self,
        config: PolyNeXtConfig,
        stage: StageConfig,
        blocks: Blocks,
        size: Size,
        drop_path_rate: float,
        **dd: Any,
    ):
        super().__init__()
        self.skip: Any = blocks.skip(stage, **dd)
        self.norm: Any = blocks.cell_norm(stage, size, **dd)
        self.scale: Any = blocks.scale(config, stage, **dd)
        self.stacks: Any = nn.ModuleList(
            Stack(
                blocks.mixer(stage, size, **dd), blocks.mlp(stage, size, **dd), config.scale_indices(j), drop_path_rate
            )
            for j in range(stage.stacks)
        )

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.norm(self.skip(older, newer))
        scales = self.scale.factors()
        for stack in self.stacks:
            mixer, mlp = stack.scale_indices
            x = stack(x, scales[mixer], scales[mlp])
        return x


class Downsampling(nn.Module):
    """Halves the map and sets the new width, on each of the two skip paths by its own convolutions.

    The older path is separable (depthwise 3x3, then 1x1); the newer one is separable too or a full 3x3.
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


class Stage(nn.Module):
    """Cells at one resolution. Takes and returns the two newest cell outputs, the older one first."""

    def __init__(self, downsampling: nn.Module | None, cells: list[Cell]):
        super().__init__()
        self.downsampling = downsampling
        self.cells = nn.ModuleList(cells)

    def forward(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        if self.downsampling is not None:
            older, newer = self.downsampling(older, newer)
        for cell in self.cells:
            older, newer = newer, cell(older, newer)
        return older, newer


class Stages(nn.Sequential):
    """The stages in a row, from the stem's output, both skip inputs of the first cell, to the last cell's."""

    def forward(self, x: Tensor) -> Tensor:
        older, newer = x, x
        for stage in self:
            older, newer = stage(older, newer)
        return newer


class PolyNeXt(Backbone):
    """The backbone and its classifier, with the interface of a timm model.

    Args:
        cfg: the architecture.
        in_chans: image channels.
        num_classes: 0 for no classifier.
        global_pool: "avg", "max", or "" for a map of logits.
        img_size: what the fully polynomial norms are built for; the LayerNorm models take any size.
        output_stride: the largest reduction; stages that would go beyond it keep their resolution and are dilated.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last cell, rising linearly from 0 at the first.
        blocks: how the parts of a cell are built.
    """

    def __init__(
        self,
        cfg: PolyNeXtConfig,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        img_size: int | tuple[int, int] = 224,
        output_stride: int | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        blocks: Blocks | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_chans, num_classes, drop_rate)
        dd: Any = {"device": device, "dtype": dtype}
        blocks = (blocks or Blocks()).fitted(cfg)
        self.config = cfg
        self.fully_polynomial = isinstance(blocks, FullyPolynomialBlocks)
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else (img_size[0], img_size[1])
        strides = stage_strides(cfg, output_stride)
        self.stride = math.prod(strides)
        check_image_size(self.img_size, self.stride)

        padding = cfg.stem_padding
        height, width = ((n + 2 * padding - cfg.stem_kernel) // cfg.stem_stride + 1 for n in self.img_size)
        self.stem = nn.Conv2d(
            in_chans, cfg.stages[0].width, cfg.stem_kernel, cfg.stem_stride, padding, bias=False, **dd
        )

        last_cell = sum(s.cells for s in cfg.stages) - 1
        rates = iter([drop_path_rate * i / last_cell for i in range(last_cell)] + [drop_path_rate])
        self.stages = Stages()
        reduction, dilation = 1, 1
        for i, (stage, stride) in enumerate(zip(cfg.stages, strides, strict=True)):
            reduction *= stride
            downsampling = None
            if i > 0:
                downsampling = blocks.downsampling(cfg, cfg.stages[i - 1].width, stage.width, **dd)
                height, width = math.ceil(height / stride), math.ceil(width / stride)
            cells = [Cell(cfg, stage, blocks, (height, width), next(rates), **dd) for _ in range(stage.cells)]
            self.stages.append(Stage(downsampling, cells))
            if i > 0 and stride == 1:
                dilation *= 2
                dilate(self.stages[-1], dilation)
            self.feature_info.append(dict(num_chs=stage.width, reduction=reduction, module=f"stages.{i}"))

        self.num_features = cfg.stages[-1].width
        sublayers = sum(2 * s.cells * s.stacks for s in cfg.stages)
        self.num_layers = sublayers + 1 + (len(cfg.stages) - 1) + 1  # mixers and MLPs, stem, downsamplings, head
        self.norm = blocks.norm((height, width))(self.num_features, **dd)
        head: Any = blocks.head(self.num_features, num_classes, pool=global_pool, drop_rate=drop_rate, **dd)
        self.head, self.head_hidden_size = head, head.channels

    def forward_features(self, x: Tensor) -> Tensor:
        self.check(x)
        x = x.contiguous(memory_format=torch.channels_last)  # where 1x1 convolutions and norms need no copy
        return self.norm(self.stages(self.stem(x)))

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check(x)
        older = newer = self.stem(x.contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            older, newer = stage(older, newer)
            yield newer

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups from the stem to the head, by stage or by cell, for layer-wise learning rates."""
        if coarse:
            return dict(stem=r"^stem", blocks=[(r"^stages\.(\d+)", None), (r"^norm", (99999,))])
        return dict(
            stem=r"^stem",
            blocks=[
                (r"^stages\.(\d+)\.downsampling", (0,)),
                (r"^stages\.(\d+)\.cells\.(\d+)", None),
                (r"^norm", (99999,)),
            ],
        )


def stage_strides(config: PolyNeXtConfig, output_stride: int | None) -> list[int]:
    """By how much each stage reduces the resolution, the first with the stem: all of them 2 after it, or 1 where the
    output stride is reached."""
    strides = [config.stem_stride] + [2] * (len(config.stages) - 1)
    possible = [math.prod(strides[: i + 1]) for i in range(len(strides))]
    if output_stride is None:
        return strides
    if output_stride not in possible:
        raise PolyNeXtError(
            f"the network got output_stride={output_stride}: choose one of {', '.join(map(str, possible))}."
        )
    reached = possible.index(output_stride)
    return strides[: reached + 1] + [1] * (len(strides) - reached - 1)


def dilate(stage: nn.Module, dilation: int) -> None:
    """Replaces a stage's stride by dilation: its kernels then see what they would at the lower resolution."""
    for conv in stage.modules():
        if isinstance(conv, nn.Conv2d) and conv.kernel_size != (1, 1):
            factor = dilation // 2 if conv.stride == (2, 2) else dilation
            conv.stride = (1, 1)
            conv.dilation = (conv.dilation[0] * factor,) * 2
            conv.padding = (int(conv.padding[0]) * factor,) * 2
