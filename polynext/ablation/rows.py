"""Every row of the paper's ablation tables, and a few more, as a change to the baseline. `ROWS` lists them all."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import nn

from polynext.ablation.parts import (
    AddedHead,
    FineConv,
    FusedConv,
    FusedMLP,
    Fusion,
    GeluMLP,
    NewestInput,
    SeparableConv,
    SingleDownsampling,
    StandardAttention,
    UnflippedConv,
    addition,
    gelu_after_product,
    gelu_both_branches,
    gelu_one_branch,
)
from polynext.ablation.setup import Setup, widened, with_blocks
from polynext.models.network import (
    Blocks,
    Downsampling,
    FullyPolynomialBlocks,
    PolyNeXtConfig,
    Size,
    StageConfig,
)
from polynext.models.polynext import HALVING, falling
from polynext.nn import LayerScale, LearnableScale, PolyAttention, PolyConv
from polynext.recipes import recipe

Table = Literal["modules", "stabilisation", "recipes", "further"]
Change = Callable[[Setup], Setup]


@dataclass(frozen=True)
class Row:
    """One ablation: `name` for users, and what it changes in the baseline of its family."""

    name: str
    table: Table
    family: str
    what: str
    change: Change


# Modules (Table 3)


class WithConv(Blocks):
    """Another module in place of PolyConv, built from its width, ratio and coarse kernel."""

    def __init__(self, conv: Callable[..., nn.Module]):
        self.conv = conv

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return super().mixer(stage, size, **dd)
        return self.conv(stage.width, stage.conv_ratio, stage.coarse_kernel, norm=self.norm(size), **dd)


class Fused(WithConv):
    """Something else than the Hadamard product in every PolyConv and PolyMLP."""

    def __init__(self, fuse: Fusion):
        super().__init__(partial(FusedConv, fuse=fuse))
        self.fuse = fuse

    def mlp(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return FusedMLP(stage.width, stage.mlp_ratio, norm=self.norm(size), fuse=self.fuse, **dd)


class Added(Fused):
    """No product anywhere: what is left that is not linear are the norms."""

    def __init__(self) -> None:
        super().__init__(addition)

    def head(self, channels: int, num_classes: int, **options: Any) -> nn.Module:
        return AddedHead(channels, num_classes, **options)


class WithGeluMLP(Blocks):
    def __init__(self, post_norm: bool):
        self.post_norm = post_norm

    def mlp(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        norm = self.norm(size) if self.post_norm else nn.Identity
        return GeluMLP(stage.width, stage.mlp_ratio, norm=norm, **dd)


class WithAttention(Blocks):
    """Another module in place of PolyAttention, built from the width."""

    def __init__(self, attention: Callable[..., nn.Module]):
        self.attention = attention

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return self.attention(stage.width, norm=self.norm(size), **dd)
        return super().mixer(stage, size, **dd)


def without_coarse_kernel(conv: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda channels, ratio, coarse_kernel, **options: conv(channels, ratio, **options)


def standard_attention(channels: int, **options: Any) -> nn.Module:
    """Standard attention has four projections to PolyAttention's three: three quarters of the heads cost the same."""
    heads = max(1, round(0.75 * math.ceil(channels / 64)))
    return StandardAttention(channels, heads, **options)


def with_warmup(setup: Setup) -> Setup:
    """At least a sixtieth of the run (five epochs of 300) as warmup."""
    train = setup.train
    epochs = max(train.schedule.warmup_epochs, math.ceil(train.epochs / 60))
    return replace(setup, train=replace(train, schedule=replace(train.schedule, warmup_epochs=epochs)))


def gelu_mlp_with_norm(setup: Setup) -> Setup:
    return with_warmup(with_blocks(setup, WithGeluMLP, post_norm=True))


