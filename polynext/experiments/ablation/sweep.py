"""The ablations as a sweep (`polynext.experiments.sweep`): rows and the baselines they are compared with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polynext.experiments.ablation.baselines import FAMILIES, baselines
from polynext.experiments.ablation.rows import ROWS
from polynext.experiments.sweep import Sweep, Trial, shortened, training_images
from polynext.models import is_polynext
from polynext.training import TrainConfig

STEPS_BETWEEN_DIAGNOSTICS = 10


@dataclass(frozen=True)
class AblationSweep(Sweep):
    """What all runs of an ablation share.

    Attributes:
        recipe: digits, cifar10 or imagenet.
        steps: optimiser steps of a run, rounded up to whole epochs; 0 for the recipe's own length.
        diagnostics: watch what happens inside the cells, ten steps apart.
    """

    recipe: str
    steps: int = 0
    diagnostics: bool = False

    def baseline(self, family: str) -> TrainConfig:
        train = self.on_its_data(baselines(self.recipe)[family])
        epochs = train.epochs
        if self.steps:
            in_an_epoch = training_images(train.data) // train.batch_size
            epochs = math.ceil(self.steps / max(in_an_epoch, 1))
        train = replace(shortened(train, epochs), evaluate_every=epochs)
        if self.diagnostics and is_polynext(train.model.name):  # others have no cells to look into
            train = replace(train, diagnostics=True, log_steps=STEPS_BETWEEN_DIAGNOSTICS)
        return train

    def config(self, name: str) -> TrainConfig:
        """A row's, or of an unchanged family."""
        if name in FAMILIES:
            return self.baseline(name)
        return ROWS[name].change(self.baseline(ROWS[name].family))


def all_trials(rows: Sequence[str], seeds: int) -> list[Trial]:
    """The rows and the families they are compared with; all with one seed before any with the next."""
    families = dict.fromkeys(ROWS[name].family for name in rows)
    return [Trial(name, seed) for seed in range(seeds) for name in (*families, *rows)]
