"""The tables of networks: their costs, their accuracy on a data set, and their speed."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import timm

from polynext import paper
from polynext.config import read_config
from polynext.errors import PolyNeXtError
from polynext.experiments.reproduction.calls import evaluate_classifier, evaluate_segmentation, measure_speed
from polynext.experiments.reproduction.entries import Entries, Entry, printed
from polynext.experiments.reproduction.experiments import Experiment
from polynext.experiments.reproduction.setup import Setup
from polynext.experiments.speed.paper_table import REFERENCE
from polynext.models.costs import count_macs, count_parameters
from polynext.recipes import RECIPES, recipe
from polynext.segmentation import SegmentationConfig, UPerNet
from polynext.training import TrainConfig

# Data sets with a name of their own; folders and shards may hold any of them.
NAMED = {"digits", "cifar10", "svhn", "tiny-imagenet", "imagenet", "ade20k", "camvid"}
SEGMENTATION_RECIPES = {"CPolyNeXt-S": "ade20k", "APolyNeXt-S": "ade20k_apolynext"}  # with published weights
SPEED_COLUMNS = ("memory (MB)", "images/s", f"ratio to {REFERENCE}")


def main_results(setup: Setup) -> Entries:
    """Table 1."""
    for row in paper.main_results() + paper.rows("1", "text"):
        yield from costs(row)
        if printed(row["top1"]):
            yield accuracy(setup, row["model"], "imagenet", row["top1"])


def on_data_sets(table: str) -> Any:
    """The entries of a table whose columns are data sets."""

    def entries(setup: Setup) -> Entries:
        for row in paper.rows(table) + paper.rows(table, "text"):
            for data, figure in row.items():
                if data != "model" and printed(figure):
                    yield accuracy(setup, row["model"], data, figure)

    return entries


def fully_polynomial(setup: Setup) -> Entries:
    """Table 7."""
    for row in paper.rows("7"):
        yield from costs(row)
        column = "imagenet with LayerNorm"
        yield replace(accuracy(setup, row["variant of"], "imagenet", row[column]), row=row["model"], column=column)
        yield accuracy(setup, row["model"], "imagenet", row["imagenet"])
        yield Entry(row=row["model"], column="difference", printed=row["difference"], from_row=gap)


def gap(found: Mapping[str, str]) -> str:
    """What the polynomial norms change, from the accuracies of Table 7; empty if one is missing."""
    with_layernorm, without = found["imagenet with LayerNorm"], found["imagenet"]
    return f"{float(without) - float(with_layernorm):+.1f}" if with_layernorm and without else ""


def accuracy(setup: Setup, model: str, data: str, figure: float) -> Entry:
    """Top-1 accuracy in percent; mCE for ImageNet-C."""
    mce = data == "imagenet-c"
    entry = partial(Entry, row=model, column="imagenet-c (mCE)" if mce else data, printed=printed(figure))
    name = paper.weights_name(model, data)
    if name is None:
        return entry(missing="neither this package nor timm has the network")
    if data not in setup.data:
        return entry(missing=f"no {data}: give --data {data}=FOLDER")
    bare = name.split(".")[0]
    recipe_name = own_recipe(bare, data)
    weights = choose_weights(
        setup,
        bare,
        data,
        config_type=TrainConfig,
        file_of=bare,
        recipe_name=recipe_name,
        training_data=recipe(recipe_name).data.name if recipe_name else "",
        folder=setup.out / "runs" / recipe_name,
        published=name if "." in name else "",
    )
    if isinstance(weights, str):
        return entry(missing=weights)
    label = f"{'trained.' if 'recipe_name' in weights else ''}{name}.{data}"
    arguments = {"data": data, "root": str(setup.data[data]), "batch_size": setup.batch_size, "workers": setup.workers}
    arguments |= {"partial": str(setup.out / "results" / f"{label}.partial.json")}
    experiment = Experiment(label, evaluate_classifier, weights | arguments, fetches="pretrained" in weights)
    return entry(experiment=experiment, read=lambda record: f"{record['mce' if mce else 'top1']:.1f}")


def segmentation(setup: Setup) -> Entries:
    """Table 6."""
    for row in paper.rows("6") + paper.rows("6", "text"):
        model = row["model"]
        backbone = str(paper.timm_name(model))
        for column, value in zip(("params", "macs"), segmentation_costs(backbone), strict=True):
            yield Entry(row=model, column=column, printed=printed(row[column]), found=f"{value:.0f}")
        entry = partial(Entry, row=model, column="mIoU", printed=printed(row["miou"]))
        if "ade20k" not in setup.data:
            yield entry(missing="no ade20k: give --data ade20k=FOLDER")
            continue
        recipe_name = SEGMENTATION_RECIPES.get(model, "ade20k")
        weights = choose_weights(
            setup,
            backbone,
            "ade20k",
            config_type=SegmentationConfig,
            file_of=recipe_name,
            recipe_name=recipe_name,
            training_data="ade20k",
            folder=setup.out / "runs" / f"ade20k-{backbone}",
            published=SEGMENTATION_RECIPES.get(model, ""),
        )
        if isinstance(weights, str):
            yield entry(missing=weights)
            continue
        arguments = weights | {"root": str(setup.data["ade20k"])}
        trained = "recipe_name" in weights
        if trained:
            arguments["backbone"] = str(paper.weights_name(model))
        label = f"{'trained.' if trained else ''}ade20k.{backbone}"
        experiment = Experiment(label, evaluate_segmentation, arguments, fetches=trained or "pretrained" in weights)
        yield entry(experiment=experiment, read=lambda record: f"{record['miou']:.1f}")


def choose_weights(
    setup: Setup,
    model: str,
    data: str,
    *,
    config_type: type[TrainConfig] | type[SegmentationConfig],
    file_of: str,
    recipe_name: str,
    training_data: str,
    folder: Path,
    published: str,
) -> dict[str, Any] | str:
    """The arguments that select a network's weights: given, trained or published. A string says why there are none.

    A given file has the weights of the network `file_of`. The recipe trains on `training_data` in `folder`. Without a
    recipe or published weights, their names are empty.
    """
    if given := setup.weights.get(f"{model}:{data}", setup.weights.get(model)):
        if reason := mismatch(given, model, data, config_type):
            return reason
        return {"network": str(given)} if given.is_dir() else {"network": file_of, "checkpoint": str(given)}
    if setup.train and recipe_name:
        if training_data not in setup.data:
            return f"no {training_data} to train on: give --data {training_data}=FOLDER"
        root = setup.data[training_data]
        if reason := begun_on_other_data(folder, root, config_type):
            return reason
        return {"network": str(folder), "recipe_name": recipe_name, "training_root": str(root)}
    if published:
        return {"network": published, "pretrained": True}
    way = "give --train, or" if recipe_name else "train it, and give"
    return f"no published weights: {way} --weights {model}:{data}=RUN"


def mismatch(weights: Path, model: str, data: str, config_type: type[TrainConfig] | type[SegmentationConfig]) -> str:
    """Why a given run is not this model trained on this data; empty if it is. Files are checked on loading."""
    if not weights.is_dir():
        return ""
    try:
        config = read_config(weights / "config.yaml", config_type)
    except PolyNeXtError as error:
        return str(error)
    if (found := network_of(config)) != model:
        return f"{weights} is a run of {found}, not of {model}"
    learned, needed = config.data.name, "imagenet" if data.startswith("imagenet") else data
    return f"{weights} is trained on {learned}, not on {needed}" if learned in NAMED - {needed} else ""


def begun_on_other_data(run: Path, root: Path, config_type: type[TrainConfig] | type[SegmentationConfig]) -> str:
    """Why a training cannot resume in a folder: it began on other data. Empty if it can."""
    if not (run / "config.yaml").is_file():
        return ""
    begun = read_config(run / "config.yaml", config_type).data.root
    if begun is None or begun.resolve() == root.resolve():
        return ""
    return f"{run} is a training on {begun}, not on {root}: give that path again, or another --out"


def network_of(config: TrainConfig | SegmentationConfig) -> str:
    if isinstance(config, SegmentationConfig):
        return config.model.backbone.split(".")[0]
    changes = [config.model.variant] if config.model.variant else []
    if config.model.architecture:
        changes.append("another architecture")
    name = config.model.name.split(".")[0]
    return f"{name} ({', '.join(changes)})" if changes else name


def own_recipe(model: str, data: str) -> str:
    """The recipe that trains a model for its figure on a data set; empty if there is none."""
    names = (f"{model}_{data.replace('-', '_')}", *((model,) if data.startswith("imagenet") else ()))
    return next((name for name in names if name in RECIPES), "")


@cache
def size_of(name: str) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a model."""
    model: Any = timm.create_model(name, device="meta")
    return count_parameters(model), count_macs(model, model.pretrained_cfg["input_size"])


