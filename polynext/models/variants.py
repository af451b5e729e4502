"""Changes of a model: its architecture in numbers, and variants by name.

The variants are the networks of the paper's ablations (Tables 3 and 4, Section 4.3) and a few more. Both are part of a
training run's config, so that the folder of a run defines its network.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import nn

from polynext.errors import PolyNeXtError, suggest
from polynext.models.blocks import (
    Blocks,
    Downsampling,
    FullyPolynomialBlocks,
    PolyNeXtConfig,
    Size,
    StageConfig,
)
from polynext.models.dropin import Maker, replace_mixers
from polynext.models.factory import create_model, is_polynext
from polynext.models.polynext import CONFIGS, falling, halving
from polynext.models.substitutes import (
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
from polynext.models.widening import Cost, widened
from polynext.nn import LayerScale, LearnableScale, NormMaker, PolyAttention, PolyConv

# From an architecture, image channels and classes to another architecture.
Rebuild = Callable[[PolyNeXtConfig, int, int], PolyNeXtConfig]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A named change of a model's parts.

    Attributes:
        what: a description of the change.
        blocks: other blocks for PolyNeXt's cells.
        rebuild: a function that changes PolyNeXt's architecture.
        mixers: arguments of `replace_mixers`, for a network that is not PolyNeXt.
        changes: the part that is changed, which the model must have.
    """

    what: str
    blocks: Blocks | None = None
    rebuild: Rebuild | None = None
    mixers: Mapping[str, Any] | None = None
    changes: Literal["conv", "attention", "position norm"] | None = None


@dataclass(frozen=True, kw_only=True)
class ArchitectureChanges:
    """Changes of PolyNeXt's architecture in numbers; None, or an empty tuple, leaves a number unchanged.

    Attributes:
        widths: channels of each stage. Their count is the number of stages: a new stage copies the last one, at half
            its resolution.
        stacks: stacks in the cells of each stage; one number is for all stages.
        patch: side of the stem's patches, in pixels.
        coarse_kernel: side of PolyConv's coarse kernel; odd.
        window: side of PolyAttention's windows.
        neighbourhood: side of the square around each query that PolyAttention is confined to.
        dilation: distance between neighbours.
        heads: heads of PolyAttention.
    """

    widths: tuple[int, ...] = ()
    stacks: tuple[int, ...] = ()
    patch: int | None = None
    coarse_kernel: int | None = None
    window: int | None = None
    neighbourhood: int | None = None
    dilation: int | None = None
    heads: int | None = None

    def __bool__(self) -> bool:
        return self != ArchitectureChanges()

    def apply(self, name: str, config: PolyNeXtConfig) -> PolyNeXtConfig:
        """The changed architecture of the model `name`."""
        if self.widths:
            last = len(config.stages) - 1
            stages = tuple(replace(config.stages[min(i, last)], width=width) for i, width in enumerate(self.widths))
            config = replace(config, stages=stages)
        if self.stacks:
            config = with_stacks(config, self.stacks)
        if self.patch is not None:
            config = replace(config, stem_kernel=self.patch, stem_stride=self.patch)
        if self.coarse_kernel is not None:
            if self.coarse_kernel % 2 == 0:
                raise PolyNeXtError(f"`model.coarse_kernel` is {self.coarse_kernel}: give an odd number.")
            config = with_mixers(name, config, "conv", coarse_kernel=self.coarse_kernel)
        attention = {name: getattr(self, name) for name in ("window", "neighbourhood", "dilation", "heads")}
        if changed := {field: value for field, value in attention.items() if value is not None}:
            config = with_mixers(name, config, "attention", **changed)
        return config


def with_stacks(config: PolyNeXtConfig, stacks: tuple[int, ...]) -> PolyNeXtConfig:
    """Another number of stacks in the cells of each stage, with initial scales for all of them."""
    each = stacks * len(config.stages) if len(stacks) == 1 else stacks
    if len(each) != len(config.stages):
        raise PolyNeXtError(
            f"`model.stacks` is for {len(stacks)} stages and the network has {len(config.stages)}: give one number "
            "for all, or one for each."
        )
    stages = tuple(replace(stage, stacks=count) for stage, count in zip(config.stages, each, strict=True))
    entries = 1 + config.scale_indices(max(each) - 1)[1]
    return replace(config, stages=stages, scale_logits=continued(config.scale_logits, entries))


def continued(logits: tuple[float, ...], entries: int) -> tuple[float, ...]:
    """The first `entries` logits, extended by the difference of the last two if there are too few."""
    step = logits[-1] - logits[-2]
    more = max(0, entries - len(logits))
    return (*logits[:entries], *(logits[-1] + step * (i + 1) for i in range(more)))


