"""The options that every module passes on to its parameters."""

from typing import TypedDict

import torch


class Placement(TypedDict, total=False):
    """Where parameters are created, and in which precision; PyTorch's defaults where it says nothing."""

    device: torch.device | str | None
    dtype: torch.dtype | None
