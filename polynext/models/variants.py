"""Named changes of a model's parts: the networks of the paper's ablations (Tables 3, 4, Section 4.3), and a few more.

A variant is other blocks, another architecture, or polynomial modules in somebody else's network. It is part of a
training run's config, so that the run's folder tells the whole network.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import nn

from polynext.errors import PolyNeXtError
from polynext.models.costs import count_parameters
from polynext.models.dropin import Maker, replace_mixers
from polynext.models.factory import create_model, is_polynext
from polynext.models.network import (
    Blocks,
    Downsampling,
    FullyPolynomialBlocks,
    PolyNeXt,
    PolyNeXtConfig,
    Size,
    StageConfig,
)
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
from polynext.nn import LayerScale, LearnableScale, PolyAttention, PolyConv

# From an architecture, image channels and classes to another architecture.
Rebuild = Callable[[PolyNeXtConfig, int, int], PolyNeXtConfig]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A named change of a model's parts.

    Attributes:
        what: the change in words.
        blocks: how the parts of PolyNeXt's cells are built instead.
        rebuild: what becomes of PolyNeXt's architecture.
        mixers: what `replace_mixers` puts into a network that is not PolyNeXt.
        changes: the part without which there is nothing to change.
    """

    what: str
    blocks: Blocks | None = None
    rebuild: Rebuild | None = None
    mixers: Mapping[str, Any] | None = None
    changes: Literal["conv", "attention", "position norm"] | None = None


def create_variant(name: str, variant: str, in_chans: int = 3, num_classes: int = 1000, **options: Any) -> nn.Module:
    """`create_model` with a named change of the model's parts, or several joined by +."""
    chosen = chosen_variants(variant)
    shared: dict[str, Any] = dict(in_chans=in_chans, num_classes=num_classes, **options)
    if chosen[0].mixers is not None:
        return replace_mixers(create_model(name, **shared), **chosen[0].mixers)[0]
    blocks = [one.blocks for one in chosen if one.blocks is not None]
    polynomial = name.endswith("_bn") or any(isinstance(one, FullyPolynomialBlocks) for one in blocks)
    if name not in CONFIGS and not (is_polynext(name) and "." not in name and not blocks):
        raise PolyNeXtError(f"{name} has no variant {variant!r}: it changes one of {', '.join(CONFIGS)}.")
    original = architecture = CONFIGS[name.removesuffix("_bn")]
    parts = {stage.mixer for stage in architecture.stages} | ({"position norm"} if polynomial else set())
    for one in chosen:
        if one.changes and one.changes not in parts:
            raise PolyNeXtError(f"{name} has no {one.changes} that the variant {variant!r} could change: take another.")
        if one.rebuild is not None:
            architecture = one.rebuild(architecture, in_chans, num_classes)
    if architecture == original and not blocks:
        raise PolyNeXtError(f"the variant {variant!r} changes nothing: {name} is so without it.")
    if blocks:
        shared["blocks"] = blocks[0]
    return create_model(name, architecture=architecture, **shared)


def chosen_variants(names: str) -> list[Variant]:
    """The variants of a name such as `degree-3` or `window-7+heads-8`, if they go together."""
    chosen = [find_variant(name) for name in names.split("+")]
    if sum(one.blocks is not None for one in chosen) > 1 or (len(chosen) > 1 and any(one.mixers for one in chosen)):
        raise PolyNeXtError(f"the variants {names!r} change the same parts: take one of them.")
    return chosen


