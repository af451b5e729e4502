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
from polynext.ablation.setup import Setup, shortened, widened
from polynext.models.network import (
    Blocks,
    Downsampling,
    FullyPolynomialBlocks,
    PolyNeXtConfig,
    Size,
    StageConfig,
)
from polynext.models.polynext import falling, halving
from polynext.nn import LayerScale, LearnableScale, PolyAttention, PolyConv
from polynext.recipes import recipe

Table = Literal["modules", "stabilisation", "recipes", "dropin", "further"]
Change = Callable[[Setup], Setup]


@dataclass(frozen=True)
class Row:
    """One ablation: `name` for users, and what it changes in the baseline of its family."""

    name: str
    table: Table
    family: str
    what: str
    change: Change


def rows(table: Table, family: str, *entries: tuple[str, str, Change]) -> list[Row]:
    """Rows of one table and family, each by its name, what changes, and the change."""
    return [Row(name, table, family, what, change) for name, what, change in entries]


def built_by(blocks: Blocks) -> Change:
    return lambda setup: replace(setup, blocks=blocks)


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


def with_kernel(**options: Any) -> Change:
    return built_by(WithAttention(partial(PolyAttention, **options)))


def with_warmup(setup: Setup) -> Setup:
    """At least a sixtieth of the run (five epochs of 300) as warmup."""
    train = setup.train
    epochs = max(train.schedule.warmup_epochs, math.ceil(train.epochs / 60))
    return replace(setup, train=replace(train, schedule=replace(train.schedule, warmup_epochs=epochs)))


def gelu_mlp_with_norm(setup: Setup) -> Setup:
    return with_warmup(replace(setup, blocks=WithGeluMLP(post_norm=True)))