MODULES = [
    Row("mlp-gelu", "modules", "cpolynext", "PolyMLP -> MLP+GELU, post-norm, warmup", gelu_mlp_with_norm),
    Row(
        "sepconv-gelu", "modules", "cpolynext", "PolyConv -> SepConv+GELU",
        lambda s: with_blocks(s, WithConv, conv=without_coarse_kernel(SeparableConv)),
    ),
    Row(
        "gelu-one-branch", "modules", "cpolynext", "GELU on one branch",
        lambda s: with_blocks(s, Fused, fuse=gelu_one_branch),
    ),
    Row(
        "gelu-after-product", "modules", "cpolynext", "GELU after the product",
        lambda s: with_blocks(s, Fused, fuse=gelu_after_product),
    ),
    Row(
        "gelu-both-branches", "modules", "cpolynext", "GELU on both branches",
        lambda s: with_blocks(s, Fused, fuse=gelu_both_branches),
    ),
    Row(
        "fine-only", "modules", "cpolynext", "fine branch only",
        lambda s: with_blocks(s, WithConv, conv=without_coarse_kernel(FineConv)),
    ),
    Row(
        "addition", "modules", "cpolynext", "Hadamard -> addition",
        lambda s: with_blocks(s, Added),
    ),
    Row(
        "attention-mlp-gelu", "modules", "apolynext", "PolyMLP -> MLP+GELU",
        lambda s: with_blocks(s, WithGeluMLP, post_norm=False),
    ),
    Row(
        "standard-attention", "modules", "apolynext", "PolyAttn -> standard attention",
        lambda s: with_blocks(s, WithAttention, attention=standard_attention),
    ),
    Row(
        "softmax-kernel", "modules", "apolynext", "polynomial kernel -> softmax",
        lambda s: with_blocks(s, WithAttention, attention=partial(PolyAttention, normalisation="softmax")),
    ),
    Row(
        "degree-3", "modules", "apolynext", "kernel of degree 3",
        lambda s: with_blocks(s, WithAttention, attention=partial(PolyAttention, p=3)),
    ),
    Row(
        "degree-5", "modules", "apolynext", "kernel of degree 5",
        lambda s: with_blocks(s, WithAttention, attention=partial(PolyAttention, p=5)),
    ),
]  # fmt: skip


# Stabilisation (Table 4)


class WithLearnableScale(Blocks):
    """Free scalars that start where Sigmoid-Scale does."""

    def scale(self, config: PolyNeXtConfig, stage: StageConfig, **dd: Any) -> nn.Module:
        return LearnableScale([1 / (1 + math.exp(-logit)) for logit in config.scale_logits], **dd)


class WithLayerScale(Blocks):
    def __init__(self, start: float):
        self.start = start

    def scale(self, config: PolyNeXtConfig, stage: StageConfig, **dd: Any) -> nn.Module:
        return LayerScale(stage.width, len(config.scale_logits), self.start, **dd)


class SingleInput(Blocks):
    """Each cell sees the cell before it only."""

    def skip(self, stage: StageConfig, **dd: Any) -> nn.Module:
        return NewestInput()

    def downsampling(self, config: PolyNeXtConfig, width_in: int, width_out: int, **dd: Any) -> nn.Module:
        return SingleDownsampling(Downsampling(width_in, width_out, config.full_downsampling, **dd).newer)


