"""How much of a batch the processor's caches hold."""

import torch

CACHED = 2**21  # bytes of a feature map for each thread: the caches of a core hold a few such maps


def cached_parts(images: int, size: int) -> int:
    """In how many parts to take a batch through operations of which each reads what the one before has written.

    A part has at least as many images as the caches have room for, at `size` bytes of what is written for each.
    """
    return images // max(1, CACHED * torch.get_num_threads() // size)
