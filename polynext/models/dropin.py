"""Polynomial modules in other networks (Section 4.3, "Module drop-in").

`replace_mixers` replaces the mixers and MLPs of a timm MetaFormer, ConvNeXt or ViT. Stem, norms, residual scales and
head stay. `caformer_s18_poly` is the paper's example.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from timm.models import checkpoint_seq, convnext, generate_default_cfgs, metaformer, vision_transformer
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.costs import count_macs, count_parameters
from polynext.models.registry import default_cfg, register
from polynext.models.tokens import ChannelsLast, Positions, TokenAttention
from polynext.nn import PolyAttention, PolyConv, PolyMLP

Match = Literal["params", "flops"]
TOLERANCE = 0.03

Maker = Callable[..., nn.Module]


@dataclass(frozen=True)
class Replacement:
    """The replaced modules by name, and the cost of the whole network before and after."""

    replaced: dict[str, str]
    parameters: tuple[int, int]
    macs: tuple[int, int]

    @property
    def parameter_change(self) -> float:
        return self.parameters[1] / self.parameters[0] - 1

    @property
    def mac_change(self) -> float:
        return self.macs[1] / self.macs[0] - 1

    def __str__(self) -> str:
        kinds = list(self.replaced.values())
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return (
            f"{counted}; parameters {self.parameters[0] / 1e6:.2f} to {self.parameters[1] / 1e6:.2f} M "
            f"({self.parameter_change:+.1%}), {self.macs[0] / 1e9:.2f} to {self.macs[1] / 1e9:.2f} GMACs "
            f"({self.mac_change:+.1%})"
        )


@dataclass
class Slot:
    """A module to replace. `make(size)` builds its replacement, whose inner width is proportional to size."""

    owner: nn.Module
    attribute: str
    name: str
    make: Maker
    cost: int = 0
    input_shape: tuple[int, ...] = ()

    @property
    def module(self) -> nn.Module:
        return getattr(self.owner, self.attribute)


# The slots of one block. Their replacements together cost what the old modules cost.
Group = list[Slot]


def replace_mixers(
    model: nn.Module,
    conv: Maker | None = PolyConv,
    attention: Maker | None = PolyAttention,
    mlp: Maker | None = PolyMLP,
    match: Match = "params",
) -> tuple[nn.Module, Replacement]:
    """Puts polynomial modules into a timm MetaFormer, ConvNeXt or ViT, in place. Also returns a summary of the changes.

    The inner widths are chosen so that the cost of each block stays about the same, and that of the whole network
    within 3%. The new modules are untrained.

    Args:
        model: the network.
        conv: builds the replacement of convolutional mixers from channels and `ratio`; None keeps the old ones.
        attention: builds the replacement of attention from channels, `heads` and `head_dim`; None keeps the old ones.
        mlp: builds the replacement of MLPs from channels and `ratio`; None keeps the old ones.
        match: the cost to keep, parameters ("params") or multiply-accumulates ("flops").
    """
    if match not in ("params", "flops"):
        raise PolyNeXtError(f"match is {match!r}: choose 'params' or 'flops'.")
    trial = copy.deepcopy(model).eval().to("meta", torch.float32)  # so that an error leaves the network unchanged
    groups = list(find_groups(trial, conv, attention, mlp))
    if not groups:
        raise PolyNeXtError(
            f"{type(model).__name__} has nothing to replace: give a MetaFormer with convolutions or attention, "
            "a ConvNeXt or a ViT from timm, and at least one of conv, attention and mlp."
        )
    input_size = image_size(model)
    before = count_parameters(trial), count_macs(trial, input_size)
    measure_slots(trial, groups, match, input_size)
    sizes = matching_sizes(groups, match)
    fill(trial, groups, sizes)
    after = count_parameters(trial), count_macs(trial, input_size)
    replaced = {slot.name: innermost(slot.module) for group in groups for slot in group}
    summary = Replacement(replaced, (before[0], after[0]), (before[1], after[1]))
    change = summary.parameter_change if match == "params" else summary.mac_change
    if abs(change) > TOLERANCE:
        raise PolyNeXtError(
            f"the {match} of {type(model).__name__} change by {change:+.1%} with the nearest widths, more than "
            f"{TOLERANCE:.0%}: the network is too small. Match the other cost."
        )
    fill(model, list(find_groups(model, conv, attention, mlp)), sizes)
    return model, summary


def find_groups(model: nn.Module, conv: Maker | None, attention: Maker | None, mlp: Maker | None) -> Iterator[Group]:
    """The slots of each block that has any."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    as_tokens = partial(TokenAttention, prefix=getattr(model, "num_prefix_tokens", 0), grid=grid)
    for name, block in model.named_modules():
        makers: dict[str, Maker] = {}
        if isinstance(block, metaformer.MetaFormerBlock):
            channels, mixer = block.norm1.weight.numel(), block.token_mixer
            if conv is not None and isinstance(mixer, metaformer.SepConv):
                makers["token_mixer"] = partial(make_conv, conv, channels)
            if attention is not None and isinstance(mixer, metaformer.Attention):
                makers["token_mixer"] = partial(make_attention, attention, channels, mixer.num_heads)
            if mlp is not None:
                tokens_stay = isinstance(mixer, metaformer.Attention) and attention is None
                makers["mlp"] = partial(make_mlp, mlp, channels, ChannelsLast if tokens_stay else None)
        elif isinstance(block, convnext.ConvNeXtBlock):
            old: Any = block.conv_dw
            if conv is not None and old.stride == (1, 1) and old.in_channels == old.out_channels:
                makers["conv_dw"] = partial(make_conv, conv, old.out_channels)
            if mlp is not None:
                makers["mlp"] = partial(make_mlp, mlp, old.out_channels, None if block.use_conv_mlp else ChannelsLast)
        elif isinstance(block, vision_transformer.Block):
            channels, heads = block.norm1.weight.numel(), block.attn.num_heads
            if attention is not None:
                makers["attn"] = partial(make_attention, attention, channels, heads, wrap=as_tokens)
            if mlp is not None:
                makers["mlp"] = partial(make_mlp, mlp, channels, ChannelsLast)
        if makers:
            yield [Slot(block, attribute, f"{name}.{attribute}", make) for attribute, make in makers.items()]