def with_mixers(name: str, config: PolyNeXtConfig, mixer: str, **changed: Any) -> PolyNeXtConfig:
    """Other options for the stages that have this mixer."""
    if all(stage.mixer != mixer for stage in config.stages):
        raise PolyNeXtError(f"{name} has no {mixer}, which `model.{next(iter(changed))}` changes: leave it out.")
    stages = tuple(replace(stage, **changed) if stage.mixer == mixer else stage for stage in config.stages)
    return replace(config, stages=stages)


def create_variant(
    name: str,
    variant: str = "",
    in_chans: int = 3,
    num_classes: int = 1000,
    architecture: ArchitectureChanges | None = None,
    **options: Any,
) -> nn.Module:
    """`create_model` with a changed architecture, a named change of the model's parts, or both.

    Args:
        name: the model.
        variant: a name in `VARIANTS`, or several joined by + that change different parts.
        in_chans: channels of the images.
        num_classes: classes of the head.
        architecture: changes in numbers, made before those of the variant.
        options: further options of `create_model`.
    """
    chosen = chosen_variants(variant)
    changes = architecture or ArchitectureChanges()
    shared: dict[str, Any] = dict(in_chans=in_chans, num_classes=num_classes, **options)
    if chosen and chosen[0].mixers is not None and not changes:
        return replace_mixers(create_model(name, **shared), **chosen[0].mixers)[0]
    blocks = [one.blocks for one in chosen if one.blocks is not None]
    polynomial = name.endswith("_bn") or any(isinstance(one, FullyPolynomialBlocks) for one in blocks)
    if name not in CONFIGS and not (is_polynext(name) and "." not in name and not blocks):
        raise PolyNeXtError(
            f"{name} has no variant {variant!r} and no other architecture: change one of {', '.join(CONFIGS)}."
        )
    original = CONFIGS[name.removesuffix("_bn")]
    changed = changes.apply(name, original)
    parts = {stage.mixer for stage in changed.stages} | ({"position norm"} if polynomial else set())
    for one in chosen:
        if one.changes and one.changes not in parts:
            raise PolyNeXtError(f"{name} has no {one.changes}, which the variant {variant!r} changes: choose another.")
        if one.rebuild is not None:
            changed = one.rebuild(changed, in_chans, num_classes)
    if changed == original and not blocks:
        what = f"the variant {variant!r}" if variant else "the architecture"
        raise PolyNeXtError(f"{what} has no effect: {name} already uses it.")
    if blocks:
        shared["blocks"] = blocks[0]
    return create_model(name, architecture=changed, **shared)


def chosen_variants(names: str) -> list[Variant]:
    """The variants of a name such as `degree-3` or `position-beta+shared-statistics`, if they go together."""
    chosen = []
    for name in filter(None, names.split("+")):
        if name not in VARIANTS:
            hint = suggest(name, VARIANTS, f"choose one of {', '.join(VARIANTS)}.")
            raise PolyNeXtError(f"there is no variant {name!r} of a model: {hint}")
        chosen.append(VARIANTS[name])
    if sum(one.blocks is not None for one in chosen) > 1 or (len(chosen) > 1 and any(one.mixers for one in chosen)):
        raise PolyNeXtError(f"the variants {names!r} change the same parts: choose one of them.")
    return chosen


# Modules (Table 3)


class WithConv(Blocks):
    """Another module instead of PolyConv, built from its width, ratio and coarse kernel."""

    def __init__(self, conv: Callable[..., nn.Module]):
        self.conv = conv

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return super().mixer(stage, size, **dd)
        return self.conv(stage.width, stage.conv_ratio, stage.coarse_kernel, norm=self.norm(size), **dd)


