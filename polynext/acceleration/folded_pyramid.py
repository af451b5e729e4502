"""Folding of MONet and DTTN: batch norms become part of the neighbouring linear maps."""

from typing import Any

from torch import Tensor, nn

from polynext.models.dttn import DttnBlock
from polynext.models.monet import BatchNormLast, MonetBlock, MuLayer
from polynext.models.pyramid import Pyramid


def fold_pyramid(model: Pyramid) -> None:
    """Absorbs the norms of a network in eval mode, in place."""
    for block in model.modules():
        if isinstance(block, MonetBlock) and isinstance(block.norm, BatchNormLast):
            for layer in (block.spatial, block.channel):
                fold_mu_layer(layer, block.norm)
            block.norm = nn.Identity()
        elif isinstance(block, DttnBlock):
            fold_dttn_block(block)


def fold_mu_layer(layer: MuLayer, before: BatchNormLast) -> None:
    """Absorbs the batch norm before a mu-layer and its own two. Its shift of positions commutes with them."""
    factor, shift = affine_of(before.norm)
    for linear in (layer.u1, layer.u2):
        linear.bias.add_(linear.weight @ shift)
        linear.weight.mul_(factor)
    for linear, name in ((layer.u1, "norm_a"), (layer.u3, "norm_b")):
        scale_and_shift(linear, *affine_of(getattr(layer, name).norm))
        setattr(layer, name, nn.Identity())


def fold_dttn_block(block: DttnBlock) -> None:
    """Absorbs batch norms and alpha into the convolutions before them."""
    for layer, name in ((block.l2, "norm_l"), (block.r2, "norm_r"), (block.p, "norm_p")):
        norm = getattr(block, name)
        if isinstance(norm, nn.BatchNorm2d):
            scale_and_shift(layer, *affine_of(norm))
            setattr(block, name, nn.Identity())
    scale_and_shift(block.p, block.alpha)
    block.alpha.fill_(1.0)


def affine_of(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Factor and shift of each channel, in eval mode."""
    running_var: Any = norm.running_var
    factor = norm.weight * (running_var + norm.eps).rsqrt()
    return factor, norm.bias - norm.running_mean * factor


def scale_and_shift(layer: nn.Conv2d | nn.Linear, factor: Tensor, shift: Tensor | float = 0.0) -> None:
    """Changes a layer so that its output, channel by channel, is `factor * output + shift`."""
    assert layer.bias is not None
    layer.weight.mul_(factor.reshape(-1, *[1] * (layer.weight.ndim - 1)))
    layer.bias.mul_(factor).add_(shift)
