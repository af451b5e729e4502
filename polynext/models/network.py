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
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from timm.layers import DropPath
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.running import (
    Memory,
    compiles_training,
    compute_again,
    runs_lean,
    take_any_batch,
    wants_whole_batches,
)
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
    SigmoidScale,
    init_kaiming,
)
from polynext.nn.inference import add_scaled, cached_parts, infers_on_cpu
from polynext.nn.lean import Recipe, add_branch, keep_products

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
        return partial(PositionNorm2d, size=size, beta=self.beta, initial_var=self.initial_var, shared=self.shared)

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
                shared=self.shared,
                **dd,
            )
        return super().mixer(stage, size, **dd)


class Stack(nn.Module):
    """A spatial mixer and a PolyMLP, added to the residual stream under two of their cell's scales.

        x = x + s_mixer mixer(x)
        y = x + s_mlp mlp(x)

    The scales are handed in, as data: all stacks of a stage are then one function, and compiled once. With stochastic
    depth they are one for each image (B, 1, 1, 1), zero where the branch is left out.
    """

    def __init__(self, mixer: nn.Module, mlp: nn.Module, scale_indices: tuple[int, int]):
        super().__init__()
        self.mixer = mixer
        self.mlp = mlp
        self.scale_indices = scale_indices
        self.lean = False

    def forward(self, x: Tensor, mixer_scale: Tensor, mlp_scale: Tensor) -> Tensor:
        if self.lean and not torch.jit.is_scripting() and compiles_training():
            return keep_products(self.add_branches, x, mixer_scale, mlp_scale)
        return self.add_branches(x, mixer_scale, mlp_scale)

    def add_branches(self, x: Tensor, mixer_scale: Tensor, mlp_scale: Tensor) -> Tensor:
        x = torch.addcmul(x, mixer_scale, self.mixer(x))
        return add_scaled(x, mlp_scale, self.mlp(x))


class Entry(nn.Module):
    """`norm(skip(older, newer))`: a module for the sake of its `compile`, without weights of its own."""

    @torch.jit.unused
    def forward(self, skip: nn.Module, norm: nn.Module, older: Tensor, newer: Tensor) -> Tensor:
        return norm(skip(older, newer))


class EnteredCell(nn.Module):
    """How the two cell outputs before enter a cell, whatever it does with them."""

    def __init__(self, skip: nn.Module, norm: nn.Module):
        super().__init__()
        self.entry = Entry()
        self.skip: Any = skip
        self.norm: Any = norm
        self.compiled = False

    def enter(self, older: Tensor, newer: Tensor) -> Tensor:
        if self.compiled and not torch.jit.is_scripting() and not torch.is_grad_enabled():
            older = older.view_as(newer)  # in the first cell both are the stem's: to a compiler another program
            take_any_batch(older, newer)
            return self.entry(self.skip, self.norm, older, newer)
        return self.norm(self.skip(older, newer))


