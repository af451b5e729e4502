"""The training loop.

Random numbers follow from the seed and the step, never from what happened before: that is why an interrupted run,
resumed, ends with the weights of one that was not.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from polynext.data import batches, evaluation_batches, load_examples, training_transform
from polynext.data.loader import seed_everything
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.models import create_model, create_variant, is_polynext, read_weights, set_memory
from polynext.models.published import check_same_entries, some
from polynext.training.accuracy import measure_accuracy
from polynext.training.config import TrainConfig, check, to_yaml
from polynext.training.diagnostics import CellRecord, Diagnostics
from polynext.training.folder import RunFolder
from polynext.training.optimizer import build_optimizer, restore_optimizer
from polynext.training.profile import Profile
from polynext.training.report import Reporter
from polynext.training.schedule import averages_from, head_dropout, learning_rate
from polynext.training.stopping import StopRequest

SKIPS_IN_A_ROW = 5


class DivergedError(PolyNeXtError):
    """Loss or gradient stopped being finite, from `step` on."""

    def __init__(self, step: int, sentence: str):
        super().__init__(sentence)
        self.step = step


@dataclass
class Progress:
    """How far a run is."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_accuracy: float = -1.0
    skipped: int = 0
    epoch_totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("loss", "steps", "right", "images"), 0.0)
    )


