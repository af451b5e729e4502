"""Adapters between feature maps (B, C, H, W) and tokens (B, N, C)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn import PolyAttention


class Positions(nn.Module):
    """Applies a module for (..., C) to maps (B, C, H, W)."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelsLast(nn.Module):
    """Applies a channel-mixing module for maps (B, C, H, W) to (B, N, C) or (B, H, W, C)."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            return self.inner(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.inner(x.transpose(1, 2).unsqueeze(3)).squeeze(3).transpose(1, 2)


class TokenAttention(nn.Module):
    """PolyAttention on the tokens (B, N, C) of a ViT.

    The depthwise convolutions act on the map that the patches form. The first `prefix` tokens, such as a class token,
    take part in attention only.
    """

    def __init__(self, inner: nn.Module, prefix: int, grid: tuple[int, int] | None):
        super().__init__()
        if prefix and not isinstance(inner, PolyAttention):
            raise PolyNeXtError(
                f"{type(inner).__name__} cannot replace attention among class tokens: use PolyAttention, or a ViT "
                "without a class token."
            )
        self.inner: Any = inner
        self.prefix, self.grid = prefix, grid

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise PolyNeXtError("an attention mask was given: PolyAttention does not support masks.")
        patches = to_map(x[:, self.prefix :], self.grid)
        if not self.prefix:
            return to_tokens(self.inner(patches))
        inner = self.inner
        first = x[:, : self.prefix].transpose(1, 2).unsqueeze(3)  # (B, C, P, 1)
        qk, v = inner.w_qkv(inner.norm(patches)).chunk(2, dim=1)
        first_qk, first_v = inner.w_qkv(inner.norm(first)).chunk(2, dim=1)
        maps = ((first_qk, inner.k_q(qk)), (first_qk, inner.k_k(qk)), (first_v, inner.k_v(v)))
        q, k, v = (self.heads(torch.cat([to_tokens(a), to_tokens(b)], dim=1)) for a, b in maps)
        y = inner.attend(inner.scale(q), k, v).flatten(3).squeeze(1)  # (B, P + N, h d)
        first, patches = y[:, : self.prefix], to_map(y[:, self.prefix :], self.grid)
        y = torch.cat([first, to_tokens(inner.out_norm(inner.k(patches)))], dim=1)
        return to_tokens(inner.w_out(y.transpose(1, 2).unsqueeze(3)))

    def heads(self, tokens: Tensor) -> Tensor:
        """(B, N, h d) to a map of one row, (B, 1, N, h, d)."""
        return tokens.unflatten(2, (self.inner.heads, -1)).unsqueeze(1)


def to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) to (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


@torch.fx.wrap
def to_map(tokens: Tensor, grid: tuple[int, int] | None) -> Tensor:
    """(B, N, C) to (B, C, H, W), on the network's grid or on a square one."""
    count = tokens.shape[1]
    if grid is None or grid[0] * grid[1] != count:
        side = math.isqrt(count)
        if side * side != count:
            raise PolyNeXtError(
                f"{count} patches are neither the network's grid {grid} nor a square: give square images."
            )
        grid = (side, side)
    return tokens.transpose(1, 2).unflatten(2, grid)
