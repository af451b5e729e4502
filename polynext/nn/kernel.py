"""The polynomial kernel of attention: weights (q k + 1)^p, of which no backward pass keeps any.

Shape letters as in `polyattention.py`. For S = Q K^T + 1, A = S^p, y = A V and the row sums r = A 1, the gradients g_y
and g_r give

    g_V = A^T g_y,    g_S = p S^(p-1) * (g_y V^T + g_r 1^T),    g_Q = g_S K,    g_K = g_S^T Q,

all from Q, K and V: N x d numbers are kept instead of several N x N.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polynext.nn.inference import cached_parts, infers_on_cpu, transformed
from polynext.nn.norm import RECOMPUTING
from polynext.nn.windows import join

# Above BLOCK_ABOVE tokens the queries are taken QUERY_BLOCK at a time, so that memory grows with N and not with N^2.
BLOCK_ABOVE = 2048
QUERY_BLOCK = 512


def kernel_tokens(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    """`A V` (B, h, N, d) and the row sums of A (B, h, N, 1)."""
    if not torch.jit.is_scripting() and needs_blocks(q):
        return kernel_blocks(q, k, v, p, magnitudes)
    return kernel_rows(q, k, v, p, magnitudes)


def kernel_rows(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    if not torch.jit.is_scripting():
        if learns(q, k, v):
            return kept_rows(q, k, v, p, magnitudes)
        if infers_on_cpu(q) and not torch.compiler.is_compiling():
            return cached_rows(q, k, v, p, magnitudes)
    weights = integer_power(q @ k.transpose(-2, -1) + 1, p)  # Equation 6; q carries s
    summed = weights.abs() if magnitudes and p % 2 == 1 else weights
    return weights @ v, summed.sum(dim=-1, keepdim=True)


@torch.jit.unused
def learns(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a backward pass may follow, of what PyTorch runs as it comes. A trace has no operations of our own."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling() or transformed():
        return False
    return torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))


@torch.jit.unused
def kept_rows(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    return KernelRows.apply(q, k, v, p, magnitudes)


@torch.jit.unused
def cached_rows(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    """The rows a few images at a time: as many as the caches hold the weights of."""
    image = q.shape[1] * q.shape[2] * k.shape[2] * q.element_size()
    parts = max(1, cached_parts(len(q), image))
    qs, ks, vs = (t.tensor_split(parts) for t in (q, k, v))
    done = [rows_in_place(qs[i], ks[i], vs[i], p, magnitudes) for i in range(parts)]
    return join([part[0] for part in done], dim=0), join([part[1] for part in done], dim=0)


def rows_in_place(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    weights, power = (q @ k.transpose(-2, -1)).add_(1), p
    while power % 2 == 0:
        weights, power = weights.mul_(weights), power // 2
    weights = integer_power(weights, power)
    summed = weights.abs() if magnitudes and p % 2 == 1 else weights
    return weights @ v, summed.sum(dim=-1, keepdim=True)


class KernelRows(torch.autograd.Function):
    """`A V` and the row sums of A, with the backward pass that this file is about."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
        products = (q @ k.transpose(-2, -1)).add_(1)
        weights = integer_power(products, p)
        ctx.p, ctx.signed, ctx.dtype = p, magnitudes and p % 2 == 1, products.dtype
        ctx.save_for_backward(q, k, v)
        ctx.products = products if RECOMPUTING.get() else None  # what a backward pass wants again it wants at once
        summed = weights.abs() if ctx.signed else weights
        return weights @ v, summed.sum(dim=-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        q, k, v = (t.to(ctx.dtype) for t in inputs)
        products = ctx.products if ctx.products is not None else (q @ k.transpose(-2, -1)).add_(1)
        grad, grad_sum = (g.to(ctx.dtype) for g in grads)
        slope = integer_power(products, ctx.p - 1) if ctx.p > 1 else torch.ones_like(products)
        weights = slope * products
        grad_v = weights.transpose(-2, -1) @ grad
        change = grad @ v.transpose(-2, -1)
        change = change.addcmul_(weights.sign(), grad_sum) if ctx.signed else change.add_(grad_sum)
        change.mul_(slope)
        grad_q, grad_k = change @ (ctx.p * k), change.transpose(-2, -1) @ (ctx.p * q)
        found = zip((grad_q, grad_k, grad_v), inputs, strict=True)
        return *(g.to(t.dtype) for g, t in found), None, None


@torch.jit.unused
def needs_blocks(q: Tensor) -> bool:
    return not torch.jit.is_tracing() and q.shape[-2] > BLOCK_ABOVE  # a traced size is not a number


def kernel_blocks(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    """The rows a block of queries at a time, computed again in a backward pass instead of kept for it."""
    recompute = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    rows = partial(checkpoint, kernel_rows, use_reentrant=False) if recompute else kernel_rows
    done = [rows(block, k, v, p, magnitudes) for block in q.split(QUERY_BLOCK, dim=-2)]
    return torch.cat([part[0] for part in done], dim=-2), torch.cat([part[1] for part in done], dim=-2)


def integer_power(x: Tensor, p: int) -> Tensor:
    """x^p by repeated squaring: products only, and much faster than a general power."""
    while p % 2 == 0:
        x, p = x * x, p // 2
    power = x
    while p > 1:
        x, p = x * x, p // 2
        if p % 2 == 1:
            power = power * x
    return power
