"""Inference on CPUs: when the specialised code applies, and how many images the processor's caches hold."""

import platform

import torch
from torch import Tensor

# oneDNN multiplies the tall, narrow matrices of these networks faster than the BLAS behind `F.linear`.
ONEDNN = torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")

CACHE_BYTES = 2**21  # of a feature map, for each thread: the caches of a core hold a few such maps


def is_cpu_inference(x: Tensor) -> bool:
    """True without gradients and autocast, in float32, on a CPU with oneDNN."""
    if not ONEDNN or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == "cpu" and x.dtype == torch.float32


def is_compiled_cpu_inference(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and is_cpu_inference(x)


def cached_parts(images: int, image_bytes: int) -> int:
    """The number of parts to split a batch into, so that consecutive operations find their inputs in the caches.

    Each part has at least as many images as the caches hold at `image_bytes` for each. 0 means: do not split.
    """
    return images // max(1, CACHE_BYTES * torch.get_num_threads() // image_bytes)
