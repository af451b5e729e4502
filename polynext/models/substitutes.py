"""Modules that replace a part of PolyNeXt in its variants. All map (B, C, H, W) to (B, C, H, W)."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from polynext.nn import (
    DepthwiseConv2d,
    LayerNorm2d,
    NormMaker,
    PointwiseConv2d,
    PolyConv,
    PolyHead,
    PolyMLP,
    init_kaiming,
)

Fusion = Callable[[Tensor, Tensor], Tensor]


def gelu_one_branch(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a) * b


def gelu_after_product(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a * b)


def gelu_both_branches(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a) * F.gelu(b)


def addition(a: Tensor, b: Tensor) -> Tensor:
    return a + b


class FusedBranches(nn.Module):
    """An operator with `fuse(a, b)` in place of the Hadamard product of its branches."""

    def __init__(self, *args: Any, fuse: Fusion, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.fuse = fuse
        self.degree = 1 if fuse is addition else 2


class FusedMLP(FusedBranches, PolyMLP):
    def mix(self, ab: Tensor) -> Tensor:
        a, b = ab.chunk(2, dim=1)
        return self.norm(self.fuse(a, b))


class FusedConv(FusedBranches, PolyConv):
    def mix(self, h: Tensor) -> Tensor:
        return self.k(self.fuse(self.k_coarse(h), self.k_fine(h).flip(1)))


class AddedHead(PolyHead):
    """PolyHead with `W_a x + W_b x` in place of its product, which makes it linear."""

    degree = 1

    def fuse(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class UnflippedConv(PolyConv):
    """PolyConv without the reversal of channels in its fine branch."""

    def mix(self, h: Tensor) -> Tensor:
        return self.k(self.k_coarse(h) * self.k_fine(h))


class FineConv(nn.Module):
    """PolyConv without its coarse branch and product: `y = norm(W_out K K_f W_in x)`."""

    def __init__(self, channels: int, ratio: float = 1.0, norm: NormMaker = LayerNorm2d, **dd: Any):
        super().__init__()
        hidden = int(channels * ratio)
        self.w_in = PointwiseConv2d(channels, hidden, **dd)
        self.k_fine = DepthwiseConv2d(hidden, hidden, 3, **dd)
        self.k = DepthwiseConv2d(hidden, hidden, 3, **dd)
        self.w_out = PointwiseConv2d(hidden, channels, **dd)
        self.norm = norm(channels, **dd)
        init_kaiming(self.w_in, self.k_fine, self.k, self.w_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.w_out(self.k(self.k_fine(self.w_in(x)))))


class SeparableConv(nn.Module):
    """`y = norm(W_out K gelu(W_in x))` with a 7x7 depthwise K and the hidden width of PolyConv."""

    def __init__(self, channels: int, ratio: float = 1.0, norm: NormMaker = LayerNorm2d, **dd: Any):
        super().__init__()
        hidden = int(channels * ratio)
        self.w_in = PointwiseConv2d(channels, hidden, **dd)
        self.k = DepthwiseConv2d(hidden, hidden, 7, **dd)
        self.w_out = PointwiseConv2d(hidden, channels, **dd)
        self.norm = norm(channels, **dd)
        init_kaiming(self.w_in, self.k, self.w_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.w_out(self.k(F.gelu(self.w_in(x)))))


class GeluMLP(nn.Module):
    """`y = norm(W_2 gelu(W_1 x))` with as many weights as PolyMLP of the same ratio."""

    def __init__(self, channels: int, ratio: float = 2.0, norm: NormMaker = LayerNorm2d, **dd: Any):
        super().__init__()
        hidden = round(0.75 * channels * ratio)  # PolyMLP has 1.5 ratio C^2 weights, an MLP 2 hidden C
        self.w_1 = PointwiseConv2d(channels, hidden, **dd)
        self.w_2 = PointwiseConv2d(hidden, channels, **dd)
        self.norm = norm(channels, **dd)
        init_kaiming(self.w_1, self.w_2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.w_2(F.gelu(self.w_1(x))))


class StandardAttention(nn.Module):
    """`W_out softmax(Q K^T / sqrt(d)) V` of the normalised input, with one projection for Q, K and V."""

    def __init__(self, channels: int, heads: int, head_dim: int = 32, norm: NormMaker = LayerNorm2d, **dd: Any):
        super().__init__()
        self.heads = heads
        self.norm = norm(channels, **dd)
        self.w_qkv = PointwiseConv2d(channels, 3 * heads * head_dim, **dd)
        self.w_out = PointwiseConv2d(heads * head_dim, channels, **dd)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        qkv = self.w_qkv(self.norm(x)).permute(0, 2, 3, 1).flatten(1, 2)  # (B, N, 3 h d)
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v)  # (B, h, N, d)
        return self.w_out(y.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(2, (height, width)))


class NewestInput(nn.Module):
    """Replaces the multi-input skip by the newest cell output."""

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return newer


class SingleDownsampling(nn.Module):
    """Downsampling of a single path."""

    def __init__(self, newer: nn.Module):
        super().__init__()
        self.newer = newer

    def forward(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        x = self.newer(newer)
        return x, x
