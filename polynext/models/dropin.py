"""Polynomial modules in other networks (Section 4.3, "Module drop-in").

`replace_mixers` swaps the mixers of a timm MetaFormer, the blocks of a ConvNeXt and the attention and MLP of a ViT.
Everything else stays: stem, norms, residual scales, head. `caformer_s18_poly` is the paper's example by name.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import checkpoint_seq, convnext, generate_default_cfgs, metaformer, vision_transformer
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.costs import MacCounter, count_macs, count_parameters
from polynext.models.registry import register
from polynext.models.tokens import ChannelsLast, Positions, TokenAttention
from polynext.nn import PolyAttention, PolyConv, PolyMLP

Match = Literal["params", "flops"]
TOLERANCE = 0.03

Maker = Callable[..., nn.Module]


@dataclass(frozen=True)
class Replacement:
    """What was replaced, by its name in the network, and what the whole network costs before and after."""

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
    """A place for a polynomial module. `make(size)` builds one; its inner width grows with size, 1 being the usual.

    The modules truncate channels times ratio: half a channel more keeps the whole number on its side.
    """

    owner: nn.Module
    attribute: str
    name: str
    make: Callable[..., nn.Module]
    cost: int = 0
    input_shape: tuple[int, ...] = ()

    @property
    def module(self) -> nn.Module:
        return getattr(self.owner, self.attribute)


# The slots of one block, which together should cost what the old modules did.
Group = list[Slot]


def replace_mixers(
    model: nn.Module,
    conv: Maker | None = PolyConv,
    attention: Maker | None = PolyAttention,
    mlp: Maker | None = PolyMLP,
    match: Match = "params",
) -> tuple[nn.Module, Replacement]:
    """Puts polynomial modules into a timm MetaFormer, ConvNeXt or ViT, in place, and tells what that changed.

    The inner widths are chosen so that each block keeps its parameters or its multiply-accumulates, and the whole
    network does to 3%. The new modules are untrained.

    Args:
        model: the network.
        conv: makes what replaces convolutional mixers, from channels and `ratio`; None to leave them.
        attention: makes what replaces attention, from channels, `heads` and `head_dim`; None to leave it.
        mlp: makes what replaces MLPs, from channels and `ratio`; None to leave them.
        match: whether parameters ("params") or multiply-accumulates ("flops") are kept.
    """
    if match not in ("params", "flops"):
        raise PolyNeXtError(f"replace_mixers got match={match!r}: choose 'params' or 'flops'.")
    trial = copy.deepcopy(model).eval().to("meta", torch.float32)  # an error must leave the network as it was
    groups = list(find_groups(trial, conv, attention, mlp))
    if not groups:
        raise PolyNeXtError(
            f"{type(model).__name__} has nothing to replace: give a MetaFormer with convolutions or attention, "
            "a ConvNeXt or a ViT from timm, and say which of conv, attention and mlp to put in."
        )
    input_size = image_size(model)
    before = count_parameters(trial), count_macs(trial, input_size)
    measure_slots(trial, groups, match, input_size)
    sizes = matching_sizes(groups, match)
    fill(trial, groups, sizes)
    after = count_parameters(trial), count_macs(trial, input_size)
    replaced = {slot.name: innermost(slot.module) for group in groups for slot in group}
    found = Replacement(replaced, (before[0], after[0]), (before[1], after[1]))
    change = found.parameter_change if match == "params" else found.mac_change
    if abs(change) > TOLERANCE:
        raise PolyNeXtError(
            f"the {match} of {type(model).__name__} change by {change:+.1%} with the nearest widths, more than "
            f"{TOLERANCE:.0%}: it is too small or too unlike these modules; match the other one."
        )
    fill(model, list(find_groups(model, conv, attention, mlp)), sizes)
    return model, found


def find_groups(model: nn.Module, conv: Maker | None, attention: Maker | None, mlp: Maker | None) -> Iterator[Group]:
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    prefix = getattr(model, "num_prefix_tokens", 0)

    def conv_slot(block: nn.Module, attribute: str, name: str, channels: int) -> Slot:
        def make(size: float, **dd: Any) -> nn.Module:
            assert conv is not None
            return conv(channels, ratio=(max(1, round(channels * size)) + 0.5) / channels, **dd)

        return Slot(block, attribute, name, make)

    def mlp_slot(block: nn.Module, name: str, channels: int, on_maps: bool) -> Slot:
        def make(size: float, **dd: Any) -> nn.Module:
            assert mlp is not None
            made = mlp(channels, ratio=(2 * max(1, round(channels * size)) + 0.5) / channels, **dd)
            return made if on_maps else ChannelsLast(made)

        return Slot(block, "mlp", name, make)

    def attention_slot(block: nn.Module, attribute: str, name: str, channels: int, on_maps: bool) -> Slot:
        old: Any = getattr(block, attribute)
        usual = channels // old.num_heads

        def make(size: float, **dd: Any) -> nn.Module:
            assert attention is not None
            # The networks that these go into norm before their attention.
            head_dim = max(2, round(size * usual))
            made = attention(channels, heads=old.num_heads, head_dim=head_dim, norm=nn.Identity, **dd)
            return made if on_maps else TokenAttention(made, prefix, grid)

        return Slot(block, attribute, name, make)

    for name, block in model.named_modules():
        group: Group = []
        if isinstance(block, metaformer.MetaFormerBlock):
            channels = block.norm1.weight.numel()
            mixer: Any = block.token_mixer
            if conv is not None and isinstance(mixer, metaformer.SepConv):
                group.append(conv_slot(block, "token_mixer", f"{name}.token_mixer", channels))
            if attention is not None and isinstance(mixer, metaformer.Attention):
                group.append(attention_slot(block, "token_mixer", f"{name}.token_mixer", channels, on_maps=True))
            if mlp is not None:
                on_maps = not isinstance(mixer, metaformer.Attention) or attention is not None
                group.append(mlp_slot(block, f"{name}.mlp", channels, on_maps))
        elif isinstance(block, convnext.ConvNeXtBlock):
            old: Any = block.conv_dw
            keeps_shape = old.stride == (1, 1) and old.in_channels == old.out_channels
            if conv is not None and keeps_shape:
                group.append(conv_slot(block, "conv_dw", f"{name}.conv_dw", old.out_channels))
            if mlp is not None:
                group.append(mlp_slot(block, f"{name}.mlp", old.out_channels, bool(block.use_conv_mlp)))
        elif isinstance(block, vision_transformer.Block):
            channels = block.norm1.weight.numel()
            if attention is not None:
                group.append(attention_slot(block, "attn", f"{name}.attn", channels, on_maps=False))
            if mlp is not None:
                group.append(mlp_slot(block, f"{name}.mlp", channels, on_maps=False))
        if group:
            yield group


def measure_slots(model: nn.Module, groups: list[Group], match: Match, input_size: tuple[int, int, int]) -> None:
    """Notes what the modules in the slots of a model without memory cost, and the shape of what they get."""
    handles = []
    for slot in (slot for group in groups for slot in group):

        def note(module: nn.Module, inputs: tuple[Tensor, ...], slot: Slot = slot) -> None:
            slot.input_shape = tuple(inputs[0].shape)

        slot.cost = count_parameters(slot.module)
        handles.append(slot.module.register_forward_pre_hook(note))
    with torch.no_grad():
        model(torch.empty(1, *input_size, device="meta"))
    for handle in handles:
        handle.remove()
    if match == "flops":
        for slot in (slot for group in groups for slot in group):
            slot.cost = macs(slot.module, slot.input_shape)


def macs(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    counter = MacCounter()
    with torch.no_grad(), counter:
        module.eval()(torch.empty(input_shape, device="meta"))
    return counter.total


def matching_sizes(groups: list[Group], match: Match) -> list[float]:
    known: dict[Any, float] = {}  # most blocks are like others
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
        made = [(slot, slot.make(size, device="meta")) for slot in group]
        if match == "params":
            return sum(count_parameters(module) for _, module in made) - wanted
        return sum(macs(module, map_shape(module, slot.input_shape)) for slot, module in made) - wanted

    low, high = 0.0, 8.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return min((low, high), key=lambda size: abs(excess(size)))


def map_shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Attention of a MetaFormer gets tokens, and PolyAttention in its place the map that they were."""
    if isinstance(module, TokenAttention | ChannelsLast) or len(shape) == 4:
        return shape
    batch, tokens, channels = shape
    side = math.isqrt(tokens)
    return batch, channels, side, tokens // side


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """What the network is made for: its first convolution knows the channels, its patches or its config the size."""
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    cfg: Any = getattr(model, "pretrained_cfg", None) or {}
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return channels, *(size or cfg.get("input_size", (3, 224, 224))[1:])