class WithoutCellNorm(Blocks):
    def cell_norm(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return nn.Identity()


STABILISATION = [
    Row(
        "learnable-scale", "stabilisation", "cpolynext", "Sigmoid-Scale -> learnable scalar",
        lambda s: with_blocks(s, WithLearnableScale),
    ),
    Row(
        "layerscale-small", "stabilisation", "cpolynext", "Sigmoid-Scale -> LayerScale 1e-6",
        lambda s: with_blocks(s, WithLayerScale, start=1e-6),
    ),
    Row(
        "layerscale-one", "stabilisation", "cpolynext", "Sigmoid-Scale -> LayerScale 1.0",
        lambda s: with_blocks(s, WithLayerScale, start=1.0),
    ),
    Row(
        "single-input", "stabilisation", "cpolynext", "no multi-input skip",
        lambda s: with_blocks(s, SingleInput),
    ),
    Row(
        "no-cell-norm", "stabilisation", "cpolynext", "no norm before the cell",
        lambda s: with_blocks(s, WithoutCellNorm),
    ),
    Row("wider-2", "stabilisation", "cpolynext", "wider, 2 stacks a cell", partial(widened, stacks=2)),
    Row("wider-1", "stabilisation", "cpolynext", "wider, 1 stack a cell", partial(widened, stacks=1)),
]  # fmt: skip


# Cross-recipe (Table 5). Optimiser: with its rate, decay, clipping and warmup. Regularisation: everything else.


def optimizer_of(source: str) -> Change:
    def change(setup: Setup) -> Setup:
        theirs, train = recipe(source), setup.train
        warmup = math.ceil(theirs.schedule.warmup_epochs * train.epochs / theirs.epochs)
        schedule = replace(theirs.schedule, warmup_epochs=warmup)
        return replace(setup, train=replace(train, optimizer=theirs.optimizer, schedule=schedule))

    return change


def regularisation_of(source: str) -> Change:
    def change(setup: Setup) -> Setup:
        theirs, train = recipe(source), setup.train
        model = replace(train.model, drop_path=theirs.model.drop_path, dropout=theirs.model.dropout)
        return replace(setup, train=replace(train, model=model, augment=theirs.augment, ema=theirs.ema))

    return change


def both(*changes: Change) -> Change:
    def change(setup: Setup) -> Setup:
        for one in changes:
            setup = one(setup)
        return setup

    return change


RECIPES = [
    Row(
        "cpolynext-convformer-optimizer", "recipes", "cpolynext-s", "CPolyNeXt, ConvFormer's optimiser",
        optimizer_of("convformer_s18"),
    ),
    Row(
        "apolynext-convformer-optimizer", "recipes", "apolynext-s", "APolyNeXt, ConvFormer's optimiser",
        optimizer_of("convformer_s18"),
    ),
    Row(
        "convformer-our-optimizer", "recipes", "convformer", "ConvFormer-S18, our optimiser",
        optimizer_of("cpolynext_small"),
    ),
    Row(
        "convformer-our-regularisation", "recipes", "convformer", "ConvFormer-S18, our regularisation",
        regularisation_of("cpolynext_small"),
    ),
    Row(
        "convformer-our-recipe", "recipes", "convformer", "ConvFormer-S18, our full recipe",
        both(optimizer_of("cpolynext_small"), regularisation_of("cpolynext_small")),
    ),
    Row(
        "caformer-our-optimizer", "recipes", "caformer", "CAFormer-S18, our optimiser",
        optimizer_of("apolynext_small"),
    ),
    Row(
        "caformer-our-regularisation", "recipes", "caformer", "CAFormer-S18, our regularisation",
        regularisation_of("apolynext_small"),
    ),
    Row(
        "caformer-our-recipe", "recipes", "caformer", "CAFormer-S18, our full recipe",
        both(optimizer_of("apolynext_small"), regularisation_of("apolynext_small")),
    ),
]  # fmt: skip


# What a reader may ask further; the paper has no figures for these.


def with_scales(logits: Callable[[int], tuple[float, ...]]) -> Change:
    """Other initial logits of Sigmoid-Scale, as many as the network has."""

    def change(setup: Setup) -> Setup:
        assert setup.architecture is not None
        entries = len(setup.architecture.scale_logits)
        return replace(setup, architecture=replace(setup.architecture, scale_logits=logits(entries)))

    return change


def halving(entries: int) -> tuple[float, ...]:
    """sigmoid(lambda) = 1/2, 1/2, 1/4, 1/8, ..."""
    shares = (HALVING[0], *(2.0**-i for i in range(1, entries)))
    return tuple(math.log(p / (1 - p)) for p in shares[:entries])


FURTHER = [
    Row(
        "no-flip", "further", "cpolynext", "no channel flip",
        lambda s: with_blocks(s, WithConv, conv=UnflippedConv),
    ),
    Row(
        "no-dilation", "further", "cpolynext", "coarse branch without dilation",
        lambda s: with_blocks(s, WithConv, conv=partial(PolyConv, dilation=1)),
    ),
    Row("scales-half", "further", "cpolynext", "all scales start at 1/2", with_scales(lambda n: (0.0,) * n)),
    Row("scales-falling", "further", "cpolynext", "logits start at 0, -1/2, -1, ...", with_scales(falling)),
    Row("scales-halving", "further", "cpolynext", "scales start at 1/2, 1/2, 1/4, 1/8, ...", with_scales(halving)),
    Row(
        "position-norm", "further", "cpolynext", "LayerNorm -> position norm (fully polynomial)",
        lambda s: replace(s, blocks=FullyPolynomialBlocks()),
    ),
    Row(
        "degree-2", "further", "apolynext", "kernel of degree 2",
        lambda s: with_blocks(s, WithAttention, attention=partial(PolyAttention, p=2)),
    ),
    Row(
        "degree-6", "further", "apolynext", "kernel of degree 6",
        lambda s: with_blocks(s, WithAttention, attention=partial(PolyAttention, p=6)),
    ),
    Row(
        "attention-position-norm", "further", "apolynext", "LayerNorm -> position norm, l1 -> row sums",
        lambda s: replace(s, blocks=FullyPolynomialBlocks()),
    ),
]  # fmt: skip

ROWS: dict[str, Row] = {row.name: row for row in [*MODULES, *STABILISATION, *RECIPES, *FURTHER]}
TABLES: dict[str, list[Row]] = {
    "modules": MODULES,
    "stabilisation": STABILISATION,
    "recipes": RECIPES,
    "further": FURTHER,
}
