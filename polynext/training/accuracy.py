"""Accuracy of a classifier during training."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polynext.distributed import Processes


@torch.inference_mode()
def measure_accuracy(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], group: Processes
) -> tuple[float, float]:
    """Top-1 accuracy in percent and mean cross-entropy, over the images of all processes."""
    model.eval()
    correct = loss = count = 0.0
    for images, labels in batches:
        images, labels = images.to(group.device), labels.to(group.device)
        logits = model(images).float()
        correct += (logits.argmax(dim=1) == labels).sum().item()
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        count += len(labels)
    correct, loss, count = group.total(correct, loss, count)
    return 100 * correct / count, loss / count
