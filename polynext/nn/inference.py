"""Inference on CPUs in float32: the same results as elsewhere, by the routines that are fastest there.

Networks that learn, are traced, exported or run on other devices do without this file.
"""

import math
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.utils.flop_counter import register_flop_formula

# oneDNN multiplies the tall, narrow matrices of our networks faster than the library behind `F.linear`. As an operation
# of our own, because PyTorch's compiler would have oneDNN's with constant weights only, and a program for each stack.
LIBRARY = torch.library.Library("polynext", "DEF")
LIBRARY.define("matrix_product(Tensor x, Tensor weight) -> Tensor")
LIBRARY.define("convolved_product(Tensor h, Tensor coarse, Tensor fine, Tensor last, int dilation) -> Tensor")
LIBRARY.define("add_scaled_to(Tensor x, Tensor scale, Tensor(a!) y) -> ()")
CACHED = 2**21  # bytes of a feature map for each thread: the caches of a core hold a few such maps
AVAILABLE = torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


@torch.library.impl(LIBRARY, "matrix_product", "CPU")
def matrix_product(x: Tensor, weight: Tensor) -> Tensor:
    """`W x` along the last axis: (..., in) with weight (out, in) to (..., out)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


@torch.library.register_fake("polynext::matrix_product", lib=LIBRARY)
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@register_flop_formula(torch.ops.polynext.matrix_product)
def _(x_shape: Any, weight_shape: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x_shape) * weight_shape[0]


# Nothing for a compiler to gain, with a second of its time for each stage: it is spared these two.
@torch.library.impl(LIBRARY, "convolved_product", "CPU")
def _(h: Tensor, coarse: Tensor, fine: Tensor, last: Tensor, dilation: int) -> Tensor:
    """What PolyConv does between its matrix products."""
    product = convolved(h, fine).flip(1).mul_(convolved(h, coarse, dilation))
    return convolved(product, last).contiguous(memory_format=torch.channels_last)


def convolved(x: Tensor, kernel: Tensor, dilation: int = 1) -> Tensor:
    padding = dilation * (kernel.shape[-1] // 2)
    return F.conv2d(x, kernel, padding=padding, dilation=dilation, groups=len(kernel))


@torch.library.register_fake("polynext::convolved_product", lib=LIBRARY)
def _(h: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(h, memory_format=torch.channels_last)


@torch.library.impl(LIBRARY, "add_scaled_to", "CPU")
def _(x: Tensor, scale: Tensor, y: Tensor) -> None:
    torch.addcmul(x, scale, y, out=y)


@torch.library.register_fake("polynext::add_scaled_to", lib=LIBRARY)
def _(x: Tensor, scale: Tensor, y: Tensor) -> None:
    pass


def add_scaled(x: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """`x + scale y`."""
    if not torch.jit.is_scripting() and compiles_for_cpu(x):
        torch.ops.polynext.add_scaled_to(x, scale, y)
        return y
    return torch.addcmul(x, scale, y)


def cached_parts(images: int, size: int) -> int:
    """In how many parts to take a batch through operations of which each reads what the one before has written.

    A part has at least as many images as the caches have room for, at `size` bytes of what is written for each.
    """
    return images // max(1, CACHED * torch.get_num_threads() // size)


@torch.jit.unused
def infers_on_cpu(x: Tensor) -> bool:
    """Whether results are all that is wanted, on a CPU, in float32. A trace holds PyTorch's own operations only."""
    if not AVAILABLE or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if not torch.compiler.is_compiling() and (torch.jit.is_tracing() or is_fx_symbolic_tracing() or transformed()):
        return False
    return not torch.compiler.is_exporting() and x.device.type == "cpu" and x.dtype == torch.float32


def transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


@torch.jit.unused
def compiles_for_cpu(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and infers_on_cpu(x)


def normed(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last axis, written out for a compiler.

    It makes one pass over memory of this and what is around it, and three of `F.layer_norm`, whose mean it stores.
    """
    share = 1 / x.shape[-1]
    centred = x - share * x.sum(-1, keepdim=True)
    y = centred * (share * centred.square().sum(-1, keepdim=True) + eps).rsqrt() * weight
    return y if bias is None else y + bias
