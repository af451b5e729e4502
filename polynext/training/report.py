"""What a run shows: a progress bar or plain lines, TensorBoard, Weights & Biases, a picture of the curves."""

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from polynext.errors import PolyNeXtError
from polynext.training.config import TrainConfig
from polynext.training.diagnostics import draw_diagnostics
from polynext.training.folder import RunFolder

if TYPE_CHECKING:
    from polynext.training.engine import Trainer


SECONDS_BETWEEN_DRAWINGS = 60


class Reporter:
    """Shows a run on the terminal and in its folder; silent in all processes but the first."""

    def __init__(self, config: TrainConfig, folder: RunFolder, first: bool, quiet: bool = False):
        self.config, self.folder, self.first, self.quiet = config, folder, first, quiet
        self.bar: tqdm | None = None
        self.terminal = sys.stderr.isatty() and not quiet
        self.start, self.images, self.drawn = time.monotonic(), 0, time.monotonic()
        self.paused = 0.0
        self.tensorboard: Any = None
        self.wandb: Any = None
        if not first:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.tensorboard = SummaryWriter(str(folder.path / "tensorboard"))
        if config.wandb:
            self.wandb = start_wandb(config)

    def step(self, trainer: "Trainer") -> None:
        if not self.first:
            return
        progress = trainer.progress
        self.images += self.config.batch_size
        rate = self.rate()
        if trainer.logs(progress.step):
            values = {"loss": trainer.last_loss, "gradient_norm": trainer.last_norm, "images_per_second": rate}
            self.folder.log({"step": progress.step, **values})
            self.publish(progress.step, values)
            if trainer.last_cells is not None:
                self.folder.log({"step": progress.step, "cells": trainer.last_cells})
        if self.terminal:
            if self.bar is None:
                done = progress.batch // trainer.accumulate - 1
                self.bar = tqdm(total=trainer.steps_per_epoch, initial=done, leave=False, unit="step")
            right = progress.epoch_totals["right"] / max(progress.epoch_totals["images"], 1)
            left = self.time_left(trainer, rate)
            self.bar.set_description(f"epoch {progress.epoch + 1}/{self.config.epochs}")
            self.bar.set_postfix_str(f"loss {trainer.last_loss:.3f}, {right:.1%}, {rate:.0f} images/s, {left} left")
            self.bar.update()

    def rate(self) -> float:
        """Training images per second, evaluation aside."""
        return self.images / (time.monotonic() - self.start - self.paused)

    def pause(self, seconds: float) -> None:
        self.paused += seconds

    def time_left(self, trainer: "Trainer", rate: float) -> str:
        whole = self.config.epochs * trainer.steps_per_epoch
        seconds = int((whole - trainer.progress.step) * self.config.batch_size / rate)
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def epoch(self, trainer: "Trainer", record: dict[str, Any]) -> None:
        if not self.first:
            return
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        self.publish(record["step"], {k: v for k, v in record.items() if k not in ("epoch", "step")})
        last = record["epoch"] + 1 == self.config.epochs
        if last or time.monotonic() - self.drawn > SECONDS_BETWEEN_DRAWINGS:
            draw_curves(self.folder)
            self.drawn = time.monotonic()
        if not self.quiet:
            test = f", test {record['test_accuracy']:.2f}%" if "test_accuracy" in record else ""
            ema = f", averaged {record['ema_test_accuracy']:.2f}%" if "ema_test_accuracy" in record else ""
            rate = self.rate()
            print(
                f"epoch {record['epoch'] + 1}/{self.config.epochs}: loss {record['train_loss']:.4f}, "
                f"train {record['train_accuracy']:.2f}%{test}{ema}, "
                f"lr {record['lr']:.2e}, {rate:.0f} images/s, {self.time_left(trainer, rate)} left",
                flush=True,
            )

    def publish(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.tensorboard.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(values, step=step)

    def close(self) -> None:
        if self.first and self.config.diagnostics:  # here, so that a run that diverged has its picture too
            draw_diagnostics({"": self.folder}, self.folder.path / "diagnostics.png")
        if self.bar is not None:
            self.bar.close()
        if self.tensorboard is not None:
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()


def start_wandb(config: TrainConfig) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise PolyNeXtError("logging to Weights & Biases needs its client: pip install 'polynext[wandb]'.") from error
    return wandb.init(project=config.wandb, config=dataclasses.asdict(config))


def draw_curves(folder: RunFolder) -> None:
    """Loss, accuracy and learning rate by epoch, as a picture in the run's folder."""
    from matplotlib.figure import Figure

    records = [r for r in folder.records() if "test_accuracy" in r]
    epochs = [r["epoch"] + 1 for r in records]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    loss, accuracy, rate = figure.subplots(1, 3)
    loss.plot(epochs, [r["train_loss"] for r in records], label="train")
    loss.plot(epochs, [r["test_loss"] for r in records], label="test")
    accuracy.plot(epochs, [r["train_accuracy"] for r in records], label="train (varied images)")
    accuracy.plot(epochs, [r["test_accuracy"] for r in records], label="test")
    averaged = [(e, r["ema_test_accuracy"]) for e, r in zip(epochs, records, strict=True) if "ema_test_accuracy" in r]
    if averaged:
        accuracy.plot(*zip(*averaged, strict=True), label="test, averaged weights")
    rate.plot(epochs, [r["lr"] for r in records])
    for axes, title in ((loss, "cross-entropy"), (accuracy, "accuracy (%)"), (rate, "learning rate")):
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    loss.legend()
    accuracy.legend()
    figure.savefig(folder.path / "curves.png", dpi=110)
