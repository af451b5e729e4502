"""Intersection over union, without ignored pixels."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.segmentation.data import IGNORED


@dataclass(frozen=True)
class SegmentationScores:
    """IoU of each class and pixel accuracy, in percent. A class in no mask or prediction is nan and not averaged."""

    images: int
    iou: list[float]
    accuracy: float

    @property
    def miou(self) -> float:
        known = [value for value in self.iou if not math.isnan(value)]
        return sum(known) / len(known)

    def to_json(self) -> dict[str, Any]:
        """With null in place of nan."""
        iou = [None if math.isnan(value) else value for value in self.iou]
        return {"miou": self.miou, "pixel_accuracy": self.accuracy, "iou": iou, "images": self.images}


def score(predictions: Iterable[tuple[Tensor, Tensor]], classes: int, group: Processes) -> SegmentationScores:
    """Scores of predicted and true labels. The processes have different images."""
    counts = MulticlassConfusionMatrix(classes, ignore_index=IGNORED, sync_on_compute=False, validate_args=False).to(
        group.device
    )
    images = 0
    for predicted, labels in predictions:
        counts.update(predicted.flatten(), labels.flatten().to(predicted.device))
        images += 1
    numbers = counts.confmat.double().flatten().tolist() if images else [0.0] * classes**2
    total, *numbers = group.total(images, *numbers)
    confusion = torch.tensor(numbers, dtype=torch.float64).reshape(classes, classes)
    if not confusion.any():
        raise PolyNeXtError("all pixels of the validation masks are ignored: check their labels.")
    correct = confusion.diag()
    union = confusion.sum(dim=0) + confusion.sum(dim=1) - correct
    return SegmentationScores(
        images=int(total),
        iou=(100 * correct / union).tolist(),  # 0 / 0 is nan
        accuracy=float(100 * correct.sum() / confusion.sum()),
    )
