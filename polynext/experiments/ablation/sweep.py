"""The sweep that trains ablation rows and their baselines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polynext.experiments.ablation.baselines import FAMILIES, baselines
from polynext.experiments.ablation.report import ablation_report, collect
from polynext.experiments.ablation.rows import ROWS
from polynext.experiments.report import Report
from polynext.experiments.sweep import Sweep, Trial, shortened, training_images
from polynext.models import is_polynext
from polynext.schema import NonNegativeInt
from polynext.training import TrainConfig

STEPS_BETWEEN_DIAGNOSTICS = 10


@dataclass(frozen=True)
class AblationSweep(Sweep):
    """Settings that all runs of an ablation share.

    Attributes:
        recipe: digits, cifar10 or imagenet.
        steps: optimiser steps of each run, rounded up to whole epochs; 0 for the recipe's length.
        diagnostics: record statistics inside the cells every ten steps.
    """

    recipe: str
    steps: NonNegativeInt = 0
    diagnostics: bool = False

    def baseline(self, family: str) -> TrainConfig:
        """The config of a family's unchanged network."""
        train = self.with_data(baselines(self.recipe)[family])
        epochs = train.epochs
        if self.steps:
            steps_per_epoch = training_images(train.data) // train.batch_size
            epochs = math.ceil(self.steps / max(steps_per_epoch, 1))
        train = replace(shortened(train, epochs), evaluate_every=epochs)
        if self.diagnostics and is_polynext(train.model.name):  # other networks have no cells
            plain = replace(train.model, memory="plain")  # memory-saving training does not keep the branches
            train = replace(train, model=plain, diagnostics=True, log_steps=STEPS_BETWEEN_DIAGNOSTICS)
        return train

    def config(self, name: str) -> TrainConfig:
        """The config of a row, or of a family's baseline."""
        if name in FAMILIES:
            return self.baseline(name)
        return ROWS[name].change(self.baseline(ROWS[name].family))

    def trials(self, rows: Sequence[str], seeds: int) -> list[Trial]:
        """The runs of these rows and of their baselines, ordered by seed."""
        families = dict.fromkeys(ROWS[name].family for name in rows)
        return [Trial(name, seed) for seed in range(seeds) for name in (*families, *rows)]

    def report(self, trials: Sequence[Trial], out: Path) -> Report:
        """The accuracy of each row and its difference from the baseline."""
        settings = {"recipe": self.recipe, "steps": self.steps, "images": self.images}
        limits = "".join(f", {count} {unit}" for unit, count in settings.items() if unit != "recipe" and count)
        seeds = len({trial.seed for trial in trials})
        return ablation_report(f"{self.recipe}{limits}, {seeds} seeds", settings, collect(self, trials, out))
