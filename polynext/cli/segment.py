"""`polynext segment`: train, evaluate and use UPerNet."""

import json as jsonlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from polynext.cli.table import table
from polynext.data.sets import read_image
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.segmentation.checkpoints import load_segmentation_weights
from polynext.segmentation.config import SegmentationConfig
from polynext.segmentation.data import load_pairs
from polynext.segmentation.engine import evaluate, scores_to_json, train_segmentation
from polynext.segmentation.overlay import draw_overlay
from polynext.segmentation.recipes import RECIPES, segmentation_recipe
from polynext.segmentation.sliding import predict
from polynext.segmentation.transforms import TestTransform
from polynext.segmentation.upernet import UPerNet
from polynext.training import Interrupted, from_yaml, to_yaml

USAGE = """usage: polynext segment COMMAND [OPTIONS]

Semantic segmentation with UPerNet on any backbone.

  train     train by a recipe: {recipes}, or a YAML file of an earlier run
  evaluate  mIoU of a trained network, per class
  predict   colour images by what is in them, with a legend

polynext segment COMMAND --help tells what a command takes."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, beside what to run.

    Attributes:
        config: every field of the run.
        out: folder of the run; runs/segment-RECIPE-TIME by default.
        resume: folder of an interrupted run, to go on with.
        print_config: show the resolved config as YAML and stop.
    """

    config: Annotated[SegmentationConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    resume: Path | None = None
    print_config: bool = False


def train(arguments: list[str]) -> int:
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    if "--resume" in arguments[:-1]:
        config = read_config(Path(arguments[arguments.index("--resume") + 1]) / "config.yaml")
    elif name is not None and name.endswith((".yaml", ".yml")):
        config = read_config(Path(name))
    else:
        config = segmentation_recipe(name or "ade20k")
    options = tyro.cli(Options, args=arguments, default=Options(config=config), prog="polynext segment train")
    if options.print_config:
        print(to_yaml(options.config), end="")
        return 0
    title = Path(name).stem if name else "ade20k"
    out = options.resume or options.out or Path("runs") / f"segment-{title}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        train_segmentation(options.config, out, resume=options.resume is not None)
    except Interrupted as stop:
        print(f"polynext segment: {stop}", file=sys.stderr)
        return stop.exit_status
    return 0


def read_config(path: Path) -> SegmentationConfig:
    if not path.is_file():
        raise PolyNeXtError(f"there is no {path}: give the folder of a segmentation run, or a config.yaml of one.")
    return from_yaml(path.read_text(), str(path), SegmentationConfig)


def load_run(run: Path, checkpoint: Path | None) -> tuple[SegmentationConfig, UPerNet, tuple[str, ...]]:
    """A run's network with its best weights, or others, in eval mode, and the names of its classes."""
    config = read_config(run / "config.yaml")
    weights = checkpoint or run / "best.safetensors"
    classes = load_pairs(config.data, "val").classes
    model = UPerNet(config.model.backbone, len(classes), width=config.model.width)
    load_segmentation_weights(model, weights)
    return config, model.eval(), classes


def evaluate_run(
    run: Annotated[Path, tyro.conf.Positional],
    checkpoint: Path | None = None,
    root: Path | None = None,
    json: bool = False,
) -> None:
    """Measure a trained network: mIoU over all validation images, and the figure of each class.

    Args:
        run: folder of a segmentation run, or one that holds a config.yaml beside published weights.
        checkpoint: weights, ours or published; the run's best by default.
        root: folder of the data; the run's by default.
        json: print JSON instead of a table.
    """
    config, model, classes = load_run(run, checkpoint)
    if root is not None:
        config = replace(config, data=replace(config.data, root=root))
    with processes() as group:
        pairs = load_pairs(config.data, "val")
        scores = evaluate(model.to(group.device), pairs, config, group)
        if not group.first:
            return
    record = scores_to_json(scores, classes)
    (run / "evaluation.json").write_text(jsonlib.dumps(record, indent=2))
    if json:
        print(jsonlib.dumps(record, indent=2))
        return
    rows = [(name, "-" if iou != iou else f"{iou:.2f}") for name, iou in zip(classes, scores.iou, strict=True)]
    print(table(("class", "IoU (%)"), rows))
    print(f"\n{scores.images} images: mIoU {scores.miou:.2f}, {scores.accuracy:.2f}% of pixels right")


def predict_images(
    images: Annotated[tuple[Path, ...], tyro.conf.Positional],
    run: Path,
    checkpoint: Path | None = None,
    out: Path = Path("segmented"),
    strength: float = 0.55,
) -> None:
    """Colour images by what is in them: an overlay with a legend for each.

    Args:
        images: image files.
        run: folder of a segmentation run.
        checkpoint: weights, ours or published; the run's best by default.
        out: folder for the pictures.
        strength: of the colours, from 0 to 1.
    """
    if not images:
        raise PolyNeXtError("no image was given: name at least one file.")
    config, model, classes = load_run(run, checkpoint)
    group = Processes(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    model.to(group.device)
    transform = TestTransform(config.data)
    out.mkdir(parents=True, exist_ok=True)
    for path in images:
        image = read_image(path)
        size = (image.height, image.width)
        found = predict(model, transform.image(image).to(group.device), size, config.data.crop, config.data.stride)
        target = out / f"{path.stem}.png"
        draw_overlay(image, found.cpu().numpy().astype(np.uint8), classes, strength).save(target)
        print(target)


SUBCOMMANDS: dict[str, Callable[..., Any]] = {"evaluate": evaluate_run, "predict": predict_images}


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE.format(recipes=", ".join(RECIPES)))
        return 0
    name, *rest = arguments
    if name == "train":
        return train(rest)
    if name not in SUBCOMMANDS:
        print(f"polynext segment: there is no {name!r}: choose train, evaluate or predict.", file=sys.stderr)
        return 2
    tyro.cli(SUBCOMMANDS[name], prog=f"polynext segment {name}", args=rest)
    return 0
