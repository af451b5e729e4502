"""The tables of networks: what each costs, reaches on a data set, and how fast it is."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm

from polynext import paper
from polynext.config import read_config
from polynext.errors import PolyNeXtError
from polynext.experiments.reproduction.cells import Cell, Cells, Setup, printed
from polynext.experiments.reproduction.experiments import RESULT, Arguments, Experiment
from polynext.models.costs import count_macs, count_parameters
from polynext.recipes import RECIPES, recipe
from polynext.segmentation import SegmentationConfig, UPerNet
from polynext.training import TrainConfig


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
        yield from costs(row)
        column = "imagenet with LayerNorm"
        yield replace(accuracy(setup, row["variant of"], "imagenet", row[column]), row=row["model"], column=column)
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
        if reason := of_something_else(given, bare, data, TrainConfig):
            return cell(missing=reason)
        source = (str(given),) if given.is_dir() else (bare, "--checkpoint", str(given))
    elif setup.train and (run := own_recipe(bare, data)):
        learned = recipe(run).data.name
        if learned not in setup.data:
            return cell(missing=f"no {learned} to train on: give --data {learned}=FOLDER")
        folder = setup.out / "runs" / run
        if reason := begun_on_other_data(folder, setup.data[learned], TrainConfig):
            return cell(missing=reason)
        before = (("train", run, "--data.root", str(setup.data[learned]), "--out", str(folder)),)
        source = (str(folder),)
    elif "." in name:
        source = (name, "--pretrained")
    else:
        return cell(missing=f"no published weights: train it, and give --weights {bare}:{data}=RUN")
    options = ("--batch-size", str(setup.batch_size), "--workers", str(setup.workers), "--out", RESULT)
    evaluation = ("evaluate", *source, "--data", data, "--root", str(setup.data[data]), *options)
    experiment = Experiment(f"{'trained.' if before else ''}{name}.{data}", (*before, evaluation))
    return cell(experiment=experiment, read=lambda record: f"{record['mce' if mce else 'top1']:.1f}")


# What a run may have learned that has a name; folders and shards may hold any of it.
NAMED = {"digits", "cifar10", "svhn", "tiny-imagenet", "imagenet", "ade20k", "camvid"}


def of_something_else(weights: Path, model: str, data: str, kind: type[TrainConfig] | type[SegmentationConfig]) -> str:
    """Why a run's figure would not be the model's on this data, if so; of a file `polynext evaluate` finds out."""
    if not weights.is_dir():
        return ""
    try:
        config = read_config(weights / "config.yaml", kind)
    except PolyNeXtError as error:
        return str(error)
    if (found := network_of(config)) != model:
        return f"{weights} is a run of {found}, not of {model}"
    learned, needed = config.data.name, "imagenet" if data.startswith("imagenet") else data
    return f"{weights} has learned {learned}, not {needed}" if learned in NAMED - {needed} else ""


def begun_on_other_data(run: Path, root: Path, kind: type[TrainConfig] | type[SegmentationConfig]) -> str:
    """Why a training cannot go on in a folder, if so: its figure would be of what it began on."""
    if not (run / "config.yaml").is_file():
        return ""
    begun = read_config(run / "config.yaml", kind).data.root
    if begun is None or begun.resolve() == root.resolve():
        return ""
    return f"{run} is a training on {begun}, not on {root}: give that again, or another --out"


def network_of(config: TrainConfig | SegmentationConfig) -> str:
    if isinstance(config, SegmentationConfig):
        return config.model.backbone.split(".")[0]
    changes = [config.model.variant] if config.model.variant else []
    if config.model.architecture:
        changes.append("another architecture")
    name = config.model.name.split(".")[0]
    return f"{name} ({', '.join(changes)})" if changes else name


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


REFERENCE = "ConvFormer-S18"


def throughput(setup: Setup) -> Cells:
    parts = ("--out", str(setup.out / "results" / "bench.parts.json"))  # so that it goes on where it was
    experiment = Experiment("bench", (("bench", "--paper", "--json", *parts),), prints=True)
    published = {row["model"]: row for row in paper.rows("S4")}
    for model, row in published.items():
        yield from costs(row)
        cell = functools.partial(Cell, row=model, experiment=experiment)
        memory, speed, relative = (functools.partial(read, model=model) for read in (megabytes, images, ratio))
        untold = "memory of compiled networks is measured on GPUs alone"
        yield cell(column="memory (MB)", printed=printed(row["memory"]), read=memory, untold=untold)
        yield cell(column="images/s", printed=printed(row["throughput"]), read=speed)
        share = f"{row['throughput'] / published[REFERENCE]['throughput']:.2f}"
        yield cell(column=f"ratio to {REFERENCE}", printed=share, read=relative)


def measurement(record: dict[str, Any], model: str) -> dict[str, Any]:
    return next(m for m in record["measurements"] if m["model"] == paper.timm_name(model))


def megabytes(record: dict[str, Any], model: str) -> str:
    memory = measurement(record, model)["memory_bytes"]
    return "" if memory is None else f"{memory / 2**20:.0f}"


def images(record: dict[str, Any], model: str) -> str:
    return f"{measurement(record, model)['images_per_second']:.4g}"


def ratio(record: dict[str, Any], model: str) -> str:
    speed, other = (measurement(record, name)["images_per_second"] for name in (model, REFERENCE))
    return f"{speed / other:.2f}"


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
        root, folder = str(setup.data.get("ade20k", "")), setup.out / "runs" / f"ade20k-{backbone}"
        before: tuple[Arguments, ...] = ()
        source: Arguments
        if not root:
            yield cell(missing="no ade20k: give --data ade20k=FOLDER")
            continue
        if given := setup.weights.get(f"{backbone}:ade20k", setup.weights.get(backbone)):
            if reason := of_something_else(given, backbone, "ade20k", SegmentationConfig):
                yield cell(missing=reason)
                continue
            source = (str(given),) if given.is_dir() else (run, "--checkpoint", str(given))
        elif setup.train:
            if reason := begun_on_other_data(folder, Path(root), SegmentationConfig):
                yield cell(missing=reason)
                continue
            weights = ("--model.backbone", str(paper.weights_name(model)))
            before = (("segment", "train", run, *weights, "--data.root", root, "--out", str(folder)),)
            source = (str(folder),)
        elif model in recipes:
            source = (run, "--pretrained")
        else:
            yield cell(missing=f"no published weights: give --train, or --weights {backbone}=RUN")
            continue
        evaluation = ("segment", "evaluate", *source, "--root", root, "--json")
        experiment = Experiment(f"{'trained.' if before else ''}ade20k.{backbone}", (*before, evaluation), prints=True)
        yield cell(experiment=experiment, read=lambda record: f"{record['miou']:.1f}")
