"""Training a classifier."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor, nn

from polynext.config import TrainConfig, build_model, to_yaml
from polynext.config.network import check_regularisation, head_dropouts
from polynext.data import evaluation_batches, load_examples, training_transform
from polynext.data.loader import Labelled, Prepared, of_images, seed_everything
from polynext.data.sets import find_data_set
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError, preview
from polynext.training.conditioning import spread_of_singular_values
from polynext.training.folder import RunFolder
from polynext.training.loop import run
from polynext.training.optimizer import build_optimizer
from polynext.training.report import draw_lines
from polynext.training.schedule import averages_from, head_dropout, learning_rate
from polynext.training.task import Forward, Task


class Classification(Task):
    """A classifier, trained by epochs."""

    command, score = "polynext train", "test_accuracy"

    def __init__(self, config: TrainConfig, group: Processes):
        config.check()
        check_regularisation(config.model)
        self.config, self.group = config, group
        self.train_examples = load_examples(config.data, "train")
        self.tested_on: Literal["validation", "test"] = "validation" if config.data.validation else "test"
        self.test_examples = load_examples(config.data, self.tested_on)
        self.classes, tested = self.train_examples.classes, self.test_examples.classes
        if tested != self.classes[: len(tested)]:  # a label must mean the same class in both
            raise PolyNeXtError(
                f"{config.data.name} has {len(self.classes)} classes for training ({preview(self.classes, 3)}) and "
                f"others for testing ({preview(tested, 3)}): give data with the same classes."
            )
        self.transform = of_images(training_transform(config.data.preprocessing, config.augment))
        self.mixup = build_mixup(config, len(self.classes))
        micro_batch, _ = config.share(group.count)
        if self.mixup is not None and micro_batch % 2:
            raise PolyNeXtError(
                f"`micro_batch` is {micro_batch}, and Mixup and CutMix combine pairs of the images that are handled at "
                "once: give an even number, or `augment.mixup` 0 and `augment.cutmix` 0."
            )
        self.images, self.workers = len(self.train_examples), config.data.workers
        self.round_steps = max(self.images // config.batch_size, 1)
        self.steps = config.epochs * self.round_steps
        self.average_from = averages_from(config) * self.round_steps
        seed_everything(config.seed)
        self.model = self.build_model().to(group.device)
        self.model.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.clip_grad = 0.0 if config.optimizer.name == "lamb" else config.optimizer.clip_grad  # LAMB clips by itself

    def build_model(self) -> nn.Module:
        model = build_model(self.config, len(self.classes))
        require_fitting_images(model, self.config)
        return model

    def examples(self, epoch: int) -> Prepared:
        return Prepared(self.train_examples, self.transform, (self.config.seed, epoch))

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.config, step // self.round_steps)

    def start_round(self, step: int) -> None:
        set_head_dropout(self.model, head_dropout(self.config, step // self.round_steps))

    def loss(self, forward: Forward, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        labels = targets
        if self.mixup is not None:
            images, targets = self.mixup(images, labels)
        logits = forward(images)
        correct = (logits.argmax(dim=1) == labels).sum().item()
        loss = cross_entropy(logits, targets, self.config)
        if self.config.model.conditioning:
            loss = loss + self.config.model.conditioning * spread_of_singular_values(self.model)
        return loss, {"right": correct, "images": len(labels)}

    def record(self, step: int, counts: dict[str, float]) -> dict[str, Any]:
        correct, images = counts["right"], counts["images"]
        return {"epoch": step // self.round_steps - 1, "train_accuracy": 100 * correct / images}

    def evaluates(self, step: int) -> bool:
        return step // self.round_steps % self.config.evaluate_every == 0

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        config, share = self.config, (self.group.rank, self.group.count)
        micro_batch, _ = config.share(self.group.count)
        loader = evaluation_batches(
            self.test_examples, config.data.preprocessing, micro_batch, share, config.data.workers
        )
        accuracy, loss = measure_accuracy(model, loader, self.group)
        return {"test_accuracy": accuracy, "test_loss": loss}

    def sources(self) -> dict[str, Labelled]:
        return {"training": self.train_examples, self.tested_on: self.test_examples}

    def data_problems(self) -> list[str]:
        name, expected = self.config.data.name, find_data_set(self.config.data.name).classes
        problems = []
        if expected is not None and len(self.classes) != expected:
            problems.append(f"{name} has {expected} classes and {len(self.classes)} were found: check its folders.")
        if len(self.test_examples.classes) < len(self.classes):
            problems.append(f"{name} has test images of {len(self.test_examples.classes)} classes only.")
        counts = np.bincount(self.train_examples.labels, minlength=len(self.classes))
        if not counts.all():
            empty = [self.classes[i] for i in np.flatnonzero(counts == 0)]
            problems.append(f"{name} has no training images of {preview(empty)}: check its folders.")
        return problems

    def sample_evaluation(self, images: int) -> int:
        whole = len(self.test_examples)
        self.test_examples = self.test_examples.subset(np.linspace(0, whole - 1, min(images, whole)).astype(int))
        return whole

    def phases(self) -> dict[str, int]:
        config = self.config
        found = {"first steps": 0}
        if config.schedule.warmup_epochs:
            found["end of warmup"] = config.schedule.warmup_epochs * self.round_steps
        if config.ema.decay:
            found["start of averaging"] = self.average_from
        return found | {"last epoch": self.steps - self.round_steps}

    def description(self) -> dict[str, str]:
        anywhere = replace(self.config, data=replace(self.config.data, root=None))
        return {"model": self.config.model.name, "classes": json.dumps(self.classes), "config": to_yaml(anywhere)}

    def position(self, step: int) -> str:
        return f"epoch {step // self.round_steps + 1}/{self.config.epochs}"

    def figure(self, score: float) -> str:
        return f"{self.tested_on} accuracy {score:.2f}%"

    def summary(self, record: dict[str, Any]) -> str:
        line = f"epoch {record['epoch'] + 1}/{self.config.epochs}: loss {record['train_loss']:.4f}"
        for name, key in (
            ("train", "train_accuracy"),
            (self.tested_on, "test_accuracy"),
            ("averaged", "ema_test_accuracy"),
        ):
            line += f", {name} {record[key]:.2f}%" if key in record else ""
        return f"{line}, lr {record['lr']:.2e}"

    def draw_curves(self, folder: RunFolder) -> None:
        accuracies = {
            "train (augmented)": "train_accuracy",
            "test": "test_accuracy",
            "test, averaged weights": "ema_test_accuracy",
        }
        panels = {
            "cross-entropy": {"train": "train_loss", "test": "test_loss"},
            "accuracy (%)": accuracies,
            "learning rate": {"": "lr"},
        }
        records = [{**record, "epoch": record["epoch"] + 1} for record in folder.records() if "epoch" in record]
        draw_lines(records, "epoch", panels, folder.path / "curves.png")


def train(config: TrainConfig, out: Path, resume: bool = False, profile: bool = False, quiet: bool = False) -> Path:
    """Trains a classifier and returns its folder. With `resume` it continues from the newest state in the folder."""
    return run(partial(Classification, config), config, out, resume, profile, quiet)


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


def require_fitting_images(model: nn.Module, config: TrainConfig) -> None:
    """Raises if the network cannot process images of this size, such as too small ones."""
    preprocessing = config.data.preprocessing
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *preprocessing.input_size))
    except (RuntimeError, AssertionError) as error:
        raise PolyNeXtError(
            f"{config.model.name} cannot process images of {preprocessing.size} pixels ({str(error).splitlines()[0]}): "
            "give a larger `data.preprocessing.size`, or another network."
        ) from error


def build_mixup(config: TrainConfig, classes: int) -> Mixup | None:
    """Mixup or CutMix for each batch, at even odds if the config has both; None if it has neither."""
    augment = config.augment
    if not augment.mixup and not augment.cutmix:
        return None
    return Mixup(
        mixup_alpha=augment.mixup,
        cutmix_alpha=augment.cutmix,
        prob=1.0,
        switch_prob=0.5,
        mode="batch",
        label_smoothing=augment.label_smoothing,
        num_classes=classes,
    )


def cross_entropy(logits: Tensor, targets: Tensor, config: TrainConfig) -> Tensor:
    """Cross-entropy of labels, which it smooths, or of the distributions of Mixup, which are smoothed already."""
    if targets.ndim == 1:
        return F.cross_entropy(logits.float(), targets, label_smoothing=config.augment.label_smoothing)
    return F.cross_entropy(logits.float(), targets)


def set_head_dropout(model: Any, rate: float) -> None:
    """Sets the dropout before the classifier, the last one in the head, and others in the head to 0."""
    drops = head_dropouts(model)
    if not drops and rate:
        raise PolyNeXtError(f"{type(model).__name__} has no dropout in its head: give `model.dropout` 0.")
    for drop in drops:
        drop.p = rate if drop is drops[-1] else 0.0
