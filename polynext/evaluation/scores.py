"""Counts of correct predictions: every image once, for any batch size, workers and processes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from polynext.data import evaluation_batches
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.evaluation.sets import EvaluationSet

# AlexNet's errors in percent, the reference of the mCE.
ALEXNET_ERRORS = {
    "gaussian_noise": 88.6, "shot_noise": 89.4, "impulse_noise": 92.3, "defocus_blur": 82.0, "glass_blur": 82.6,
    "motion_blur": 78.6, "zoom_blur": 79.8, "snow": 86.7, "frost": 82.7, "fog": 81.9, "brightness": 56.5,
    "contrast": 85.3, "elastic_transform": 64.6, "pixelate": 71.8, "jpeg_compression": 60.7,
}  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """Counts over a set: images, correct top-1 and top-5 predictions, and images and correct ones of each class."""

    images: int
    right: int
    right_in_5: int
    class_images: list[int] = field(repr=False)
    class_right: list[int] = field(repr=False)

    @property
    def top1(self) -> float:
        return 100 * self.right / self.images

    @property
    def top5(self) -> float:
        return 100 * self.right_in_5 / self.images


@torch.inference_mode()
def score(model: nn.Module, chosen: EvaluationSet, group: Processes, batch_size: int = 64, workers: int = 0) -> Scores:
    """Counts the correct predictions of a model on a set, over all processes."""
    model.eval()
    classes = len(chosen.examples.classes)
    among = None if chosen.among is None else torch.from_numpy(chosen.among).to(group.device)
    counts = np.zeros((3, classes), dtype=np.int64)  # images, correct top-1, correct top-5
    share = (group.rank, group.count)
    batches = evaluation_batches(chosen.examples, chosen.preprocessing, batch_size, share, workers)
    mine = range(group.rank, len(chosen.examples), group.count)
    numbers = iter(mine)
    with tqdm(total=len(mine), unit="image", leave=False, disable=None if group.first else True) as bar:
        for images, labels in batches:
            logits = model(images.to(group.device)).float()
            logits = check_classes(logits, classes, among)
            best = logits.topk(min(5, logits.shape[1]), dim=1).indices.cpu()
            for answers, label in zip(best.tolist(), labels.tolist(), strict=True):
                number = next(numbers)
                accepted = [label] if chosen.answers is None else chosen.answers[number]
                if accepted:
                    counts[:, label] += (1, answers[0] in accepted, any(a in accepted for a in answers))
            bar.update(len(labels))
    total = np.array(group.total(*counts.ravel().tolist()), dtype=np.int64).reshape(counts.shape)
    images, right, in_five = total.sum(axis=1).tolist()
    if not images:
        raise PolyNeXtError("no image of this set has an accepted label: there is nothing to score.")
    return Scores(images, right, in_five, total[0].tolist(), total[1].tolist())


def check_classes(logits: Tensor, classes: int, among: Tensor | None) -> Tensor:
    """The logits of the set's classes."""
    if among is not None:
        if logits.shape[1] != 1000:
            raise PolyNeXtError(f"the network has {logits.shape[1]} classes: this set needs ImageNet's 1000.")
        return logits[:, among]
    if logits.shape[1] != classes:
        raise PolyNeXtError(
            f"the network has {logits.shape[1]} classes and the data set {classes}: give a checkpoint for "
            "these classes."
        )
    return logits


def mean_corruption_error(errors: Mapping[str, Iterable[float]], reference: dict[str, float]) -> float:
    """The mCE: the mean error of each corruption relative to a reference network, averaged over corruptions."""
    ratios = [np.mean(list(errors[name])) / reference[name] for name in reference]
    return 100 * float(np.mean(ratios))
