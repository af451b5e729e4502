"""PolyAttention mixes positions by attention with a polynomial kernel in place of the exponential.

Attention is global, within windows (`windows.py`), or within a dilated neighbourhood (`neighbourhoods.py`).

Shape letters: B batch, H and W feature map, N = H W tokens, h heads, d channels of a head.
"""

import math
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn.conv import DepthwiseConv2d, PointwiseConv2d
from polynext.nn.neighbourhoods import existing_neighbours, gather_neighbours
from polynext.nn.norm import LayerNorm2d, NormMaker, RowSumNorm
from polynext.nn.placement import Placement
from polynext.nn.windows import window_partition, window_reverse

Normalisation = Literal["l1", "row_sum", "softmax"]


class PolyAttention(nn.Module):
    """Polynomial attention, PolyAttn in the paper (Section 3.3, Equation 6).

        A = (s Q K^T + 1)^p,    s = sigmoid(lambda), one per head
        y = W_out K(norm(A) V)

    The input is normalised first. The 1x1 convolution `w_qkv` projects it to a map shared by queries and keys, and to
    the values. Depthwise convolutions (5x5 `k_q` and `k_k`, 3x3 `k_v`) give Q, K and V; K is the depthwise 3x3 `k`,
    W_out the 1x1 `w_out`. Shapes (B, C, H, W) to (B, C, H, W).

    Degree 2p + 1 with "row_sum" in eval mode (2p for the kernel, 1 for the values), the pre-norm aside. "l1" divides by
    a polynomial of degree 2p; softmax is not a polynomial.

    Args:
        channels: C.
        heads: ceil(C / 64) by default.
        head_dim: d.
        p: exponent of the kernel, the paper's "polynomial degree p". The attribute `degree` is that of the operator.
        normalisation: of a query's weights. "l1" divides by the sum of their magnitudes, "row_sum" by a running
            estimate of their sum (needs `size`); "softmax" replaces the kernel by the exponential.
        size: the feature map (H, W), for "row_sum" only.
        window: side of the square windows that attention is confined to; None for the whole map.
        neighbourhood: side of the square around each query that attention is confined to, an odd number; None for the
            whole map.
        dilation: distance between neighbours.
        norm: builds the pre-norm from a number of channels.
        out_norm: builds a norm before `w_out`; none by default.
        row_norm: builds the norm of "row_sum" from heads, size and number of keys.
    """

    def __init__(
        self,
        channels: int,
        heads: int | None = None,
        head_dim: int = 32,
        p: int = 4,
        normalisation: Normalisation = "l1",
        size: tuple[int, int] | None = None,
        window: int | None = None,
        neighbourhood: int | None = None,
        dilation: int = 1,
        norm: NormMaker = LayerNorm2d,
        out_norm: NormMaker = nn.Identity,
        row_norm: NormMaker = RowSumNorm,
        **dd: Unpack[Placement],
    ):
        super().__init__()
        if p < 1:
            raise PolyNeXtError(f"PolyAttention got p={p}: give a kernel degree of at least 1.")
        if head_dim < 2:
            raise PolyNeXtError(
                f"PolyAttention got head_dim={head_dim}: give at least 2, so that the initial scale head_dim^-1/2 is "
                "below 1."
            )
        if window is not None and window < 1:
            raise PolyNeXtError(f"PolyAttention got window={window}: give a side of at least 1, or None.")
        check_neighbourhood(neighbourhood, dilation, window)
        if normalisation not in ("l1", "row_sum", "softmax"):
            raise PolyNeXtError(
                f"PolyAttention got normalisation={normalisation!r}: choose 'l1', 'row_sum' or 'softmax'."
            )
        if (normalisation == "row_sum") != (size is not None):
            raise PolyNeXtError(
                f"PolyAttention got normalisation={normalisation!r} and size={size}: "
                "'row_sum' needs the size of the feature map, the others take any size."
            )
        heads = heads or math.ceil(channels / 64)
        inner = heads * head_dim
        self.heads, self.p, self.normalisation = heads, p, normalisation
        self.window, self.neighbourhood, self.dilation = window, neighbourhood, dilation
        self.norm = norm(channels, **dd)
        self.w_qkv = PointwiseConv2d(channels, 2 * inner, **dd)
        self.k_q = DepthwiseConv2d(inner, inner, 5, **dd)
        self.k_k = DepthwiseConv2d(inner, inner, 5, **dd)
        self.k_v = DepthwiseConv2d(inner, inner, 3, **dd)
        self.scale: nn.Module = HeadScale(heads, head_dim**-0.5, **dd)
        side = window or neighbourhood
        keys = side * side if side else None
        self.row_norm = row_norm(heads, size, keys, **dd) if size is not None else None
        self.k = DepthwiseConv2d(inner, inner, 3, **dd)
        self.out_norm = out_norm(inner, **dd)
        self.w_out = PointwiseConv2d(inner, channels, **dd)

    @property
    def degree(self) -> int:
        return 2 * self.p + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.w_out(self.mix(self.w_qkv(self.norm(x))))

    def mix(self, qkv: Tensor) -> Tensor:
        """K(norm(A) V): the operator between its two 1x1 convolutions."""
        qk, v = qkv.chunk(2, dim=1)
        q, k, v = self.split_heads(self.k_q(qk)), self.split_heads(self.k_k(qk)), self.split_heads(self.k_v(v))
        y = self.attend(self.scale(q), k, v).flatten(3).permute(0, 3, 1, 2)  # (B, h d, H, W)
        return self.out_norm(self.k(y))

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, h d, H, W) to (B, H, W, h, d)."""
        return x.permute(0, 2, 3, 1).unflatten(3, (self.heads, -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """norm(A) V, (B, H, W, h, d)."""
        if self.normalisation == "softmax":
            if self.neighbourhood is not None:
                return softmax_of_neighbours(q, k, v, self.neighbourhood, self.dilation)
            return softmax_attention(q, k, v, self.window)
        weighted, row_sum = self.weighted_sums(q, k, v, magnitudes=self.row_norm is None)
        if self.row_norm is not None:
            return self.row_norm(weighted, row_sum)
        return weighted / row_sum.clamp_min(1e-12).unsqueeze(-1)

    def weighted_sums(self, q: Tensor, k: Tensor, v: Tensor, magnitudes: bool) -> tuple[Tensor, Tensor]:
        """`A V` (B, H, W, h, d) and the row sums of A, or of |A|, (B, H, W, h)."""
        if self.neighbourhood is not None:
            return kernel_of_neighbours(q, k, v, self.p, self.neighbourhood, self.dilation, magnitudes)
        return kernel_attention(q, k, v, self.p, self.window, magnitudes)

    def extra_repr(self) -> str:
        sparse = f"window={self.window}"
        if self.neighbourhood is not None:
            sparse = f"neighbourhood={self.neighbourhood}, dilation={self.dilation}"
        return f"heads={self.heads}, p={self.p}, normalisation={self.normalisation}, {sparse}"


def check_neighbourhood(side: int | None, dilation: int, window: int | None) -> None:
    if side is not None and (side < 1 or side % 2 == 0):
        raise PolyNeXtError(f"PolyAttention got neighbourhood={side}: give an odd side, or None.")
    if dilation < 1 or (dilation > 1 and side is None):
        raise PolyNeXtError(
            f"PolyAttention got dilation={dilation} and neighbourhood={side}: "
            "give a dilation of at least 1, together with a neighbourhood."
        )
    if side is not None and window is not None:
        raise PolyNeXtError(f"PolyAttention got window={window} and neighbourhood={side}: give one of them.")


class HeadScale(nn.Module):
    """`s q` with s = sigmoid(lambda), one per head: (B, H, W, h, d) to (B, H, W, h, d). Degree 1."""

    def __init__(self, heads: int, start: float, **dd: Unpack[Placement]):
        super().__init__()
        self.logits = nn.Parameter(torch.full((heads,), math.log(start / (1 - start)), **dd))

    def scales(self) -> Tensor:
        return self.logits.sigmoid()

    def forward(self, q: Tensor) -> Tensor:
        return q * self.scales().unsqueeze(-1)


@torch.fx.wrap
def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, p: int, window: int | None, magnitudes: bool
) -> tuple[Tensor, Tensor]:
    """`A V` (B, H, W, h, d) and the row sums of A (B, H, W, h), for A = (Q K^T + 1)^p. Q includes the scale s.

    The caller divides by the row sums: this takes N x d divisions instead of N x N. With `magnitudes` the sums are of
    |A|, which differs for odd p only.
    """
    height, width = q.shape[1:3]
    qs, ks, vs = window_partition(q, window), window_partition(k, window), window_partition(v, window)
    results = [kernel_rows(qs[i], ks[i], vs[i], p, magnitudes) for i in range(len(qs))]
    weighted = window_reverse([result[0] for result in results], height, width, window)
    row_sum = window_reverse([result[1] for result in results], height, width, window)
    return weighted, row_sum.squeeze(-1)


def kernel_rows(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    """`A V` (B, h, N, d) and the row sums of A (B, h, N, 1) for tokens (B, h, N, d): Equation 6."""
    weights = integer_power(q @ k.transpose(-2, -1) + 1, p)
    summed = weights.abs() if magnitudes and p % 2 == 1 else weights
    return weights @ v, summed.sum(dim=-1, keepdim=True)


@torch.fx.wrap
def kernel_of_neighbours(
    q: Tensor, k: Tensor, v: Tensor, p: int, side: int, dilation: int, magnitudes: bool
) -> tuple[Tensor, Tensor]:
    """`kernel_attention` with the weights 0 for all keys that are not neighbours of their query."""
    weights = integer_power(scores_of_neighbours(q, k, side, dilation) + 1, p) * existing_neighbours(q, side, dilation)
    weighted = (weights.unsqueeze(-2) @ gather_neighbours(v, side, dilation)).squeeze(-2)
    return weighted, (weights.abs() if magnitudes and p % 2 == 1 else weights).sum(dim=-1)


def scores_of_neighbours(q: Tensor, k: Tensor, side: int, dilation: int) -> Tensor:
    """Q K^T for the neighbours of each query, (B, H, W, h, n)."""
    return (gather_neighbours(k, side, dilation) @ q.unsqueeze(-1)).squeeze(-1)


def integer_power(x: Tensor, p: int) -> Tensor:
    """x^p by repeated squaring, which is much faster than `torch.pow`."""
    while p % 2 == 0:
        x, p = x * x, p // 2
    power = x
    while p > 1:
        x, p = x * x, p // 2
        if p % 2 == 1:
            power = power * x
    return power


@torch.fx.wrap
def softmax_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """softmax(Q K^T) V, (B, H, W, h, d)."""
    height, width = q.shape[1:3]
    qs, ks, vs = window_partition(q, window), window_partition(k, window), window_partition(v, window)
    results = [F.scaled_dot_product_attention(qs[i], ks[i], vs[i], scale=1.0) for i in range(len(qs))]
    return window_reverse(results, height, width, window)


@torch.fx.wrap
def softmax_of_neighbours(q: Tensor, k: Tensor, v: Tensor, side: int, dilation: int) -> Tensor:
    """softmax(Q K^T) V over the neighbours of each query, (B, H, W, h, d)."""
    outside = existing_neighbours(q, side, dilation) == 0
    weights = scores_of_neighbours(q, k, side, dilation).masked_fill(outside, -math.inf).softmax(dim=-1)
    return (weights.unsqueeze(-2) @ gather_neighbours(v, side, dilation)).squeeze(-2)