def innermost(module: nn.Module) -> str:
    inner = module.inner if isinstance(module, ChannelsLast | TokenAttention) else module
    return type(inner).__name__


def fill(model: nn.Module, groups: list[Group], sizes: list[float]) -> None:
    """Puts the polynomial modules into their slots."""
    for group, size in zip(groups, sizes, strict=True):
        for slot in group:
            old = next(slot.module.parameters(), torch.empty(0))
            new = slot.make(size, device=old.device, dtype=old.dtype).train(model.training)
            setattr(slot.owner, slot.attribute, new)
    keep_maps(model, {(slot.owner, slot.attribute) for group in groups for slot in group})


def keep_maps(model: nn.Module, replaced: set[tuple[nn.Module, str]]) -> None:
    """A MetaFormer stage whose attention takes maps need not flatten them: its norms and MLP see them as tokens."""
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
    """A MetaFormer's scale for each channel, of maps (B, C, H, W)."""

    def __init__(self, tokens: metaformer.Scale):
        super().__init__()
        self.scale = tokens.scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:, None, None]


class MapStage(nn.Module):
    """A MetaFormer's stage whose blocks take maps (B, C, H, W)."""

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


default_cfgs = generate_default_cfgs(
    {
        "caformer_s18_poly": {
            "input_size": (3, 224, 224),
            "pool_size": (7, 7),
            "num_classes": 1000,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": "stem.conv",
            "classifier": "head.fc.fc2",
        }
    }
)


@register("polynomial mixers")
def caformer_s18_poly(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CAFormer-S18 with PolyConv and PolyAttention for its mixers, at the same number of parameters."""
    if pretrained:
        raise PolyNeXtError("there are no published weights of caformer_s18_poly: train it, with pretrained=False.")
    return replace_mixers(metaformer.caformer_s18(pretrained=False, **kwargs), mlp=None)[0]
