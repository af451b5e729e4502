"""The neighbours of each position that sparse attention is confined to.

A neighbourhood is a square of `side` x `side` positions around the query, every `dilation`-th one. Neighbours outside
the map do not exist. Shape letters are those of `polyattention.py`; n = side^2 is the number of neighbours.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def gather_neighbours(x: Tensor, side: int, dilation: int) -> Tensor:
    """The vectors of each position's neighbours, 0 outside the map: (B, H, W, h, d) to (B, H, W, h, n, d)."""
    height, width = x.shape[1:3]
    border = dilation * (side // 2)
    padded = F.pad(x, (0, 0, 0, 0, border, border, border, border))
    offsets = range(0, dilation * side, dilation)
    return torch.stack([padded[:, i : i + height, j : j + width] for i in offsets for j in offsets], dim=-2)


def existing_neighbours(x: Tensor, side: int, dilation: int) -> Tensor:
    """1 for neighbours inside the map and 0 for others, for the positions of (B, H, W, h, d): (1, H, W, 1, n)."""
    return gather_neighbours(torch.ones_like(x[:1, :, :, :1, :1]), side, dilation).squeeze(-1)