class Cell(EnteredCell):
    """Stacks on the normed combination of the two cell outputs before (Section 3.4, Figure 3)."""

    def __init__(
        self,
        config: PolyNeXtConfig,
        stage: StageConfig,
        blocks: Blocks,
        size: Size,
        drop_path_rate: float,
        **dd: Any,
    ):
        super().__init__(blocks.skip(stage, **dd), blocks.cell_norm(stage, size, **dd))
        self.scale: Any = blocks.scale(config, stage, **dd)
        self.lean = False
        self.drops = drop_path_rate > 0
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0 else nn.Identity()
        self.stacks: Any = nn.ModuleList(
            Stack(blocks.mixer(stage, size, **dd), blocks.mlp(stage, size, **dd), config.scale_indices(j))
            for j in range(stage.stacks)
        )

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        if self.lean and not torch.jit.is_scripting() and not self.compiled and runs_lean():
            return self.lean_forward(older, newer)
        x = self.enter(older, newer)
        scales = self.scale.factors()
        for stack in self.stacks:
            mixer_index, mlp_index = stack.scale_indices
            mixer_scale, mlp_scale = self.dropped(scales[mixer_index], x), self.dropped(scales[mlp_index], x)
            if self.compiled and not torch.jit.is_scripting():
                take_any_batch(x, mixer_scale, mlp_scale)
            x = stack(x, mixer_scale, mlp_scale)
        return x

    @torch.jit.unused
    def lean_forward(self, older: Tensor, newer: Tensor) -> Tensor:
        """The same, keeping little besides the matrix products: see `polynext.nn.lean`."""
        x = Recipe(
            lambda older, newer: self.norm(self.skip(older, newer)),
            (older, newer),
            (*self.skip.parameters(), *self.norm.parameters()),
        )
        scales = self.scale.factors()
        for stack in self.stacks:
            for branch, index in zip((stack.mixer, stack.mlp), stack.scale_indices, strict=True):
                drop = self.drop_path(older.new_ones(len(older), 1, 1, 1)) if self.training and self.drops else None
                x = add_branch(x, branch, scales[index], drop)
        return x.value()

    def dropped(self, scale: Tensor, x: Tensor) -> Tensor:
        """A scale under stochastic depth: one for each image."""
        if self.training and self.drops:
            return self.drop_path(scale.expand(x.shape[0], -1 if scale.ndim else 1, 1, 1))
        return scale


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
        depthwise = DepthwiseConv2d(width_in, 3, stride=2, **dd)
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
        self.grad_checkpointing = False

    @torch.jit.unused
    def set_memory(self, memory: Memory) -> None:
        self.grad_checkpointing = memory == "least"
        cells: Any = self.cells
        for cell in cells:
            for part in (cell, *cell.stacks):
                part.lean = memory == "lean"

    def forward(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        if self.downsampling is not None:
            older, newer = self.downsampling(older, newer)
        if not torch.jit.is_scripting() and infers_on_cpu(newer) and not torch.compiler.is_compiling():
            return self.in_parts(older, newer)
        return self.through_cells(older, newer)

    @torch.jit.unused
    def in_parts(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        """The same, a few images at a time: as many as the processor's caches hold the maps of."""
        parts = cached_parts(len(newer), newer.shape[1:].numel() * newer.element_size())
        if parts < 2 or any(wants_whole_batches(module) for module in self.cells.modules()):
            return self.through_cells(older, newer)
        done = map(self.through_cells, older.tensor_split(parts), newer.tensor_split(parts))
        older, newer = (torch.cat(maps) for maps in zip(*done, strict=True))
        return older, newer

    def through_cells(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        for cell in self.cells:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                older, newer = newer, compute_again(cell, older, newer)
            else:
                older, newer = newer, cell(older, newer)
        return older, newer


class PolyNeXt(nn.Module):
    """The backbone and its classifier, with the interface of a timm model.

    Args:
        cfg: the architecture.
        in_chans: image channels.
        num_classes: 0 for no classifier.
        global_pool: "avg", or "" for a map of logits.
        img_size: what the fully polynomial norms are built for; the LayerNorm models take any size.
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
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        blocks: Blocks | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        dd: Any = {"device": device, "dtype": dtype}
        blocks = (blocks or Blocks()).fitted(cfg)
        self.config, self.stride = cfg, cfg.stride
        self.fully_polynomial = isinstance(blocks, FullyPolynomialBlocks)
        self.in_chans, self.num_classes, self.drop_rate = in_chans, num_classes, drop_rate
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else (img_size[0], img_size[1])
        check_image_size(self.img_size, cfg.stride)

        padding = cfg.stem_padding
        height, width = ((n + 2 * padding - cfg.stem_kernel) // cfg.stem_stride + 1 for n in self.img_size)
        self.stem = nn.Conv2d(
            in_chans, cfg.stages[0].width, cfg.stem_kernel, cfg.stem_stride, padding, bias=False, **dd
        )

        last_cell = sum(s.cells for s in cfg.stages) - 1
        rates = iter([drop_path_rate * i / last_cell for i in range(last_cell)] + [drop_path_rate])
        self.stages = nn.ModuleList()
        self.feature_info = []
        for i, stage in enumerate(cfg.stages):
            downsampling = None
            if i > 0:
                downsampling = blocks.downsampling(cfg, cfg.stages[i - 1].width, stage.width, **dd)
                height, width = math.ceil(height / 2), math.ceil(width / 2)
            cells = [Cell(cfg, stage, blocks, (height, width), next(rates), **dd) for _ in range(stage.cells)]
            self.stages.append(Stage(downsampling, cells))
            self.feature_info.append(dict(num_chs=stage.width, reduction=cfg.stem_stride * 2**i, module=f"stages.{i}"))

        self.num_features = cfg.stages[-1].width
        self.norm = blocks.norm((height, width))(self.num_features, **dd)
        self.head: Any = blocks.head(self.num_features, num_classes, pool=global_pool, drop_rate=drop_rate, **dd)
        self.head_hidden_size = self.head.hidden

    @property
    @torch.jit.unused
    def num_layers(self) -> int:
        """Layers as the paper counts depth: every mixer and PolyMLP, the stem, the downsamplings, the head."""
        sublayers = sum(2 * s.cells * s.stacks for s in self.config.stages)
        return sublayers + 1 + (len(self.config.stages) - 1) + 1

    @property
    @torch.jit.unused
    def log2_degree(self) -> float:
        """Base-2 logarithm of the polynomial degree in the image, norms aside as in the paper's Appendix A."""
        degrees: list[Any] = [m.degree for m in self.modules() if hasattr(m, "degree")]
        return sum(map(math.log2, degrees))

    def fold(self) -> "PolyNeXt":
        """A copy for inference with its constants absorbed: see `polynext.acceleration.folding`."""
        from polynext.acceleration.folding import fold

        return fold(self)

    def forward_streams(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stem's output as both skip inputs of stage 1."""
        check_image(x, self.in_chans, self.stride)
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        return x, x

    def forward_features(self, x: Tensor) -> Tensor:
        older, newer = self.forward_streams(x)
        for stage in self.stages:
            older, newer = stage(older, newer)
        return self.norm(newer)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The last cell output of each stage in `indices` (all by default), after the final features if wanted.

        Args:
            indices: which stages; an int n means the last n.
            norm: apply the final norm to the last stage's output.
            stop_early: leave out the stages after the last one wanted.
            output_fmt: "NCHW" is all there is.
            intermediates_only: return just the list.
        """
        if output_fmt != "NCHW":
            raise PolyNeXtError(f"forward_intermediates got output_fmt={output_fmt!r}: PolyNeXt gives 'NCHW' only.")
        wanted, last = feature_take_indices(len(self.stages), indices)
        older, newer = self.forward_streams(x)
        intermediates = []
        for i, stage in enumerate(self.stages):
            if stop_early and i > last:
                break
            older, newer = stage(older, newer)
            if i in wanted:
                final = norm and i == len(self.stages) - 1
                intermediates.append(self.norm(newer) if final else newer)
        return intermediates if intermediates_only else (self.norm(newer), intermediates)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes what `forward_intermediates` does not need for these indices, and returns them as positive ones."""
        wanted, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.num_classes = 0
            self.head = nn.Identity()
        return wanted

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.head.reset(num_classes, global_pool)

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """timm's name for `set_memory("least")`."""
        set_memory(self, "least" if enable else "plain")

    @torch.jit.ignore
    def set_memory(self, memory: Memory) -> None:
        """What training keeps for the backward pass.

        "plain" is whatever PyTorch keeps. "lean" keeps little besides the matrix products and computes the rest
        again, cell by cell the same numbers: a third of the memory. "least" keeps the results of cells and computes
        each cell again.
        """
        set_memory(self, memory)

    @torch.jit.ignore
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

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Norms, Sigmoid-Scale, skip scales and attention scales: what scales the features and does not mix them."""
        return {name for name, p in self.named_parameters() if p.ndim == 1 or not name.endswith("weight")}


def set_memory(model: nn.Module, memory: Memory) -> None:
    """What training keeps for the backward pass in any network that ours is part of; see `PolyNeXt.set_memory`.

    Other networks can be "plain" or "least", if timm can compute their blocks again.
    """
    if memory not in get_args(Memory):
        raise PolyNeXtError(f"memory={memory!r} was given: choose {', '.join(get_args(Memory))}.")
    stages = [module for module in model.modules() if isinstance(module, Stage)]
    for stage in stages:
        stage.set_memory(memory)
    if stages:
        return
    checkpointing: Any = getattr(model, "set_grad_checkpointing", None)
    if memory == "lean" or (memory == "least" and checkpointing is None):
        raise PolyNeXtError(f"{type(model).__name__} has no form of memory {memory!r}: choose 'plain'.")
    if checkpointing is not None:
        checkpointing(memory == "least")


def check_image_size(size: Size, stride: int) -> None:
    if min(size[0], size[1]) < stride:
        raise PolyNeXtError(
            f"the network reduces images by {stride} but got {size[0]}x{size[1]} pixels: "
            f"give at least {stride}x{stride}, or take a low-resolution model such as cpolynext_lowres."
        )


@torch.fx.wrap
def check_image(x: Tensor, in_chans: int, stride: int) -> None:
    if torch.jit.is_tracing():  # a traced size is not a number
        return
    if x.ndim != 4 or x.shape[1] != in_chans:
        given = ", ".join([str(n) for n in x.shape])
        raise PolyNeXtError(
            f"the network takes (batch, {in_chans}, height, width) but got ({given}): "
            f"convert the images to {in_chans} channels, or build the network with in_chans for what you have."
        )
    check_image_size((x.shape[2], x.shape[3]), stride)