def find_variant(name: str) -> Variant:
    if match := re.fullmatch(r"([a-z]+)-([1-9]\d*(?:-[1-9]\d*)*)", name):
        kind, numbers = match[1], tuple(map(int, match[2].split("-")))
        if kind in WITH_NUMBERS:
            return WITH_NUMBERS[kind](*numbers)
        if kind in WITH_A_NUMBER and len(numbers) == 1:
            return WITH_A_NUMBER[kind](numbers[0])
    if name not in VARIANTS:
        parametrised = [*(f"{kind}-N" for kind in WITH_A_NUMBER), *(f"{kind}-N-N-..." for kind in WITH_NUMBERS)]
        known = ", ".join([*VARIANTS, *parametrised])
        raise PolyNeXtError(f"there is no variant {name!r} of a model: choose one of {known}, or several joined by +.")
    return VARIANTS[name]


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
    """A plain MLP in place of PolyMLP, with a norm after it or without."""

    def __init__(self, post_norm: bool):
        self.post_norm = post_norm

    def mlp(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        norm = self.norm(size) if self.post_norm else nn.Identity
        return GeluMLP(stage.width, stage.mlp_ratio, norm=norm, **dd)


class WithAttention(Blocks):
    """Another module in place of PolyAttention, built from its stage and the size of its maps."""

    def __init__(self, attention: Callable[..., nn.Module]):
        self.attention = attention

    def mixer(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        if stage.mixer == "attention":
            return self.attention(stage, size, norm=self.norm(size), **dd)
        return super().mixer(stage, size, **dd)


def without_coarse_kernel(conv: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda channels, ratio, coarse_kernel, **options: conv(channels, ratio, **options)


def poly_attention(stage: StageConfig, size: Size, **options: Any) -> nn.Module:
    return PolyAttention(stage.width, stage.heads, window=stage.window, **options)


def standard_attention(stage: StageConfig, size: Size, **options: Any) -> nn.Module:
    """With fewer heads than PolyAttention, about as wide, for the same number of multiply-accumulates."""
    if stage.window is not None:
        raise PolyNeXtError("the variant 'standard-attention' has no windows: take it without a window.")
    width, tokens = stage.width, size[0] * size[1]
    inner = 32 * (stage.heads or math.ceil(width / 64))
    # A token costs PolyAttention three projections, depthwise 5x5 and 3x3 twice each, weights and their sums.
    wanted = inner * (3 * width + 2 * 25 + 2 * 9 + 2 * tokens) / (4 * width + 2 * tokens)
    choices = [(heads, round(wanted / heads)) for heads in {max(1, math.floor(wanted / 32)), math.ceil(wanted / 32)}]
    heads, head_dim = min(choices, key=lambda choice: (abs(math.prod(choice) - wanted), choice))
    return StandardAttention(width, heads, head_dim, **options)


def conv_variant(what: str, conv: Callable[..., nn.Module]) -> Variant:
    return Variant(what=what, blocks=WithConv(conv), changes="conv")


def attention_variant(what: str, attention: Callable[..., nn.Module]) -> Variant:
    return Variant(what=what, blocks=WithAttention(attention), changes="attention")


def attention_option(field: str, value: int) -> Variant:
    changed: dict[str, Any] = {field: value}

    def rebuild(config: PolyNeXtConfig, in_chans: int, num_classes: int) -> PolyNeXtConfig:
        return replace(
            config, stages=tuple(replace(s, **changed) if s.mixer == "attention" else s for s in config.stages)
        )

    return Variant(what=f"attention with {field} {value}", rebuild=rebuild, changes="attention")


# The architecture in numbers


def with_widths(*widths: int) -> Variant:
    """As many stages as widths. A new stage is as the last one is, and takes over where the maps are halved."""

    def rebuild(config: PolyNeXtConfig, in_chans: int, num_classes: int) -> PolyNeXtConfig:
        last = len(config.stages) - 1
        stages = tuple(replace(config.stages[min(i, last)], width=width) for i, width in enumerate(widths))
        return replace(config, stages=stages)

    return Variant(what=f"stages of width {', '.join(map(str, widths))}", rebuild=rebuild)


def with_stacks(*stacks: int) -> Variant:
    """So many stacks in the cells of each stage, or of all stages if there is one number."""

    def rebuild(config: PolyNeXtConfig, in_chans: int, num_classes: int) -> PolyNeXtConfig:
        each = stacks * len(config.stages) if len(stacks) == 1 else stacks
        if len(each) != len(config.stages):
            raise PolyNeXtError(
                f"the variant 'stacks-{'-'.join(map(str, stacks))}' is for {len(stacks)} stages where the network has "
                f"{len(config.stages)}: give one number for all, or one for each."
            )
        stages = tuple(replace(stage, stacks=count) for stage, count in zip(config.stages, each, strict=True))
        entries = 1 + config.scale_indices(max(each) - 1)[1]
        return replace(config, stages=stages, scale_logits=continued(config.scale_logits, entries))

    return Variant(what=f"{', '.join(map(str, stacks))} stacks in a cell", rebuild=rebuild)


def continued(logits: tuple[float, ...], entries: int) -> tuple[float, ...]:
    """The first of these, and more with the last two's difference if there are not enough."""
    step = logits[-1] - logits[-2]
    more = max(0, entries - len(logits))
    return (*logits[:entries], *(logits[-1] + step * (i + 1) for i in range(more)))


def with_patches(side: int) -> Variant:
    return Variant(
        what=f"a stem of {side}x{side} patches",
        rebuild=lambda config, *_: replace(config, stem_kernel=side, stem_stride=side),
    )


def with_coarse_kernel(side: int) -> Variant:
    if side % 2 == 0:
        raise PolyNeXtError(f"the variant 'coarse-{side}' has no middle: give an odd number.")

    def rebuild(config: PolyNeXtConfig, in_chans: int, num_classes: int) -> PolyNeXtConfig:
        return replace(config, stages=tuple(replace(stage, coarse_kernel=side) for stage in config.stages))

    return Variant(what=f"coarse kernels of {side}x{side}", rebuild=rebuild, changes="conv")


def norm_variant(what: str, **changed: bool) -> Variant:
    """Other fully polynomial norms."""
    return Variant(what=what, rebuild=lambda config, *_: replace(config, **changed), changes="position norm")


# Stabilisation (Table 4)


class WithLearnableScale(Blocks):
    """Free scalars that start where Sigmoid-Scale does."""

    def scale(self, config: PolyNeXtConfig, stage: StageConfig, **dd: Any) -> nn.Module:
        return LearnableScale([1 / (1 + math.exp(-logit)) for logit in config.scale_logits], **dd)


class WithLayerScale(Blocks):
    """A free scale per channel."""

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
    """The sum of its inputs goes into a cell as it is."""

    def cell_norm(self, stage: StageConfig, size: Size, **dd: Any) -> nn.Module:
        return nn.Identity()


@functools.cache
def widened(architecture: PolyNeXtConfig, in_chans: int, num_classes: int, stacks: int) -> PolyNeXtConfig:
    """Fewer stacks in each cell and wider stages, with the same number of parameters to 1%."""
    fewer = tuple(replace(stage, stacks=min(stage.stacks, stacks)) for stage in architecture.stages)

    def parameters(stages: Sequence[StageConfig]) -> int:
        of_these = replace(architecture, stages=tuple(stages))
        return count_parameters(PolyNeXt(of_these, in_chans, num_classes, device="meta"))

    wanted = parameters(architecture.stages)

    def wider(factor: float) -> list[StageConfig]:
        return [replace(stage, width=nearest_width(factor * stage.width, stage)) for stage in fewer]

    low, high = 1.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if parameters(wider(middle)) < wanted else (low, middle)
    # Widths are whole numbers, which is too coarse for small networks: the last PolyMLPs' width makes up for the rest.
    *first, last = wider(low)
    hidden = int(last.width * last.mlp_ratio)  # PolyMLP truncates: the half below keeps it on the right side
    candidates = [[*first, replace(last, mlp_ratio=(hidden + 2 * i + 0.5) / last.width)] for i in range(17)]
    nearest = min(candidates, key=lambda stages: abs(parameters(stages) - wanted))
    return replace(architecture, stages=tuple(nearest))


def nearest_width(width: float, stage: StageConfig) -> int:
    """The nearest for which PolyMLP's two branches have the same width."""
    step = next(w for w in range(1, 65) if (w * stage.mlp_ratio) % 2 == 0)
    return max(step, step * round(width / step))


def with_scales(logits: Callable[[int], tuple[float, ...]]) -> Rebuild:
    """Other initial logits of Sigmoid-Scale, as many as the network has."""
    return lambda config, in_chans, num_classes: replace(config, scale_logits=logits(len(config.scale_logits)))


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
    "wider-2": Variant(what="wider, 2 stacks a cell", rebuild=partial(widened, stacks=2)),
    "wider-1": Variant(what="wider, 1 stack a cell", rebuild=partial(widened, stacks=1)),
    # Section 4.3
    "polyconv": Variant(what="convolutions -> PolyConv", mixers=mixers(conv=PolyConv)),
    "polyattn": Variant(what="attention -> PolyAttn", mixers=mixers(attention=PolyAttention)),
    "poly": Variant(what="convolutions and attention -> PolyConv and PolyAttn", mixers=mixers(PolyConv, PolyAttention)),
    # What a reader may ask further
    "no-flip": conv_variant("no channel flip", UnflippedConv),
    "no-dilation": conv_variant("coarse branch without dilation", partial(PolyConv, dilation=1)),
    "scales-half": Variant(what="all scales start at 1/2", rebuild=with_scales(lambda n: (0.0,) * n)),
    "scales-falling": Variant(what="logits start at 0, -1/2, -1, ...", rebuild=with_scales(falling)),
    "scales-halving": Variant(what="scales start at 1/2, 1/2, 1/4, 1/8, ...", rebuild=with_scales(halving)),
    "position-norm": Variant(what="norms -> position norms (fully polynomial)", blocks=FullyPolynomialBlocks()),
    # Of the fully polynomial networks (_bn)
    "position-beta": norm_variant("position norms with beta (Appendix C.5)", norm_beta=True),
    "shared-statistics": norm_variant("statistics shared by all processes", share_statistics=True),
}

# Variants whose names end in a number or in several.
WITH_A_NUMBER: dict[str, Callable[[int], Variant]] = {
    "window": partial(attention_option, "window"),
    "heads": partial(attention_option, "heads"),
    "patch": with_patches,
    "coarse": with_coarse_kernel,
}
WITH_NUMBERS: dict[str, Callable[..., Variant]] = {"widths": with_widths, "stacks": with_stacks}
