"""A table's figures: what there is to come by them with, and what each takes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polynext.experiments.reproduction.experiments import Experiment


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What there is to reproduce with.

    Attributes:
        out: folder of everything that is run.
        data: where each data set is.
        weights: of a model, by timm's name, a run's folder or a file, to take instead of published ones; as MODEL:DATA
            for one data set.
        train: train by the recipes what has one, instead of fetching published weights.
        scale: of ablations: imagenet, which is the paper's, cifar10 or digits.
        seeds: runs of each row of an ablation.
        budget: optimiser steps of such a run; the recipe's own length by default.
        images: training images of such a run; all by default.
        batch_size: images at a time in evaluations.
        workers: processes that prepare images.
    """

    out: Path
    data: dict[str, Path] = field(default_factory=dict)
    weights: dict[str, Path] = field(default_factory=dict)
    train: bool = False
    scale: str = "imagenet"
    seeds: int = 1
    budget: int = 0
    images: int = 0
    batch_size: int = 64
    workers: int = 0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of a table: as printed, and how to come by ours.

    Attributes:
        row: whose.
        column: of what.
        printed: the paper's; empty where it has none.
        found: ours, where nothing has to be run.
        experiment: what has to be run for it.
        read: takes ours out of what the experiment found.
        untold: why the experiment may have found nothing for it.
        missing: why it cannot be had, if so.
    """

    row: str
    column: str
    printed: str
    found: str = ""
    experiment: Experiment | None = None
    read: Callable[[dict[str, Any]], str] = str
    untold: str = ""
    missing: str = ""


Cells = Iterator[Cell]


def printed(value: Any) -> str:
    """A figure as the paper has it, its last zero included; nothing where it has none."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if isinstance(value, float) and math.isnan(value) else str(value)
