"""Attention confined to square windows of the feature map.

The windows tile the map from its top left corner; those at the right and bottom border may be smaller. Shape letters as
in `polyattention.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def over_windows(
    attend: Callable[..., tuple[Tensor, ...]], maps: tuple[Tensor, ...], window: int | None
) -> tuple[Tensor, ...]:
    """Applies `attend`, a function of (B, h, N, d) tensors, to maps (B, H, W, h, d), inside each window."""
    height, width = maps[0].shape[1:3]
    side = window or max(height, width)

    def region(rows: slice, columns: slice) -> tuple[Tensor, ...]:
        parts = [m[:, rows, columns] for m in maps]
        tall, wide = parts[0].shape[1:3]
        y, x = min(side, tall), min(side, wide)
        grid = (-1, tall // y, wide // x)

        def cut(m: Tensor) -> Tensor:  # to (B windows, h, N, d)
            m = m.unflatten(2, (-1, x)).unflatten(1, (-1, y)).transpose(2, 3)
            return m.flatten(3, 4).flatten(0, 2).transpose(1, 2)

        def mend(m: Tensor) -> Tensor:  # back to (B, H, W, h, d)
            m = m.transpose(1, 2).unflatten(1, (y, x)).unflatten(0, grid)
            return m.transpose(2, 3).flatten(3, 4).flatten(1, 2)

        return tuple(mend(m) for m in attend(*(cut(m) for m in parts)))

    grown_rows = [
        join([region(rows, columns) for columns in strips(width, side)], dim=2) for rows in strips(height, side)
    ]
    return join(grown_rows, dim=1)


def strips(length: int, side: int) -> list[slice]:
    """An axis cut into the part that whole windows cover and the rest, if any."""
    whole = length - length % side
    return [s for s in (slice(0, whole), slice(whole, length)) if s.stop > s.start]


def join(parts: list[tuple[Tensor, ...]], dim: int) -> tuple[Tensor, ...]:
    return parts[0] if len(parts) == 1 else tuple(torch.cat(ts, dim=dim) for ts in zip(*parts, strict=True))