class Fused(WithConv):
    """Another operation instead of the Hadamard product in every PolyConv and PolyMLP."""

    def __init__(self, fuse: Fusion):
        super().__init__(partial(FusedConv, fuse=fuse))
        self.fuse = fuse

    def mlp(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return FusedMLP(stage.width, stage.mlp_ratio, norm=self.norm(size), fuse=self.fuse, **dd)


class Added(Fused):
    """Addition instead of every product, so that only the norms are nonlinear."""

    def __init__(self) -> None:
        super().__init__(addition)

    def head(self, channels: int, num_classes: int, **options: Any) -> nn.Module:
        return AddedHead(channels, num_classes, **options)


class WithGeluMLP(Blocks):
    """An MLP with GELU instead of PolyMLP, with or without a norm after it."""

    def __init__(self, post_norm: bool):
        self.post_norm = post_norm

    def mlp(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        norm = self.norm(size) if self.post_norm else nn.Identity
        return GeluMLP(stage.width, stage.mlp_ratio, norm=norm, **dd)


class WithAttention(Blocks):
    """Another module instead of PolyAttention, built from its stage and the size of its feature maps."""

    def __init__(self, attention: Callable[..., nn.Module]):
        self.attention = attention

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return self.attention(stage, size, norm=self.norm(size), **dd)
        return super().mixer(stage, size, **dd)


def without_coarse_kernel(conv: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda channels, ratio, coarse_kernel, **options: conv(channels, ratio, **options)


def poly_attention(stage: StageConfig, feature_map: Size, **options: Any) -> nn.Module:
    return PolyAttention(stage.width, **stage.attention, **options)


def standard_attention(stage: StageConfig, size: Size, **options: Any) -> nn.Module:
    """Softmax attention with about as many multiply-accumulates as PolyAttention, by fewer heads."""
    if stage.window is not None or stage.neighbourhood is not None:
        raise PolyNeXtError(
            "the variant 'standard-attention' is global: leave out `model.window` and `model.neighbourhood`."
        )
    width, tokens = stage.width, size[0] * size[1]
    inner = 32 * (stage.heads or math.ceil(width / 64))
    # Of PolyAttention for a token: three projections, two depthwise 5x5 and two 3x3, the kernel and the weighted sums.
    wanted = inner * (3 * width + 2 * 25 + 2 * 9 + 2 * tokens) / (4 * width + 2 * tokens)
    choices = [(heads, round(wanted / heads)) for heads in {max(1, math.floor(wanted / 32)), math.ceil(wanted / 32)}]
    heads, head_dim = min(choices, key=lambda choice: (abs(math.prod(choice) - wanted), choice))
    return StandardAttention(width, heads, head_dim, **options)


def conv_variant(what: str, conv: Callable[..., nn.Module]) -> Variant:
    return Variant(what=what, blocks=WithConv(conv), changes="conv")


def attention_variant(what: str, attention: Callable[..., nn.Module]) -> Variant:
    return Variant(what=what, blocks=WithAttention(attention), changes="attention")


def norm_variant(what: str, **changed: bool) -> Variant:
    """Other options of the fully polynomial norms."""
    return Variant(what=what, rebuild=lambda config, *_: replace(config, **changed), changes="position norm")


# Stabilisation (Table 4)


class WithLearnableScale(Blocks):
    """Unconstrained scalars with the initial values of Sigmoid-Scale."""

    def scale(self, config: PolyNeXtConfig, stage: StageConfig, **dd: Any) -> nn.Module:
        return LearnableScale([1 / (1 + math.exp(-logit)) for logit in config.scale_logits], **dd)


class WithLayerScale(Blocks):
    """An unconstrained scale for each channel."""

    def __init__(self, start: float):
        self.start = start

    def scale(self, config: PolyNeXtConfig, stage: StageConfig, **dd: Any) -> nn.Module:
        return LayerScale(stage.width, len(config.scale_logits), self.start, **dd)


class SingleInput(Blocks):
    """Cells with one input, the output of the cell before."""

    def skip(self, stage: StageConfig, **dd: Any) -> nn.Module:
        return NewestInput()

    def downsampling(self, config: PolyNeXtConfig, width_in: int, width_out: int, **dd: Any) -> nn.Module:
        return SingleDownsampling(Downsampling(width_in, width_out, config.full_downsampling, **dd).newer)


class WithoutCellNorm(Blocks):
    """Cells without the norm of their input."""

    def cell_norm(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return nn.Identity()


def with_scales(logits: Callable[[int], tuple[float, ...]]) -> Rebuild:
    """Other initial logits of Sigmoid-Scale, of the same number."""
    return lambda config, in_chans, num_classes: replace(config, scale_logits=logits(len(config.scale_logits)))


def wider(what: str, stacks: int, match: Cost) -> Variant:
    return Variant(what=what, rebuild=partial(widened, stacks=stacks, match=match))


# Norms (Appendix C.5), one by one


class WithPositionNorms(Blocks):
    """Position norms in place of every LayerNorm. Attention still divides by its own row sums."""

    def norm(self, size: Size) -> NormMaker:
        return FullyPolynomialBlocks().norm(size)


class WithoutOutputNorm(FullyPolynomialBlocks):
    """Fully polynomial, without the additional norm before the output projection of attention."""

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        mixer = super().mixer(stage, size, **dd)
        if isinstance(mixer, PolyAttention):
            mixer.out_norm = nn.Identity()
        return mixer


def row_sum_attention(stage: StageConfig, size: Size, **options: Any) -> nn.Module:
    return poly_attention(stage, size, normalisation="row_sum", size=size, **options)


def mixers(conv: Maker | None = None, attention: Maker | None = None) -> dict[str, Any]:
    return {"conv": conv, "attention": attention, "mlp": None}


VARIANTS = {
    # Table 3
    "mlp-gelu": Variant(what="PolyMLP -> MLP+GELU, post-norm", blocks=WithGeluMLP(post_norm=True)),
    "sepconv-gelu": conv_variant("PolyConv -> SepConv+GELU", without_coarse_kernel(SeparableConv)),
    "gelu-one-branch": Variant(what="GELU on one branch", blocks=Fused(gelu_one_branch)),
    "gelu-after-product": Variant(what="GELU after the product", blocks=Fused(gelu_after_product)),
    "gelu-both-branches": Variant(what="GELU on both branches", blocks=Fused(gelu_both_branches)),
    "fine-only": conv_variant("fine branch only", without_coarse_kernel(FineConv)),
    "addition": Variant(what="Hadamard -> addition", blocks=Added()),
    "attention-mlp-gelu": Variant(what="PolyMLP -> MLP+GELU", blocks=WithGeluMLP(post_norm=False)),
    "standard-attention": attention_variant("PolyAttn -> standard attention", standard_attention),
    "softmax-kernel": attention_variant(
        "polynomial kernel -> softmax", partial(poly_attention, normalisation="softmax")
    ),
    **{f"degree-{p}": attention_variant(f"kernel of degree {p}", partial(poly_attention, p=p)) for p in (2, 3, 5, 6)},
    # Table 4
    "learnable-scale": Variant(what="Sigmoid-Scale -> learnable scalar", blocks=WithLearnableScale()),
    "layerscale-small": Variant(what="Sigmoid-Scale -> LayerScale 1e-6", blocks=WithLayerScale(1e-6)),
    "layerscale-one": Variant(what="Sigmoid-Scale -> LayerScale 1.0", blocks=WithLayerScale(1.0)),
    "single-input": Variant(what="no multi-input skip", blocks=SingleInput()),
    "no-cell-norm": Variant(what="no norm before the cell", blocks=WithoutCellNorm()),
    "wider-2": wider("wider, 2 stacks a cell", 2, "parameters"),
    "wider-1": wider("wider, 1 stack a cell", 1, "parameters"),
    "wider-2-macs": wider("wider, 2 stacks a cell, equal MACs", 2, "macs"),
    "wider-1-macs": wider("wider, 1 stack a cell, equal MACs", 1, "macs"),
    # Section 4.3
    "polyconv": Variant(what="convolutions -> PolyConv", mixers=mixers(conv=PolyConv)),
    "polyattn": Variant(what="attention -> PolyAttn", mixers=mixers(attention=PolyAttention)),
    "poly": Variant(what="convolutions and attention -> PolyConv and PolyAttn", mixers=mixers(PolyConv, PolyAttention)),
    # Not in the paper
    **{
        f"conv-{name}": conv_variant(f"{what} of PolyConv alone", partial(FusedConv, fuse=fuse))
        for name, what, fuse in (
            ("gelu-one-branch", "GELU on one branch", gelu_one_branch),
            ("gelu-after-product", "GELU after the product", gelu_after_product),
            ("gelu-both-branches", "GELU on both branches", gelu_both_branches),
        )
    },
    "no-flip": conv_variant("no channel flip", UnflippedConv),
    "no-dilation": conv_variant("coarse branch without dilation", partial(PolyConv, dilation=1)),
    "scales-half": Variant(what="all scales start at 1/2", rebuild=with_scales(lambda n: (0.0,) * n)),
    "scales-falling": Variant(what="logits start at 0, -1/2, -1, ...", rebuild=with_scales(falling)),
    "scales-halving": Variant(what="scales start at 1/2, 1/2, 1/4, 1/8, ...", rebuild=with_scales(halving)),
    "position-norm": Variant(what="norms -> position norms (fully polynomial)", blocks=FullyPolynomialBlocks()),
    "row-sums-alone": attention_variant("row sums -> running row sums", row_sum_attention),
    "position-norms-alone": Variant(
        what="norms -> position norms, row sums unchanged", blocks=WithPositionNorms(), changes="attention"
    ),
    "no-output-norm": Variant(
        what="fully polynomial, no norm before W_out", blocks=WithoutOutputNorm(), changes="attention"
    ),
    # For fully polynomial networks (_bn)
    "position-beta": norm_variant("position norms with beta (Appendix C.5)", norm_beta=True),
    "shared-statistics": norm_variant("statistics shared by all processes", share_statistics=True),
}