MODULES = [
    *rows(
        "modules", "cpolynext",
        ("mlp-gelu", "PolyMLP -> MLP+GELU, post-norm, warmup", gelu_mlp_with_norm),
        ("sepconv-gelu", "PolyConv -> SepConv+GELU", built_by(WithConv(without_coarse_kernel(SeparableConv)))),
        ("gelu-one-branch", "GELU on one branch", built_by(Fused(gelu_one_branch))),
        ("gelu-after-product", "GELU after the product", built_by(Fused(gelu_after_product))),
        ("gelu-both-branches", "GELU on both branches", built_by(Fused(gelu_both_branches))),
        ("fine-only", "fine branch only", built_by(WithConv(without_coarse_kernel(FineConv)))),
        ("addition", "Hadamard -> addition", built_by(Added())),
    ),
    *rows(
        "modules", "apolynext",
        ("attention-mlp-gelu", "PolyMLP -> MLP+GELU", built_by(WithGeluMLP(post_norm=False))),
        ("standard-attention", "PolyAttn -> standard attention", built_by(WithAttention(standard_attention))),
        ("softmax-kernel", "polynomial kernel -> softmax", with_kernel(normalisation="softmax")),
        ("degree-3", "kernel of degree 3", with_kernel(p=3)),
        ("degree-5", "kernel of degree 5", with_kernel(p=5)),
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


STABILISATION = rows(
    "stabilisation", "cpolynext",
    ("learnable-scale", "Sigmoid-Scale -> learnable scalar", built_by(WithLearnableScale())),
    ("layerscale-small", "Sigmoid-Scale -> LayerScale 1e-6", built_by(WithLayerScale(1e-6))),
    ("layerscale-one", "Sigmoid-Scale -> LayerScale 1.0", built_by(WithLayerScale(1.0))),
    ("single-input", "no multi-input skip", built_by(SingleInput())),
    ("no-cell-norm", "no norm before the cell", built_by(WithoutCellNorm())),
    ("wider-2", "wider, 2 stacks a cell", partial(widened, stacks=2)),
    ("wider-1", "wider, 1 stack a cell", partial(widened, stacks=1)),
)  # fmt: skip


# Cross-recipe (Table 5). Optimiser: with its rate, batch, decay, clipping and warmup. Regularisation: everything else.


def optimizer_of(source: str) -> Change:
    def change(setup: Setup) -> Setup:
        theirs, train = shortened(recipe(source), setup.train.epochs), setup.train
        if train.data.name == theirs.data.name:  # a rate goes with its batch, at its own scale
            train = replace(train, batch_size=theirs.batch_size, micro_batch=theirs.micro_batch)
        return replace(setup, train=replace(train, optimizer=theirs.optimizer, schedule=theirs.schedule))

    return change


def regularisation_of(source: str) -> Change:
    def change(setup: Setup) -> Setup:
        theirs, train = recipe(source), setup.train
        model = replace(train.model, drop_path=theirs.model.drop_path, dropout=theirs.model.dropout)
        return replace(setup, train=replace(train, model=model, augment=theirs.augment, ema=theirs.ema))

    return change


def recipe_of(source: str) -> Change:
    return lambda setup: regularisation_of(source)(optimizer_of(source)(setup))


RECIPES = [
    *rows(
        "recipes", "cpolynext-s",
        ("cpolynext-convformer-optimizer", "CPolyNeXt, ConvFormer's optimiser", optimizer_of("convformer_s18")),
    ),
    *rows(
        "recipes", "apolynext-s",
        ("apolynext-convformer-optimizer", "APolyNeXt, ConvFormer's optimiser", optimizer_of("convformer_s18")),
    ),
    *rows(
        "recipes", "convformer",
        ("convformer-our-optimizer", "ConvFormer-S18, our optimiser", optimizer_of("cpolynext_small")),
        ("convformer-our-regularisation", "ConvFormer-S18, our regularisation", regularisation_of("cpolynext_small")),
        ("convformer-our-recipe", "ConvFormer-S18, our full recipe", recipe_of("cpolynext_small")),
    ),
    *rows(
        "recipes", "caformer",
        ("caformer-our-optimizer", "CAFormer-S18, our optimiser", optimizer_of("apolynext_small")),
        ("caformer-our-regularisation", "CAFormer-S18, our regularisation", regularisation_of("apolynext_small")),
        ("caformer-our-recipe", "CAFormer-S18, our full recipe", recipe_of("apolynext_small")),
    ),
]  # fmt: skip


# Module drop-in (Section 4.3)


def with_mixers(conv: Any = None, attention: Any = None) -> Change:
    return lambda setup: replace(setup, mixers={"conv": conv, "attention": attention, "mlp": None})


DROPIN = rows(
    "dropin", "caformer",
    ("caformer-polyconv", "CAFormer-S18, convolutions -> PolyConv", with_mixers(conv=PolyConv)),
    ("caformer-polyattn", "CAFormer-S18, attention -> PolyAttn", with_mixers(attention=PolyAttention)),
    ("caformer-poly", "CAFormer-S18, both", with_mixers(PolyConv, PolyAttention)),
)  # fmt: skip


# What a reader may ask further; the paper has no figures for these.


def with_scales(logits: Callable[[int], tuple[float, ...]]) -> Change:
    """Other initial logits of Sigmoid-Scale, as many as the network has."""

    def change(setup: Setup) -> Setup:
        assert setup.architecture is not None
        entries = len(setup.architecture.scale_logits)
        return replace(setup, architecture=replace(setup.architecture, scale_logits=logits(entries)))

    return change


FURTHER = [
    *rows(
        "further", "cpolynext",
        ("no-flip", "no channel flip", built_by(WithConv(UnflippedConv))),
        ("no-dilation", "coarse branch without dilation", built_by(WithConv(partial(PolyConv, dilation=1)))),
        ("scales-half", "all scales start at 1/2", with_scales(lambda n: (0.0,) * n)),
        ("scales-falling", "logits start at 0, -1/2, -1, ...", with_scales(falling)),
        ("scales-halving", "scales start at 1/2, 1/2, 1/4, 1/8, ...", with_scales(halving)),
        ("position-norm", "LayerNorm -> position norm (fully polynomial)", built_by(FullyPolynomialBlocks())),
    ),
    *rows(
        "further", "apolynext",
        ("degree-2", "kernel of degree 2", with_kernel(p=2)),
        ("degree-6", "kernel of degree 6", with_kernel(p=6)),
        (
            "attention-position-norm", "LayerNorm -> position norm, l1 -> row sums",
            built_by(FullyPolynomialBlocks()),
        ),
    ),
]  # fmt: skip

ROWS: dict[str, Row] = {row.name: row for row in [*MODULES, *STABILISATION, *RECIPES, *DROPIN, *FURTHER]}
TABLES: dict[str, list[Row]] = {
    "modules": MODULES,
    "stabilisation": STABILISATION,
    "recipes": RECIPES,
    "dropin": DROPIN,
    "further": FURTHER,
}
