"""The tables of hyperparameters: our configs beside the printed values."""

import re
from typing import Any

from polynext import paper
from polynext.experiments.reproduction.entries import Entries, Entry, printed
from polynext.experiments.reproduction.networks import size_of
from polynext.experiments.reproduction.setup import Setup
from polynext.models import PolyNeXtConfig
from polynext.models.polynext import CONFIGS
from polynext.recipes import recipe
from polynext.training import TrainConfig


def training_details(setup: Setup) -> Entries:
    """Table S1."""
    for row in paper.rows("S1"):
        config = recipe(str(paper.timm_name(row["model"])))
        magnitude = re.search(r"m(\d+)-mstd([\d.]+)", config.augment.rand_augment)
        found = optimisation(config) | {
            "warmup": config.schedule.warmup_epochs,
            "warmup factor": config.schedule.warmup_factor,
            "RandAugment": "/".join(magnitude.groups()) if magnitude else "none",
            "mixup": config.augment.mixup,
            "cutmix": config.augment.cutmix,
            "erasing": config.augment.erasing,
            "smoothing": config.augment.label_smoothing,
            "stochastic depth": config.model.drop_path,
            "dropout rises": "linearly" if config.model.dropout_rises else "no",
            "dropout": config.model.dropout,
        }
        yield from compared(row, "model", found)


def architectures(setup: Setup) -> Entries:
    """Table S2."""
    for row in paper.rows("S2"):
        config = CONFIGS[str(paper.timm_name(row["model"]))]
        yield from compared(row, "model", stages(config) | {"mixers": [stage.mixer for stage in config.stages]})


def low_resolution(setup: Setup) -> Entries:
    """Table S3."""
    for row in paper.rows("S3"):
        config = recipe(f"cpolynext_lowres_{row['data'].replace('-', '_')}")
        found = stages(CONFIGS[config.model.name]) | optimisation(config)
        found |= {
            "params": f"{size_of(config.model.name)[0] / 1e6:.1f}",
            "resolution": config.data.preprocessing.size,
            "flips": "yes" if config.augment.hflip else "no",
        }
        yield from compared(row, "data", found)


def optimisation(config: TrainConfig) -> dict[str, Any]:
    return {
        "optimiser": config.optimizer.name,
        "batch": config.batch_size,
        "rate": config.optimizer.lr,
        "weight decay": config.optimizer.weight_decay,
    }


def stages(config: PolyNeXtConfig) -> dict[str, Any]:
    return {
        "channels": [stage.width for stage in config.stages],
        "cells": [stage.cells for stage in config.stages],
        "stacks": [stage.stacks for stage in config.stages],
    }


def compared(row: dict[str, Any], whose: str, found: dict[str, Any]) -> Entries:
    """The printed values of a row, each beside ours."""
    for column, value in row.items():
        if column != whose:
            yield Entry(row=row[whose], column=column, printed=printed(value), found=printed(found[column]))
