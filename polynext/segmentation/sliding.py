"""Inference on large images by a sliding window."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def windows(length: int, window: int, stride: int) -> Iterator[slice]:
    """Slices of length `window` (or `length`, if that is less) that cover `length`. The last one ends there."""
    for i in range(max(length - window + stride - 1, 0) // stride + 1):
        end = min(i * stride + window, length)
        yield slice(max(end - window, 0), end)


def slide(network: Callable[[Tensor], Tensor], image: Tensor, window: int, stride: int) -> Tensor:
    """Logits (B, classes, H, W) of images (B, 3, H, W), averaged where windows overlap."""
    height, width = image.shape[-2:]
    total: Tensor | None = None
    seen = image.new_zeros(1, 1, height, width)
    for rows in windows(height, window, stride):
        for columns in windows(width, window, stride):
            logits = network(image[..., rows, columns])
            if total is None:
                total = logits.new_zeros(len(image), logits.shape[1], height, width)
            total[..., rows, columns] += logits
            seen[..., rows, columns] += 1
    assert total is not None
    return total / seen


@torch.inference_mode()
def predict(
    network: Callable[[Tensor], Tensor], image: Tensor, size: tuple[int, int], window: int, stride: int
) -> Tensor:
    """The class of each pixel of an image (3, H, W), resized to `size`."""
    logits = slide(network, image.unsqueeze(0), window, stride).float()
    if tuple(logits.shape[-2:]) != size:
        logits = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
    return logits.argmax(dim=1)[0]