# The operators truncate channels times ratio. Half a channel more keeps the intended whole number.
def make_conv(conv: Maker, channels: int, size: float, **dd: Any) -> nn.Module:
    return conv(channels, ratio=(max(1, round(channels * size)) + 0.5) / channels, **dd)


def make_mlp(mlp: Maker, channels: int, wrap: Maker | None, size: float, **dd: Any) -> nn.Module:
    made = mlp(channels, ratio=(2 * max(1, round(channels * size)) + 0.5) / channels, **dd)
    return made if wrap is None else wrap(made)


def make_attention(
    attention: Maker, channels: int, heads: int, size: float, wrap: Maker | None = None, **dd: Any
) -> nn.Module:
    """Without a norm: the blocks have one before their attention."""
    head_dim = max(2, round(size * (channels // heads)))
    made = attention(channels, heads=heads, head_dim=head_dim, norm=nn.Identity, **dd)
    return made if wrap is None else wrap(made)


def measure_slots(model: nn.Module, groups: list[Group], match: Match, input_size: tuple[int, int, int]) -> None:
    """Sets the cost and input shape of each slot's old module, in a model on the meta device."""
    slots = [slot for group in groups for slot in group]
    handles = []
    for slot in slots:

        def note_shape(module: nn.Module, inputs: tuple[Tensor, ...], slot: Slot = slot) -> None:
            slot.input_shape = tuple(inputs[0].shape)

        handles.append(slot.module.register_forward_pre_hook(note_shape))
    with torch.no_grad():
        model(torch.empty(1, *input_size, device="meta"))
    for handle in handles:
        handle.remove()
    for slot in slots:
        slot.cost = cost(slot.module, slot.input_shape, match)


def cost(module: nn.Module, input_shape: tuple[int, ...], match: Match) -> int:
    return count_parameters(module) if match == "params" else count_macs(module, input_shape[1:])


def matching_sizes(groups: list[Group], match: Match) -> list[float]:
    known: dict[Any, float] = {}  # most blocks are equal to others
    sizes = []
    for group in groups:
        kind = tuple((slot.attribute, type(slot.module), slot.cost, slot.input_shape) for slot in group)
        if kind not in known:
            known[kind] = matching_size(group, match)
        sizes.append(known[kind])
    return sizes


def matching_size(group: Group, match: Match) -> float:
    """The size at which the group's new modules cost as much as its old ones."""
    wanted = sum(slot.cost for slot in group)

    def excess(size: float) -> int:
        made = [(slot.make(size, device="meta"), slot.input_shape) for slot in group]
        return sum(cost(module, map_shape(module, shape), match) for module, shape in made) - wanted

    low, high = 0.0, 8.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return min((low, high), key=lambda size: abs(excess(size)))


def map_shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The input shape of a replacement: PolyAttention in a MetaFormer gets a map, the old attention tokens."""
    if isinstance(module, TokenAttention | ChannelsLast) or len(shape) == 4:
        return shape
    batch, tokens, channels = shape
    side = math.isqrt(tokens)
    return batch, channels, side, tokens // side


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """The network's input: channels of its first convolution, image size of its patch embedding or default config."""
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    cfg: Any = getattr(model, "pretrained_cfg", None) or {}
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return channels, *(size or cfg.get("input_size", (3, 224, 224))[1:])


def innermost(module: nn.Module) -> str:
    inner = module.inner if isinstance(module, ChannelsLast | TokenAttention) else module
    return type(inner).__name__


def fill(model: nn.Module, groups: list[Group], sizes: list[float]) -> None:
    """Replaces the modules in the slots."""
    for group, size in zip(groups, sizes, strict=True):
        for slot in group:
            old = next(slot.module.parameters(), torch.empty(0))
            new = slot.make(size, device=old.device, dtype=old.dtype).train(model.training)
            setattr(slot.owner, slot.attribute, new)
    keep_maps(model, {(slot.owner, slot.attribute) for group in groups for slot in group})


def keep_maps(model: nn.Module, replaced: set[tuple[nn.Module, str]]) -> None:
    """Passes maps through the MetaFormer stages whose attention was replaced: their norms and MLPs expect tokens."""
    for parent in list(model.modules()):
        for name, stage in parent.named_children():
            if not isinstance(stage, metaformer.MetaFormerStage) or stage.use_nchw:
                continue
            if any(isinstance(block.token_mixer, metaformer.Attention) for block in stage.blocks):
                continue
            for block in stage.blocks:
                block.norm1, block.norm2 = Positions(block.norm1), Positions(block.norm2)
                if (block, "mlp") not in replaced:
                    block.mlp = Positions(block.mlp)
                for part, child in block.named_children():
                    if isinstance(child, metaformer.Scale):
                        setattr(block, part, MapScale(child))
            setattr(parent, name, MapStage(stage))


class MapScale(nn.Module):
    """A MetaFormer's scale per channel, for maps (B, C, H, W)."""

    def __init__(self, tokens: metaformer.Scale):
        super().__init__()
        self.scale = tokens.scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:, None, None]


class MapStage(nn.Module):
    """A MetaFormer's stage, for blocks that take maps (B, C, H, W)."""

    def __init__(self, stage: metaformer.MetaFormerStage):
        super().__init__()
        self.grad_checkpointing = stage.grad_checkpointing
        self.downsample, self.blocks = stage.downsample, stage.blocks

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return checkpoint_seq(self.blocks, x)
        return self.blocks(x)


def create_caformer_s18_poly(name: str, pretrained: bool, **options: Any) -> nn.Module:
    if pretrained:
        raise PolyNeXtError(f"there are no published weights of {name}: create it without `pretrained` and train it.")
    return replace_mixers(metaformer.caformer_s18(pretrained=False, **options), mlp=None)[0]


default_cfgs = generate_default_cfgs(
    {"caformer_s18_poly": default_cfg(crop_pct=1.0, first_conv="stem.conv", classifier="head.fc.fc2", license=None)}
)
register(
    __name__,
    "caformer_s18_poly",
    "polynomial mixers",
    "CAFormer-S18 with PolyConv and PolyAttention for its mixers, at the same number of parameters.",
    create_caformer_s18_poly,
)