@cache
def segmentation_costs(backbone: str) -> tuple[float, float]:
    """Millions of parameters, and billions of multiply-accumulates at 512 x 2048."""
    network = UPerNet(backbone, 150, image_size=512, device="meta")
    return count_parameters(network) / 1e6, count_macs(network, (3, 512, 2048)) / 1e9


def costs(row: dict[str, Any]) -> Entries:
    """Parameters in millions and multiply-accumulates in billions."""
    name = paper.timm_name(row["model"])
    for i, (column, unit) in enumerate((("params", 1e6), ("flops", 1e9))):
        entry = partial(Entry, row=row["model"], column=column, printed=printed(row[column]))
        if name is None:
            yield entry(missing="neither this package nor timm has the network")
        else:
            yield entry(found=f"{size_of(name)[i] / unit:.1f}")


def throughput(setup: Setup) -> Entries:
    """Table S4."""
    parts = str(setup.out / "results" / "speed.parts.json")
    experiment = Experiment("speed", measure_speed, {"parts": parts})
    published = {row["model"]: row for row in paper.rows("S4")}
    for model, row in published.items():
        yield from costs(row)
        ratio = f"{row['throughput'] / published[REFERENCE]['throughput']:.2f}"
        printed_figures = (printed(row["memory"]), printed(row["throughput"]), ratio)
        for column, figure in zip(SPEED_COLUMNS, printed_figures, strict=True):
            yield Entry(
                row=model,
                column=column,
                printed=figure,
                experiment=experiment,
                read=partial(read_speed, model=model, column=column),
                unmeasured="the memory of compiled networks is measured on GPUs only",
            )


def read_speed(record: dict[str, Any], model: str, column: str) -> str:
    """One of `SPEED_COLUMNS` from the result of `measure_speed`."""
    measured = {m["model"]: m for m in record["measurements"]}
    own, reference = (measured[str(paper.timm_name(name))] for name in (model, REFERENCE))
    memory, speed = own["memory_bytes"], own["images_per_second"]
    ratio = speed / reference["images_per_second"]
    figures = ("" if memory is None else f"{memory / 2**20:.0f}", f"{speed:.4g}", f"{ratio:.2f}")
    return figures[SPEED_COLUMNS.index(column)]
