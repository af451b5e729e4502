"""The tables of hyperparameters: our configs beside the printed values."""

import re
from typing import Any

from torch import nn

from polynext import paper
from polynext.experiments.reproduction.entries import Entries, Entry, printed
from polynext.experiments.reproduction.networks import SEGMENTATION_RECIPES, size_of
from polynext.experiments.reproduction.setup import Setup
from polynext.models import PolyNeXt, PolyNeXtConfig
from polynext.models.polynext import CONFIGS
from polynext.nn import LayerNorm2d, MultiInputSkip, PolyAttention, SigmoidScale
from polynext.recipes import recipe
from polynext.segmentation import SegmentationConfig, UPerNet, segmentation_recipe
from polynext.segmentation.task import build_optimizer
from polynext.training import TrainConfig


def training_details(setup: Setup) -> Entries:
    """Table S1."""
    for row in paper.rows("S1"):
        config = recipe(str(paper.timm_name(row["model"])))
        magnitude = re.search(r"m(\d+)-mstd([\d.]+)", config.augment.rand_augment)
        found = optimisation(config) | {
            "epochs": config.epochs,
            "resolution": config.data.preprocessing.size,
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
        found = stages(config) | operators(config)
        yield from compared(row, "model", found | {"mixers": [stage.mixer for stage in config.stages]})


def low_resolution(setup: Setup) -> Entries:
    """Table S3."""
    for row in paper.rows("S3"):
        config = recipe(f"cpolynext_lowres_{row['data'].replace('-', '_')}")
        found = stages(CONFIGS[config.model.name]) | optimisation(config)
        found |= {
            "stages": len(CONFIGS[config.model.name].stages),
            "params": f"{size_of(config.model.name)[0] / 1e6:.1f}",
            "resolution": config.data.preprocessing.size,
            "flips": "yes" if config.augment.hflip else "no",
        }
        yield from compared(row, "data", found)


def segmentation_details(setup: Setup) -> Entries:
    """Section 4.5."""
    for row in paper.rows("segmentation"):
        config = segmentation_recipe(SEGMENTATION_RECIPES[row["model"]])
        optimizer = config.optimizer
        found = {
            "iterations": config.iterations,
            "rate": optimizer.lr,
            "weight decay": optimizer.weight_decay,
            "not decayed": undecayed(config),
            "cell clipping": f"{optimizer.clip_cells:g}" if optimizer.clip_cells else "no",
        }
        yield from compared(row, "model", found)


def undecayed(config: SegmentationConfig) -> str:
    """The parts of a backbone that the optimiser does not decay, by the paper's names."""
    network = UPerNet(config.model.backbone, 150, image_size=config.data.crop, device="meta")
    groups = build_optimizer(network, config).param_groups
    exempt = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}
    kinds = {"Sigmoid-Scale": SigmoidScale, "multi-input skip": MultiInputSkip, "norms": LayerNorm2d}

    def parameters(kind: type[nn.Module]) -> list[nn.Parameter]:
        return [p for part in network.modules() if isinstance(part, kind) for p in part.parameters()]

    return ", ".join(name for name, kind in kinds.items() if all(id(p) in exempt for p in parameters(kind)))


def optimisation(config: TrainConfig) -> dict[str, Any]:
    return {
        "optimiser": config.optimizer.name,
        "batch": config.batch_size,
        "rate": config.optimizer.lr,
        "weight decay": config.optimizer.weight_decay,
        "schedule": "steps" if config.schedule.drop_epochs else "cosine",
    }


def stages(config: PolyNeXtConfig) -> dict[str, Any]:
    return {
        "channels": [stage.width for stage in config.stages],
        "cells": [stage.cells for stage in config.stages],
        "stacks": [stage.stacks for stage in config.stages],
    }


def operators(config: PolyNeXtConfig) -> dict[str, Any]:
    """Widths of the operators, from the stages that have them; heads from the network itself."""
    model: Any = PolyNeXt(config, device="meta")
    attentions = [stage.cells[0].stacks[0].mixer for stage in model.stages]
    attentions = [mixer for mixer in attentions if isinstance(mixer, PolyAttention)]
    return {
        "PolyMLP ratio": [stage.mlp_ratio for stage in config.stages],
        "PolyConv ratio": [stage.conv_ratio for stage in config.stages if stage.mixer == "conv"],
        "head width": ", ".join(sorted({str(mixer.w_out.in_channels // mixer.heads) for mixer in attentions})),
        "heads": [mixer.heads for mixer in attentions],
    }


def compared(row: dict[str, Any], whose: str, found: dict[str, Any]) -> Entries:
    """The printed values of a row, each beside ours."""
    for column, value in row.items():
        if column != whose and printed(value):
            yield Entry(row=row[whose], column=column, printed=printed(value), found=printed(found[column]))
