"""PolyNeXt: activation-free vision backbones.

Paper: "Activation-Free Backbones for Image Recognition: Polynomial Alternatives within MetaFormer-Style Vision Models",
Wang, Gregory and Chrysos, ICML 2026. Section 3.5 and Table S2 describe the network assembled here from the
operators in `polynext.nn`.

    network = stem, stage 1, ..., stage 4, norm, PolyHead
    stage   = downsampling of both skip paths (not in stage 1), then cells
    cell    = norm of the multi-input skip of the two previous cells, then stacks
    stack   = mixer (PolyConv or PolyAttention), then PolyMLP, each added under a Sigmoid-Scale
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.backbone import Backbone, check_image_size
from polynext.models.blocks import Blocks, FullyPolynomialBlocks, PolyNeXtConfig, Size, StageConfig


class Stack(nn.Module):
    """A spatial mixer and a PolyMLP, each with a scaled residual connection (Equation 7).

        x = x + s_mixer * mixer(x)
        y = x + s_mlp * mlp(x)

    The scales are two of the cell's, at `scale_indices`. In training, stochastic depth drops branches of some images.
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
    """Stacks on the normalised multi-input skip of the two previous cells (Section 3.4, Figure 3).

        x = norm(s0 * older + s1 * newer)    (Equation 8)
        y = stacks(x)

    `scale` is the Sigmoid-Scale with the scales of all sublayers.
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
        self.stacks: Any = nn.ModuleList()
        for i in range(stage.stacks):
            mixer, mlp = blocks.mixer(stage, size, **dd), blocks.mlp(stage, size, **dd)
            self.stacks.append(Stack(mixer, mlp, config.scale_indices(i), drop_path_rate))

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.norm(self.skip(older, newer))
        scales = self.scale.factors()
        for stack in self.stacks:
            mixer, mlp = stack.scale_indices
            x = stack(x, scales[mixer], scales[mlp])
        return x


class Stage(nn.Module):
    """Cells at one resolution. Takes and returns the outputs of the last two cells, the older one first."""

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
    """All stages. The stem's output is both skip inputs of the first cell; returns the output of the last cell."""

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
        img_size: the image size of the fully polynomial norms. Models with LayerNorm take any size.
        output_stride: limit of the reduction. Stages beyond it keep the resolution and are dilated instead.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last cell, rising linearly from 0 at the first.
        blocks: builds the parts of a cell.
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
        blocks = (blocks or Blocks()).configured(cfg)
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
        x = x.contiguous(memory_format=torch.channels_last)  # 1x1 convolutions and norms then need no copy
        return self.norm(self.stages(self.stem(x)))

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check(x)
        older = newer = self.stem(x.contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            older, newer = stage(older, newer)
            yield newer

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's parameter groups for layer-wise learning rates: by stage if coarse, else by cell."""
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
    """The stride of the stem and of each later stage: 2, or 1 after the output stride is reached."""
    strides = [config.stem_stride] + [2] * (len(config.stages) - 1)
    possible = [math.prod(strides[: i + 1]) for i in range(len(strides))]
    if output_stride is None:
        return strides
    if output_stride not in possible:
        raise PolyNeXtError(f"output_stride is {output_stride}: choose one of {', '.join(map(str, possible))}.")
    reached = possible.index(output_stride)
    return strides[: reached + 1] + [1] * (len(strides) - reached - 1)


def dilate(stage: nn.Module, dilation: int) -> None:
    """Replaces a stage's stride by dilation. Its kernels keep the receptive field of the lower resolution."""
    for conv in stage.modules():
        if isinstance(conv, nn.Conv2d) and conv.kernel_size != (1, 1):
            factor = dilation // 2 if conv.stride == (2, 2) else dilation
            conv.stride = (1, 1)
            conv.dilation = (conv.dilation[0] * factor,) * 2
            conv.padding = (int(conv.padding[0]) * factor,) * 2
