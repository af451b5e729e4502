"""The output of a run: a progress bar or lines, TensorBoard, Weights & Biases, and drawn curves."""

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from polynext.config import LoopConfig
from polynext.extras import require
from polynext.training.diagnostics import draw_diagnostics
from polynext.training.folder import RunFolder

if TYPE_CHECKING:
    from polynext.training.loop import TrainingLoop
    from polynext.training.task import Task


SECONDS_BETWEEN_DRAWINGS = 60
OUTLIER = 100  # in units of the upper quartile


class Reporter:
    """Reports a run on the terminal and in its folder, in the first process only."""

    def __init__(self, config: LoopConfig, folder: RunFolder, task: "Task", first: bool, quiet: bool = False):
        self.config, self.folder, self.task, self.first, self.quiet = config, folder, task, first, quiet
        self.bar: tqdm | None = None
        self.terminal = sys.stderr.isatty() and not quiet
        self.start = self.drawn = time.monotonic()
        self.images = 0
        self.tensorboard: Any = None
        self.wandb: Any = None
        if not first:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.tensorboard = SummaryWriter(str(folder.path / "tensorboard"))
        if config.wandb:
            self.wandb = start_wandb(config)

    def __enter__(self) -> "Reporter":
        return self

    def step(self, loop: "TrainingLoop") -> None:
        if not self.first:
            return
        step = loop.progress.step
        self.images += self.config.batch_size
        rate = self.rate()
        if loop.logs(step):
            values = {"loss": loop.last_loss, "gradient_norm": loop.last_norm, "images_per_second": rate}
            self.folder.log({"step": step, **values})
            self.publish(step, values)
            if loop.last_cells is not None:
                self.folder.log({"step": step, "cells": loop.last_cells})
        if self.terminal:
            if self.bar is None:
                done = (step - 1) % self.task.round_steps
                self.bar = tqdm(total=self.task.round_steps, initial=done, leave=False, unit="step")
            self.bar.set_description(self.task.position(step - 1))
            left = self.time_left(step)
            self.bar.set_postfix_str(f"loss {loop.last_loss:.3f}, {rate:.0f} images/s, {left} left")
            self.bar.update()

    def rate(self) -> float:
        """Training images per second, without evaluation."""
        return self.images / (time.monotonic() - self.start)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While inside, time is not counted."""
        begun = time.monotonic()
        yield
        self.start += time.monotonic() - begun

    def time_left(self, step: int) -> str:
        seconds = int((self.task.steps - step) * self.config.batch_size / self.rate())
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def round(self, loop: "TrainingLoop", record: dict[str, Any]) -> None:
        if not self.first:
            return
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        step = record["step"]
        self.publish(step, {k: v for k, v in record.items() if k != "step"})
        if step == self.task.steps or time.monotonic() - self.drawn > SECONDS_BETWEEN_DRAWINGS:
            self.task.draw_curves(self.folder)
            self.drawn = time.monotonic()
        if not self.quiet:
            line, speed = self.task.summary(record), f"{self.rate():.0f} images/s, {self.time_left(step)} left"
            print(f"{line}, {speed}", flush=True)

    def publish(self, step: int, values: dict[str, Any]) -> None:
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for name, value in numbers.items():
            self.tensorboard.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(numbers, step=step)

    def __exit__(self, *exception: object) -> None:
        if self.first and self.config.diagnostics:  # here, so that a diverged run has it too
            draw_diagnostics({"": self.folder}, self.folder.path / "diagnostics.png")
        if self.bar is not None:
            self.bar.close()
        if self.tensorboard is not None:
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()


def start_wandb(config: LoopConfig) -> Any:
    require("wandb")
    import wandb

    return wandb.init(project=config.wandb, config=dataclasses.asdict(config))


def draw_lines(records: Sequence[dict[str, Any]], x: str, panels: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """Draws a panel for each title, with a line for each label and key of the records over their key `x`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 3.4), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        draw_panel(axes, {label: [(r[x], r[key]) for r in records if key in r] for label, key in keys.items()})
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def draw_panel(axes: Any, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draws lines by their labels. Outliers and NaN are marks at the upper edge, so that the rest stays readable."""
    known = {label: np.array(points, dtype=float).T for label, points in lines.items() if points}
    sizes = np.abs(np.concatenate([y for _, y in known.values()])) if known else np.zeros(0)
    sizes = sizes[np.isfinite(sizes)]
    bound = OUTLIER * np.quantile(sizes, 0.75) if sizes.any() else np.inf
    for label, (x, y) in known.items():
        outliers = ~(np.abs(y) <= bound)
        (line,) = axes.plot(x, np.where(outliers, np.nan, y), label=label, marker="" if len(x) > 20 else ".")
        if outliers.any():
            edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            name = f"{label or 'value'} above {bound:.3g}"
            axes.plot(x[outliers], np.ones(outliers.sum()), "^", color=line.get_color(), label=name, **edge)
    if len(axes.lines) > 1:
        axes.legend()
