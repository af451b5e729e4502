"""Polynomial attention without its N x N weights in memory.

Shape letters are those of `nn/polyattention.py`. For S = Q K^T + 1, A = S^p, y = A V and the row sums r = A 1, the
gradients are

    g_V = A^T g_y,    g_S = p S^(p-1) * (g_y V^T + g_r 1^T),    g_Q = g_S K,    g_K = g_S^T Q,

so the backward pass needs Q, K and V only: N x d numbers instead of several N x N.
"""

from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polynext.acceleration.cpu import cached_parts, is_cpu_inference
from polynext.acceleration.fast_module import FastModule, needs_plain_operations
from polynext.nn import PolyAttention
from polynext.nn.polyattention import integer_power, kernel_rows
from polynext.nn.windows import concatenate, window_partition, window_reverse

# Above BLOCK_ABOVE tokens the queries are processed QUERY_BLOCK at a time, so memory grows with N instead of N^2.
BLOCK_ABOVE = 2048
QUERY_BLOCK = 512

# True while a forward pass is recomputed for the backward pass that follows at once: keep S, which that pass needs.
KEEP_PRODUCTS = ContextVar("keep_products", default=False)


class FastAttention(FastModule, PolyAttention):
    """PolyAttention with less memory: training keeps no N x N weights, inference on CPUs stays within the caches."""

    plain = PolyAttention

    def weighted_sums(self, q: Tensor, k: Tensor, v: Tensor, magnitudes: bool) -> tuple[Tensor, Tensor]:
        if needs_plain_operations() or self.neighbourhood is not None:  # neighbourhoods have no N x N weights
            return super().weighted_sums(q, k, v, magnitudes)
        height, width = q.shape[1:3]
        qs, ks, vs = (window_partition(x, self.window) for x in (q, k, v))
        results = [attend(qs[i], ks[i], vs[i], self.p, magnitudes) for i in range(len(qs))]
        weighted = window_reverse([result[0] for result in results], height, width, self.window)
        row_sum = window_reverse([result[1] for result in results], height, width, self.window)
        return weighted, row_sum.squeeze(-1)


def attend(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    """`kernel_rows`, for many queries a block at a time; the backward pass recomputes each block."""
    if q.shape[-2] <= BLOCK_ABOVE:
        return attend_block(q, k, v, p, magnitudes)
    rows = partial(checkpoint, attend_block, use_reentrant=False) if needs_gradients(q, k, v) else attend_block
    results = [rows(block, k, v, p, magnitudes) for block in q.split(QUERY_BLOCK, dim=-2)]
    return torch.cat([result[0] for result in results], dim=-2), torch.cat([result[1] for result in results], dim=-2)


def attend_block(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    if not torch.compiler.is_compiling():
        if needs_gradients(q, k, v):
            return KernelRows.apply(q, k, v, p, magnitudes)
        if is_cpu_inference(q):
            return cached_rows(q, k, v, p, magnitudes)
    return kernel_rows(q, k, v, p, magnitudes)


def needs_gradients(*inputs: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in inputs)


def cached_rows(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    """`kernel_rows` for as many images at a time as the caches hold the attention weights of."""
    image_bytes = q.shape[1] * q.shape[2] * k.shape[2] * q.element_size()
    parts = max(1, cached_parts(len(q), image_bytes))
    qs, ks, vs = (t.tensor_split(parts) for t in (q, k, v))
    results = [rows_in_place(qs[i], ks[i], vs[i], p, magnitudes) for i in range(parts)]
    return concatenate([result[0] for result in results], dim=0), concatenate([result[1] for result in results], dim=0)


def rows_in_place(q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
    weights, power = (q @ k.transpose(-2, -1)).add_(1), p
    while power % 2 == 0:
        weights, power = weights.mul_(weights), power // 2
    weights = integer_power(weights, power)
    summed = weights.abs() if magnitudes and p % 2 == 1 else weights
    return weights @ v, summed.sum(dim=-1, keepdim=True)


class KernelRows(torch.autograd.Function):
    """`kernel_rows` with the backward pass described at the top of this file."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, p: int, magnitudes: bool) -> tuple[Tensor, Tensor]:
        products = (q @ k.transpose(-2, -1)).add_(1)
        weights = integer_power(products, p)
        ctx.p, ctx.signed, ctx.dtype = p, magnitudes and p % 2 == 1, products.dtype
        ctx.save_for_backward(q, k, v)
        ctx.products = products if KEEP_PRODUCTS.get() else None
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
        gradients = zip((grad_q, grad_k, grad_v), inputs, strict=True)
        return *(g.to(t.dtype) for g, t in gradients), None, None
