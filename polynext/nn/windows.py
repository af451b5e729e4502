"""Partition of a feature map into the square windows that attention is confined to.

The windows tile the map from its top left corner. Those at the right and bottom border may be smaller. Shape letters
are those of `polyattention.py`.
"""

import torch
from torch import Tensor


def window_partition(x: Tensor, window: int | None) -> list[Tensor]:
    """(B, H, W, h, d) to tokens (B windows, h, N, d), one tensor for each size of window.

    Without a window the whole map is one window.
    """
    if window is None:
        return [x.flatten(1, 2).transpose(1, 2)]
    parts = []
    for band in x.split(strips(x.shape[1], window), dim=1):
        for region in band.split(strips(x.shape[2], window), dim=2):
            tall, wide = min(window, region.shape[1]), min(window, region.shape[2])
            grid = region.unflatten(2, (-1, wide)).unflatten(1, (-1, tall)).transpose(2, 3)
            parts.append(grid.flatten(3, 4).flatten(0, 2).transpose(1, 2))
    return parts


def window_reverse(parts: list[Tensor], height: int, width: int, window: int | None) -> Tensor:
    """The inverse of `window_partition`: tokens back to a map (B, H, W, h, d)."""
    if window is None:
        return parts[0].transpose(1, 2).unflatten(1, (height, width))
    columns = strips(width, window)
    bands = []
    for i, rows in enumerate(strips(height, window)):
        band = []
        for j, across in enumerate(columns):
            tall, wide = min(window, rows), min(window, across)
            tokens = parts[i * len(columns) + j].transpose(1, 2)
            grid = tokens.unflatten(1, (tall, wide)).unflatten(0, (-1, rows // tall, across // wide))
            band.append(grid.transpose(2, 3).flatten(3, 4).flatten(1, 2))
        bands.append(concatenate(band, dim=2))
    return concatenate(bands, dim=1)


def strips(length: int, window: int) -> list[int]:
    """Splits an axis into the length that whole windows cover and the remainder, if any."""
    rest = length % window
    if rest == 0 or rest == length:
        return [length]
    return [length - rest, rest]


def concatenate(parts: list[Tensor], dim: int) -> Tensor:
    """`torch.cat` without a copy of a single tensor."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
