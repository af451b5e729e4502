"""The training loop.

Random numbers follow from the seed and the step, never from what happened before: that is why an interrupted run,
resumed, ends with the weights of one that was not.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from polynext.data import batches, evaluation_batches, evaluation_transform, load_examples, training_transform
from polynext.data.loader import seed_everything
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.models import create_model, load_weights
from polynext.training.accuracy import measure_accuracy
from polynext.training.config import TrainConfig, to_yaml
from polynext.training.diagnostics import CellRecord, Diagnostics
from polynext.training.folder import RunFolder
from polynext.training.optimizer import build_optimizer
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
    epoch_totals: dict[str, float] = field(default_factory=lambda: {"loss": 0.0, "right": 0.0, "images": 0.0})


class Trainer:
    """One run, from its config to its folder."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        group: Processes,
        profile: bool = False,
        build: Callable[[TrainConfig, int], nn.Module] | None = None,
    ):
        self.config, self.folder, self.group = config, folder, group
        if config.evaluate_every < 1:
            raise PolyNeXtError(f"evaluate_every is {config.evaluate_every}: give at least 1 epoch.")
        self.accumulate = accumulation(config, group.count)
        self.train_examples = load_examples(config.data, "train")
        self.test_examples = load_examples(config.data, "test")
        if len(self.train_examples) < config.batch_size:
            raise PolyNeXtError(
                f"{config.data.name} has {len(self.train_examples)} training images, fewer than one batch of "
                f"{config.batch_size}: give a smaller --batch-size."
            )
        self.train_transform = training_transform(config.data, config.augment)
        self.test_transform = evaluation_transform(config.data)
        seed_everything(config.seed)
        self.model = (build or build_model)(config, len(self.train_examples.classes)).to(group.device)
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
        totals = self.group.total(*progress.epoch_totals.values())
        loss, right, images = totals[0] / self.group.count / self.steps_per_epoch, totals[1], totals[2]
        record: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": loss,
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
        best, record["test_loss"] = self.evaluate(self.model)
        record["test_accuracy"], weights = best, self.model.state_dict()
        if self.average is not None:
            record["ema_test_accuracy"], record["ema_test_loss"] = self.evaluate(self.average.module)
            if record["ema_test_accuracy"] > best:
                best, weights = record["ema_test_accuracy"], self.average.module.state_dict()
        about = {"model": self.config.model.name, "accuracy": f"{best:.4f}", "epoch": str(record["epoch"])}
        if self.group.first:
            if best > self.progress.best_accuracy:
                self.folder.save_weights("best", weights, **about)
            self.folder.save_weights("last", self.model.state_dict(), **about)
        self.progress.best_accuracy = max(best, self.progress.best_accuracy)

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
        self.model.load_state_dict(state["model"])
        if state["average"] is not None:
            self.average = averaged(self.model, self.config.ema.decay)
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        if self.group.first:
            self.folder.forget_after(self.progress.step)


def train(
    config: TrainConfig,
    out: Path,
    resume: bool = False,
    profile: bool = False,
    quiet: bool = False,
    build: Callable[[TrainConfig, int], nn.Module] | None = None,
) -> Path:
    """Runs a training and returns its folder. With `resume` it goes on from the folder's newest state.

    `build` makes the network, of so many classes, instead of the model's name.
    """
    folder = RunFolder(out)
    with processes() as group:
        if not resume and any(folder.states.glob("*.pt")):
            raise PolyNeXtError(f"{out} already holds a run: go on with --resume {out}, or give another --out.")
        trainer = Trainer(config, folder, group, profile, build)
        if group.first:
            folder.create(to_yaml(config))
        if resume:
            state = folder.load_state()
            if state is not None:
                trainer.restore(state)
            elif group.first:  # killed before its first state: from the beginning
                folder.forget_after(0)
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


def build_model(config: TrainConfig, classes: int) -> nn.Module:
    data = config.data
    options: dict[str, Any] = {"drop_path_rate": config.model.drop_path} if config.model.drop_path else {}
    published = timm.get_pretrained_cfg(config.model.name)
    if published is not None and published.fixed_input_size:  # built for one size, as the fully polynomial models are
        options["img_size"] = data.image_size
    model = create_model(
        config.model.name, num_classes=classes, in_chans=len(data.mean), drop_rate=config.model.dropout, **options
    )
    if config.model.initial_weights is not None:
        load_weights(model, config.model.initial_weights)
    return model


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
    drop = getattr(getattr(model, "head", None), "drop", None)
    if drop is None and rate:
        raise PolyNeXtError(f"{type(model).__name__} has no dropout in its head: train it with --model.dropout 0.")
    if drop is not None:
        drop.p = rate


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