class Trainer:
    """One run, from its config to its folder."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        group: Processes,
        profile: bool = False,
    ):
        self.config, self.folder, self.group = config, folder, group
        check(config)
        self.accumulate = accumulation(config, group.count)
        self.train_examples = load_examples(config.data, "train")
        self.test_examples = load_examples(config.data, "test")
        train, test = self.train_examples.classes, self.test_examples.classes
        if test != train[: len(test)]:  # a label would mean one thing in training and another in testing
            raise PolyNeXtError(
                f"{config.data.name} has {len(train)} classes for training ({some(train, 3)}) and others for testing "
                f"({some(test, 3)}): they must be the same."
            )
        if len(self.train_examples) < config.batch_size:
            raise PolyNeXtError(
                f"{config.data.name} has {len(self.train_examples)} training images, fewer than one batch of "
                f"{config.batch_size}: give a smaller --batch-size."
            )
        self.train_transform = training_transform(config.data.preprocessing, config.augment)
        self.test_transform = config.data.preprocessing
        seed_everything(config.seed)
        self.model = build_model(config, len(self.train_examples.classes)).to(group.device)
        self.model.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.average: AveragedModel | None = None
        self.wrapped: nn.Module = self.model
        if group.count > 1:
            self.wrapped = DistributedDataParallel(self.model)
        self.forward = torch.compile(self.wrapped) if config.compile else self.wrapped
        self.mixup = build_mixup(config, len(self.train_examples.classes))
        self.progress = Progress()
        self.diagnostics = Diagnostics(self.model) if config.diagnostics else None
        self.last_cells: dict[str, CellRecord] | None = None
        self.profile = Profile(profile)
        self.stop = StopRequest(group, "polynext train", folder.path)
        self.skips_in_a_row = 0
        self.steps_per_epoch = len(self.train_examples) // config.batch_size
        self.saved_at = time.monotonic()

    def run(self, reporter: Reporter) -> None:
        while self.progress.epoch < self.config.epochs:
            self.train_epoch(reporter)
            self.finish_epoch(reporter)
            self.stop.asked()
            self.stop.raise_if_asked()

    def train_epoch(self, reporter: Reporter) -> None:
        config, progress = self.config, self.progress
        self.set_learning_rate(learning_rate(config, progress.epoch))
        set_head_dropout(self.model, head_dropout(config, progress.epoch))
        if self.average is None and config.ema.decay and progress.epoch >= averages_from(config):
            self.average = averaged(self.model, config.ema.decay)
        loader = batches(
            self.train_examples,
            self.train_transform,
            config.micro_batch * self.group.count,
            config.seed,
            progress.epoch,
            start=progress.batch,
            share=(self.group.rank, self.group.count),
            workers=config.data.workers,
        )
        self.model.train()
        for micro_batches in groups_of(self.profile.iterate("loader", loader), self.accumulate):
            self.step(micro_batches)
            progress.batch += self.accumulate
            reporter.step(self)
            last = progress.batch // self.accumulate >= self.steps_per_epoch
            if not last and (self.stop.asked() or self.time_to_save()):
                self.save()
                self.stop.raise_if_asked()

    def step(self, micro_batches: list[tuple[Tensor, Tensor]]) -> None:
        """One optimiser step over the accumulated batches; left out if its loss or gradient is not finite."""
        progress, totals = self.progress, self.progress.epoch_totals
        statistics = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        self.last_cells = None
        if self.diagnostics is not None and self.logs(progress.step + 1):
            with self.diagnostics.watching() as self.last_cells:
                loss = self.forward_and_backward(self.wrapped, micro_batches)  # compiled, it could not be watched
        else:
            loss = self.forward_and_backward(self.forward, micro_batches)
        loss = self.group.total(loss)[0] / self.group.count  # the same in all processes, as is the gradient
        with self.profile("optimiser"):
            norm = self.gradient_norm()
            progress.step += 1
            if math.isfinite(loss) and math.isfinite(norm):
                self.optimizer.step()
                if self.average is not None:
                    self.average.update_parameters(self.model)
                totals["loss"] += loss
                totals["steps"] += 1
                self.skips_in_a_row = 0
            else:
                for buffer, before in statistics:
                    buffer.copy_(before)
                self.skip()
            self.optimizer.zero_grad()
        self.last_loss, self.last_norm = loss, norm

    def forward_and_backward(self, forward: Callable[..., Tensor], micro_batches: list[tuple[Tensor, Tensor]]) -> float:
        """Accumulates the gradient of this process's batches and returns their mean loss."""
        config, progress, totals = self.config, self.progress, self.progress.epoch_totals
        loss_sum = 0.0
        for i, (images, labels) in enumerate(micro_batches):
            seed_everything(config.seed, progress.step, i, self.group.rank)
            images = images.to(self.group.device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(self.group.device, non_blocking=True)
            targets = labels
            if self.mixup is not None:
                images, targets = self.mixup(images, labels)
            last = i == len(micro_batches) - 1
            with nullcontext() if last or self.group.count == 1 else self.wrapped.no_sync():  # type: ignore[operator]
                with self.profile("forward"), autocast(config, self.group):
                    logits = forward(images)
                    loss = cross_entropy(logits, targets, config)
                with self.profile("backward"):
                    (loss / len(micro_batches)).backward()
            loss_sum += loss.item() / len(micro_batches)
            totals["right"] += (logits.argmax(dim=1) == labels).sum().item()
            totals["images"] += len(labels)
        return loss_sum

    def logs(self, step: int) -> bool:
        """Whether this step's metrics are kept."""
        return bool(self.config.log_steps) and step % self.config.log_steps == 0

    def gradient_norm(self) -> float:
        """The gradient's global norm, after limiting it (LAMB limits its own)."""
        clip = self.config.optimizer.clip_grad
        limited = clip and self.config.optimizer.name != "lamb"
        return nn.utils.clip_grad_norm_(self.model.parameters(), clip if limited else math.inf).item()

    def skip(self) -> None:
        self.progress.skipped += 1
        self.skips_in_a_row += 1
        if self.skips_in_a_row >= SKIPS_IN_A_ROW:
            state = sorted(self.folder.states.glob("*.pt"))
            raise DivergedError(
                self.progress.step - SKIPS_IN_A_ROW + 1,
                f"loss or gradient was not finite {SKIPS_IN_A_ROW} steps in a row, up to step {self.progress.step} at "
                f"learning rate {self.optimizer.param_groups[0]['lr']:.3g}: lower the rate or add warmup; "
                f"the last good checkpoint is {state[-1] if state else 'none yet'}.",
            )

    def finish_epoch(self, reporter: Reporter) -> None:
        progress = self.progress
        loss, steps, right, images = self.group.total(*progress.epoch_totals.values())
        record: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": loss / max(steps, 1),
            "train_accuracy": 100 * right / max(images, 1),
            "skipped_steps": progress.skipped,
        }
        progress.epoch += 1
        progress.batch = 0
        progress.epoch_totals = Progress().epoch_totals
        if progress.epoch == self.config.epochs or progress.epoch % self.config.evaluate_every == 0:
            start = time.monotonic()
            self.test(record)
            reporter.pause(time.monotonic() - start)
        if self.group.first:
            self.folder.log(record)
        self.save()
        reporter.epoch(self, record)

    def test(self, record: dict[str, Any]) -> None:
        """Adds the accuracy on the test images, of the weights and their average, and keeps what is best so far."""
        last, record["test_loss"] = self.evaluate(self.model)
        record["test_accuracy"] = last
        best, better = last, self.model
        if self.average is not None:
            record["ema_test_accuracy"], record["ema_test_loss"] = self.evaluate(self.average.module)
            if record["ema_test_accuracy"] > last:
                best, better = record["ema_test_accuracy"], self.average.module
        if best > self.progress.best_accuracy:
            self.save_weights("best", better, best, record["epoch"])
        self.save_weights("last", self.model, last, record["epoch"])
        self.progress.best_accuracy = max(best, self.progress.best_accuracy)

    def save_weights(self, name: str, model: nn.Module, accuracy: float, epoch: int) -> None:
        if self.group.first:
            about = describe(self.config, self.train_examples.classes)
            self.folder.save_weights(name, model.state_dict(), **about, accuracy=f"{accuracy:.4f}", epoch=str(epoch))

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        loader = evaluation_batches(
            self.test_examples,
            self.test_transform,
            self.config.micro_batch,
            (self.group.rank, self.group.count),
            self.config.data.workers,
        )
        with self.profile("evaluation"), autocast(self.config, self.group):
            return measure_accuracy(model, loader, self.group)

    def set_learning_rate(self, lr: float) -> None:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr

    def time_to_save(self) -> bool:
        minutes = self.config.checkpoint_minutes
        due = bool(minutes) and time.monotonic() - self.saved_at > 60 * minutes
        return bool(self.group.total(float(due and self.group.first))[0])

    def save(self) -> None:
        self.saved_at = time.monotonic()
        if not self.group.first:
            return
        self.folder.save_state(
            self.progress.step,
            {
                "model": self.model.state_dict(),
                "average": self.average.state_dict() if self.average is not None else None,
                "optimizer": self.optimizer.state_dict(),
                "progress": vars(self.progress),
            },
        )

    def restore(self, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            if state["average"] is not None:
                self.average = averaged(self.model, self.config.ema.decay)
                self.average.load_state_dict(state["average"])
            restore_optimizer(self.optimizer, state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"the run in {self.folder.path} is of another network: leave --model as it was."
            ) from error
        self.progress = Progress(**state["progress"])
        if self.group.first:
            self.folder.forget_after(self.progress.step)


def train(
    config: TrainConfig,
    out: Path,
    resume: bool = False,
    profile: bool = False,
    quiet: bool = False,
) -> Path:
    """Runs a training and returns its folder. With `resume` it goes on from the folder's newest state."""
    folder = RunFolder(out)
    with processes() as group:
        if not resume and any(folder.states.glob("*.pt")):
            raise PolyNeXtError(f"{out} already holds a run: go on with --resume {out}, or give another --out.")
        trainer = Trainer(config, folder, group, profile)
        if resume:
            state = folder.load_state()
            if state is not None:
                trainer.restore(state)
            elif group.first:  # killed before its first state: from the beginning
                folder.forget_after(0)
        if group.first:
            folder.create(to_yaml(config))
        reporter = Reporter(config, folder, group.first, quiet)
        with trainer.stop.listening():
            try:
                trainer.run(reporter)
            finally:
                reporter.close()
        if group.first and not quiet:
            print(f"best test accuracy {trainer.progress.best_accuracy:.2f}%: {out / 'best.safetensors'}")
        if profile and group.first:
            print(trainer.profile.summary())
    return out


def build_model(config: TrainConfig, classes: int, device: str | None = None) -> nn.Module:
    """The network; `device="meta"` to count only."""
    preprocessing, chosen = config.data.preprocessing, config.model
    options: dict[str, Any] = {"drop_path_rate": chosen.drop_path} if chosen.drop_path else {}
    published = timm.get_pretrained_cfg(chosen.name)
    if is_polynext(chosen.name) or (published is not None and published.fixed_input_size):
        options["img_size"] = preprocessing.size
    if chosen.pretrained and device != "meta":
        options["pretrained"] = True
    model = (partial(create_variant, variant=chosen.variant) if chosen.variant else create_model)(
        chosen.name,
        num_classes=classes,
        in_chans=preprocessing.channels,
        drop_rate=chosen.dropout,
        device=device,
        **options,
    )
    if config.model.initial_weights is not None and device != "meta":
        load_initial_weights(model, config.model.initial_weights)
    set_memory(model, chosen.memory)
    return model


def load_initial_weights(model: nn.Module, path: Path) -> None:
    """A checkpoint's weights, but for a classifier of other classes."""
    weights, own = read_weights(path), model.state_dict()
    cfg: Any = getattr(model, "pretrained_cfg", {})
    classifier = {f"{cfg.get('classifier')}.{leaf}" for leaf in ("weight", "bias")} & weights.keys() & own.keys()
    afresh = {key for key in classifier if weights[key].shape != own[key].shape}
    if afresh:
        warnings.warn(f"{path} is for other classes: {some(sorted(afresh))} start afresh.", stacklevel=2)
        weights = weights | {key: own[key] for key in afresh}
    check_same_entries(weights, own, type(model).__name__)
    model.load_state_dict(weights)


def describe(config: TrainConfig, classes: list[str]) -> dict[str, str]:
    """What a file of weights says of itself: enough to build its network and prepare its images anywhere."""
    anywhere = replace(config, data=replace(config.data, root=None))
    return {"model": config.model.name, "classes": json.dumps(classes), "config": to_yaml(anywhere)}


def build_mixup(config: TrainConfig, classes: int) -> Mixup | None:
    """Mixup or CutMix for each batch, at even odds if both are wanted; None if neither is."""
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
    """With labels, smoothed here, or with the mixed distributions, which Mixup has smoothed already."""
    if targets.ndim == 1:
        return F.cross_entropy(logits.float(), targets, label_smoothing=config.augment.label_smoothing)
    return F.cross_entropy(logits.float(), targets)


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def set_head_dropout(model: Any, rate: float) -> None:
    """Dropout of the classifier's input: the last one in the head, if it has several as MetaFormers do."""
    head = getattr(model, "head", None)
    drops = [m for m in head.modules() if isinstance(m, nn.Dropout)] if isinstance(head, nn.Module) else []
    if not drops and rate:
        raise PolyNeXtError(f"{type(model).__name__} has no dropout in its head: train it with --model.dropout 0.")
    for drop in drops:
        drop.p = rate if drop is drops[-1] else 0.0


def accumulation(config: TrainConfig, count: int) -> int:
    """Batches to accumulate so that all processes together reach the effective batch."""
    at_once = config.micro_batch * count
    if config.batch_size % at_once:
        raise PolyNeXtError(
            f"a batch of {config.batch_size} cannot be made of {count} process(es) with {config.micro_batch} images: "
            "give a --micro-batch that divides it."
        )
    return config.batch_size // at_once


def autocast(config: TrainConfig, group: Processes) -> Any:
    return torch.autocast(group.device.type, torch.bfloat16, enabled=config.precision == "bf16")


def groups_of(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items; an incomplete last one is left out."""
    group: list[Any] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
