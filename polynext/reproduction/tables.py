"""What each table of the paper takes: for every figure in it a count, a command to run, or why there is none."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm

from polynext import paper
from polynext.ablation import TABLES as ABLATIONS
from polynext.ablation.rows import obstacle
from polynext.errors import PolyNeXtError
from polynext.models.costs import count_macs, count_parameters
from polynext.models.polynext import CONFIGS
from polynext.recipes import RECIPES, recipe
from polynext.reproduction.experiments import RESULT, Arguments, Experiment
from polynext.segmentation import SegmentationConfig, UPerNet
from polynext.training import TrainConfig
from polynext.training.config import read_config


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
        missing: why it cannot be had, if so.
    """

    row: str
    column: str
    printed: str
    found: str = ""
    experiment: Experiment | None = None
    read: Callable[[dict[str, Any]], str] = str
    missing: str = ""


Cells = Iterator[Cell]


def printed(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


# Networks and what they reach


def main_results(setup: Setup) -> Cells:
    for row in paper.main_results() + paper.rows("1", "text"):
        yield from costs(row)
        yield accuracy(setup, row["model"], "imagenet", row["top1"])


def robustness(setup: Setup) -> Cells:
    for row in paper.rows("2") + paper.rows("2", "text"):
        for data in ("imagenet", "imagenet-c", "imagenet-a", "imagenet-r", "imagenet-sketch"):
            if printed(row[data]):
                yield accuracy(setup, row["model"], data, row[data])


def fully_polynomial(setup: Setup) -> Cells:
    for row in paper.rows("7"):
        yield accuracy(setup, row["model"], "imagenet", row["imagenet"])


def small_data_sets(setup: Setup) -> Cells:
    for row in paper.rows("S5"):
        for data in ("cifar10", "svhn", "tiny-imagenet"):
            if printed(row[data]):
                yield accuracy(setup, row["model"], data, row[data])


def accuracy(setup: Setup, model: str, data: str, figure: float) -> Cell:
    """Per cent right, or of ImageNet-C the mCE."""
    mce = data == "imagenet-c"
    cell = functools.partial(Cell, row=model, column="imagenet-c (mCE)" if mce else data, printed=printed(figure))
    name = paper.weights_name(model, data)
    if name is None:
        return cell(missing="neither this package nor timm has the network")
    if data not in setup.data:
        return cell(missing=f"no {data}: give --data {data}=FOLDER")
    bare = name.split(".")[0]
    before: tuple[Arguments, ...] = ()
    source: Arguments
    if given := setup.weights.get(f"{bare}:{data}", setup.weights.get(bare)):
        if reason := of_another_network(given, bare, TrainConfig):
            return cell(missing=reason)
        source = (str(given),) if given.is_dir() else (bare, "--checkpoint", str(given))
    elif setup.train and (run := own_recipe(bare, data)):
        learned = recipe(run).data.name
        if learned not in setup.data:
            return cell(missing=f"no {learned} to train on: give --data {learned}=FOLDER")
        folder = str(setup.out / "runs" / run)
        before = (("train", run, "--data.root", str(setup.data[learned]), "--out", folder),)
        source = (folder,)
    elif "." in name:
        source = (name, "--pretrained")
    else:
        return cell(missing=f"no published weights: train it, and give --weights {bare}:{data}=RUN")
    options = ("--batch-size", str(setup.batch_size), "--workers", str(setup.workers), "--out", RESULT)
    evaluation = ("evaluate", *source, "--data", data, "--root", str(setup.data[data]), *options)
    experiment = Experiment(f"{'trained.' if before else ''}{name}.{data}", (*before, evaluation))
    return cell(experiment=experiment, read=lambda record: f"{record['mce' if mce else 'top1']:.1f}")


def of_another_network(weights: Path, model: str, kind: type[TrainConfig] | type[SegmentationConfig]) -> str:
    """Why a run's figure would not be the model's, if so; of a file `polynext evaluate` finds out."""
    if not weights.is_dir():
        return ""
    try:
        found = network_of(read_config(weights / "config.yaml", kind))
    except PolyNeXtError as error:
        return str(error)
    return "" if found == model else f"{weights} is a run of {found}, not of {model}"


def network_of(config: TrainConfig | SegmentationConfig) -> str:
    name = config.model.backbone if isinstance(config, SegmentationConfig) else config.model.name
    variant = "" if isinstance(config, SegmentationConfig) else config.model.variant
    return f"{name.split('.')[0]} ({variant})" if variant else name.split(".")[0]


def own_recipe(model: str, data: str) -> str | None:
    """The recipe that trains a model for its figure on a data set."""
    names = (f"{model}_{data.replace('-', '_')}", *((model,) if data.startswith("imagenet") else ()))
    return next((name for name in names if name in RECIPES), None)


@functools.cache
def size_of(name: str) -> tuple[int, int]:
    model: Any = timm.create_model(name, device="meta")
    return count_parameters(model), count_macs(model, model.pretrained_cfg["input_size"])


def costs(row: dict[str, Any]) -> Cells:
    """Parameters in millions and multiply-accumulates in billions, counted."""
    name = paper.timm_name(row["model"])
    for i, (column, unit) in enumerate((("params", 1e6), ("flops", 1e9))):
        cell = functools.partial(Cell, row=row["model"], column=column, printed=printed(row[column]))
        if name is None:
            yield cell(missing="neither this package nor timm has the network")
        else:
            yield cell(found=f"{size_of(name)[i] / unit:.1f}")


def throughput(setup: Setup) -> Cells:
    experiment = Experiment("bench", (("bench", "--paper", "--json"),), prints=True)
    published = {row["model"]: row for row in paper.rows("S4")}
    reference = "ConvFormer-S18"

    def measured(record: dict[str, Any], model: str, key: str) -> float:
        one = next(m for m in record["measurements"] if m["model"] == paper.timm_name(model))
        return float(one[key] or math.nan)

    def ratio(record: dict[str, Any], model: str) -> str:
        speed, other = (measured(record, name, "images_per_second") for name in (model, reference))
        return f"{speed / other:.2f}"

    for model, row in published.items():
        yield from costs(row)
        memory, speed, relative = (
            lambda record, model=model: f"{measured(record, model, 'memory_bytes') / 2**20:.0f}",
            lambda record, model=model: f"{measured(record, model, 'images_per_second'):.4g}",
            lambda record, model=model: ratio(record, model),
        )
        yield Cell(row=model, column="memory (MB)", printed=printed(row["memory"]), experiment=experiment, read=memory)
        yield Cell(row=model, column="images/s", printed=printed(row["throughput"]), experiment=experiment, read=speed)
        share = f"{row['throughput'] / published[reference]['throughput']:.2f}"
        yield Cell(row=model, column=f"ratio to {reference}", printed=share, experiment=experiment, read=relative)


def segmentation_costs(backbone: str) -> tuple[float, float]:
    """Millions of parameters, and billions of multiply-accumulates at 512 x 2048."""
    network = UPerNet(backbone, 150, image_size=512, device="meta")
    return count_parameters(network) / 1e6, count_macs(network, (3, 512, 2048)) / 1e9


def segmentation(setup: Setup) -> Cells:
    recipes = {"CPolyNeXt-S": "ade20k", "APolyNeXt-S": "ade20k_apolynext"}
    for row in paper.rows("6") + paper.rows("6", "text"):
        model = row["model"]
        backbone = str(paper.timm_name(model))
        for column, value in zip(("params", "macs"), segmentation_costs(backbone), strict=True):
            yield Cell(row=model, column=column, printed=printed(row[column]), found=f"{value:.0f}")
        cell = functools.partial(Cell, row=model, column="mIoU", printed=printed(row["miou"]))
        run = recipes.get(model, "ade20k")
        root, folder = str(setup.data.get("ade20k", "")), str(setup.out / "runs" / f"ade20k-{backbone}")
        before: tuple[Arguments, ...] = ()
        source: Arguments
        if not root:
            yield cell(missing="no ade20k: give --data ade20k=FOLDER")
            continue
        if given := setup.weights.get(f"{backbone}:ade20k", setup.weights.get(backbone)):
            if reason := of_another_network(given, backbone, SegmentationConfig):
                yield cell(missing=reason)
                continue
            source = (str(given),) if given.is_dir() else (run, "--checkpoint", str(given))
        elif setup.train:
            weights = ("--model.backbone", str(paper.weights_name(model)))
            before = (("segment", "train", run, *weights, "--data.root", root, "--out", folder),)
            source = (folder,)
        elif model in recipes:
            source = (run, "--pretrained")
        else:
            yield cell(missing=f"no published weights: give --train, or --weights {backbone}=RUN")
            continue
        evaluation = ("segment", "evaluate", *source, "--root", root, "--json")
        experiment = Experiment(f"{'trained.' if before else ''}ade20k.{backbone}", (*before, evaluation), prints=True)
        yield cell(experiment=experiment, read=lambda record: f"{record['miou']:.1f}")


# Ablations


def ablation(number: str, table: str) -> Callable[[Setup], Cells]:
    return lambda setup: ablation_cells(setup, number, table)


def ablation_cells(setup: Setup, number: str, table: str) -> Cells:
    """Differences from the baseline, in points. Below ImageNet's scale they are another experiment than the paper's."""
    differences = {row["row"]: row["difference"] for row in paper.rows(number)}
    options: Arguments = ("--recipe", setup.scale, "--seeds", str(setup.seeds), "--json")
    if setup.scale in setup.data:
        options += ("--root", str(setup.data[setup.scale]))
    options += ("--budget", str(setup.budget), "--images", str(setup.images))
    options += ("--out", str(setup.out / "runs" / f"ablate-{setup.scale}"))
    for row in ABLATIONS[table]:
        cell = functools.partial(Cell, row=row.name, column="difference", printed=differences.get(row.name, ""))
        if setup.scale != "digits" and setup.scale not in setup.data:
            yield cell(missing=f"no {setup.scale}: give --data {setup.scale}=FOLDER, or --scale digits for a small one")
        elif reason := obstacle(row.name, setup.scale):
            yield cell(missing=reason)
        else:
            command = ("ablate", row.name, *options)  # one for each row: what fails is that row's alone
            experiment = Experiment(f"ablate-{setup.scale}.{row.name}", (command,), prints=True)
            yield cell(experiment=experiment, read=functools.partial(difference, name=row.name))


def difference(record: dict[str, Any], name: str) -> str:
    row = next(row for row in record["rows"] if row["name"] == name)
    if row["diverged_at_step"]:
        return f"diverged at step {min(row['diverged_at_step'].values())}"
    found = row["differences"]
    return f"{sum(found) / len(found):+.1f}" if found else "failed"


# How networks are built and trained


def training_details(setup: Setup) -> Cells:
    for row in paper.rows("S1"):
        config = recipe(str(paper.timm_name(row["model"])))
        found = {
            "optimiser": config.optimizer.name,
            "batch": config.batch_size,
            "rate": config.optimizer.lr,
            "weight decay": config.optimizer.weight_decay,
            "warmup": config.schedule.warmup_epochs,
            "mixup": config.augment.mixup,
            "cutmix": config.augment.cutmix,
            "erasing": config.augment.erasing,
            "smoothing": config.augment.label_smoothing,
            "stochastic depth": config.model.drop_path,
            "dropout": config.model.dropout,
        }
        for column, value in found.items():
            yield Cell(row=row["model"], column=column, printed=printed(row[column]), found=printed(value))


def architecture_cells(number: str) -> Cells:
    for row in paper.rows(number):
        stages = CONFIGS[str(paper.timm_name(row["model"]))].stages
        found = {
            "channels": [stage.width for stage in stages],
            "cells": [stage.cells for stage in stages],
            "stacks": [stage.stacks for stage in stages],
        }
        for column, values in found.items():
            shown = ", ".join(map(str, values))
            yield Cell(row=row["model"], column=column, printed=", ".join(map(str, row[column])), found=shown)


def low_resolution(setup: Setup) -> Cells:
    yield from architecture_cells("S3")
    for row in paper.rows("S3_training"):
        config = recipe(f"cpolynext_lowres_{row['data'].replace('-', '_')}")
        found = {
            "resolution": config.data.preprocessing.size,
            "optimiser": config.optimizer.name,
            "batch": config.batch_size,
            "rate": config.optimizer.lr,
            "weight decay": config.optimizer.weight_decay,
            "flips": "yes" if config.augment.hflip else "no",
        }
        for column, value in found.items():
            yield Cell(row=row["data"], column=column, printed=printed(row[column]), found=printed(value))


@dataclass(frozen=True)
class Table:
    """A table of the paper; `scaled` if its runs can be at another scale than the paper's."""

    title: str
    cells: Callable[[Setup], Cells]
    scaled: bool = False


TABLES = {
    "1": Table("ImageNet-1K classification", main_results),
    "2": Table("Robustness", robustness),
    "3": Table("Polynomial modules or activations", ablation("3", "modules"), scaled=True),
    "4": Table("Stabilisation and architecture", ablation("4", "stabilisation"), scaled=True),
    "5": Table("Recipes crossed", ablation("5", "recipes"), scaled=True),
    "dropin": Table("Modules in CAFormer-S18 (Section 4.3)", ablation("dropin", "dropin"), scaled=True),
    "6": Table("ADE20K segmentation", segmentation),
    "7": Table("Fully polynomial variants", fully_polynomial),
    "S1": Table("Training hyperparameters", training_details),
    "S2": Table("Architectures", lambda setup: architecture_cells("S2")),
    "S3": Table("Low-resolution setup", low_resolution),
    "S4": Table("Throughput and memory", throughput),
    "S5": Table("Smaller data sets", small_data_sets),
    "figure-1": Table("Accuracy against size and cost", main_results),
}
