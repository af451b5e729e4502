"""`polynext segment`: train, evaluate and use UPerNet."""

import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from PIL import Image

from polynext import paper
from polynext.cli.commands import FORMER_TRAINING, Command, Commands
from polynext.cli.configured import ConfiguredCommand
from polynext.errors import PolyNeXtError, preview, require_at_least
from polynext.preprocessing import open_picture
from polynext.segmentation.recipes import RECIPES, segmentation_recipe
from polynext.tables import table

if TYPE_CHECKING:
    from polynext.distributed import Processes
    from polynext.segmentation.config import SegmentationConfig
    from polynext.segmentation.task import Segmentation

DEFAULT = "ade20k"

TRAIN = f"""Train UPerNet by a recipe: `polynext segment train [RECIPE] [OPTIONS]`.

RECIPE is one of {", ".join(RECIPES)}, or the YAML file of an earlier run; {DEFAULT} by default. The options set fields
of the config. Several processes: `torchrun --nproc-per-node N -m polynext segment train ...`."""


def segmentation(config: "SegmentationConfig", group: "Processes") -> "Segmentation":
    from polynext.segmentation.task import Segmentation

    return Segmentation(config, group)


training = ConfiguredCommand(
    name="polynext segment train",
    description=TRAIN,
    recipe=segmentation_recipe,
    default=DEFAULT,
    prefix="segment-",
    task=segmentation,
)


def chosen_weights(network: str, checkpoint: Path | None, pretrained: bool) -> Path | None:
    if checkpoint is not None and pretrained:
        raise PolyNeXtError("both --checkpoint and --pretrained were given: give one of them.")
    if not pretrained:
        return checkpoint
    from polynext.segmentation.checkpoints import fetch_segmentation_weights

    return fetch_segmentation_weights(network)


def evaluate_run(
    network: Annotated[str, tyro.conf.Positional],
    checkpoint: Path | None = None,
    pretrained: bool = False,
    root: Path | None = None,
    json: bool = False,
) -> None:
    """Evaluate a trained network on all validation images: mIoU, the paper's mIoU, and the IoU of each class.

    Args:
        network: folder of a segmentation run, or a recipe with published weights.
        checkpoint: weights, ours or published; the run's best by default.
        pretrained: download the published weights of a recipe.
        root: folder of the data; the run's by default.
        json: print JSON instead of a table. It is also written to evaluation.json in a run's folder.
    """
    from polynext.distributed import processes
    from polynext.segmentation.data import load_pairs
    from polynext.segmentation.runs import load_segmentation_run, paper_figure
    from polynext.segmentation.task import evaluate

    checkpoint = chosen_weights(network, checkpoint, pretrained)
    config, model, classes = load_segmentation_run(network, checkpoint)
    if root is not None:
        config = replace(config, data=replace(config.data, root=root))
    with processes() as group:
        pairs = load_pairs(config.data, "val")
        if pairs.classes != classes:
            raise PolyNeXtError(
                f"{config.data.root} has {len(pairs.classes)} classes ({preview(pairs.classes, 3)}) and the network "
                f"{len(classes)} ({preview(classes, 3)}): evaluate it on data of its own classes."
            )
        scores = evaluate(model.to(group.device), pairs, config, group, shown=group.first)
        if not group.first:
            return
    published = paper_figure(config, checkpoint)
    record = scores.to_json() | {"classes": classes, "published": published}
    if Path(network).is_dir():
        (Path(network) / "evaluation.json").write_text(jsonlib.dumps(record, indent=2))
    if json:
        print(jsonlib.dumps(record, indent=2))
        return
    rows = [(name, "-" if iou != iou else f"{iou:.2f}") for name, iou in zip(classes, scores.iou, strict=True)]
    print(table(("class", "IoU (%)"), rows))
    beside = "" if published is None else f" (paper: {published:.1f})"
    print(f"\n{scores.images} images: mIoU {scores.miou:.2f}{beside}, pixel accuracy {scores.accuracy:.2f}%")


def predict_images(
    network: Annotated[str, tyro.conf.Positional],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional],
    checkpoint: Path | None = None,
    pretrained: bool = False,
    out: Path = Path("segmented"),
    strength: float = 0.55,
    labels: bool = False,
) -> None:
    """Segment images: write each with its classes in colour and a legend.

    Args:
        network: folder of a segmentation run, or a recipe with published weights.
        images: image files.
        checkpoint: weights, ours or published; the run's best by default.
        pretrained: download the published weights of a recipe.
        out: folder for the results.
        strength: opacity of the colours, from 0 to 1.
        labels: also write NAME.labels.png, with the label of each pixel.
    """
    from polynext.distributed import alone
    from polynext.segmentation.overlay import draw_overlay
    from polynext.segmentation.runs import load_segmentation_run
    from polynext.segmentation.sliding import predict
    from polynext.segmentation.transforms import TestTransform

    if not images:
        raise PolyNeXtError("no image was given: give at least one file.")
    if len({path.stem for path in images}) < len(images):
        raise PolyNeXtError("two images have the same name, and so would their results: segment them one at a time.")
    checkpoint = chosen_weights(network, checkpoint, pretrained)
    config, model, classes = load_segmentation_run(network, checkpoint)
    device = alone().device
    model.to(device)
    transform = TestTransform(config.data)
    out.mkdir(parents=True, exist_ok=True)
    for path in images:
        image = open_picture(path)
        size = (image.height, image.width)
        prepared = transform.image(image).to(device)
        found = predict(model, prepared, size, config.data.crop, config.data.stride).cpu().numpy().astype(np.uint8)
        target = out / f"{path.stem}.png"
        draw_overlay(image, found, classes, strength).save(target)
        if labels:
            Image.fromarray(found).save(out / f"{path.stem}.labels.png")
        print(target)


def costs(
    backbones: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    size: tuple[int, int] = (512, 2048),
    classes: int = 150,
    width: int = 512,
) -> None:
    """Count the parameters and multiply-accumulates of UPerNet on backbones, beside the paper's figures.

    Args:
        backbones: names of models, ours or timm's; those of the paper's Table 6 by default.
        size: height and width of an image.
        classes: number of classes.
        width: channels of the decoder.
    """
    from polynext.models.costs import count_macs, count_parameters
    from polynext.segmentation.upernet import UPerNet

    require_at_least(1, size=min(size), classes=classes, width=width)
    published = {paper.timm_name(row["model"]): row for row in paper.rows("6") + paper.rows("6", "text")}
    rows = []
    for backbone in backbones or (name for name in published if name):
        model = UPerNet(backbone, classes, width=width, image_size=size[0], device="meta")
        found = [count_parameters(model.backbone), count_parameters(model), count_macs(model, (3, *size))]
        printed = published.get(backbone, {})
        rows.append(
            (
                backbone,
                *(f"{n / 1e6:.2f}" for n in found[:2]),
                f"{found[2] / 1e9:.4g}" if found[2] < 1e11 else f"{found[2] / 1e9:.1f}",
                *(str(printed.get(column, "-")) for column in ("params", "macs", "miou")),
            )
        )
    header = ("backbone", "backbone (M)", "total (M)", "GMACs", "paper: total (M)", "GMACs", "mIoU")
    print(table(header, rows))


HERE = "polynext.cli.segment"
commands = Commands(
    "polynext segment",
    "Semantic segmentation with UPerNet on any backbone.",
    {
        "train": Command(
            f"train by a recipe: {', '.join(RECIPES)}, or the YAML of a run", f"{HERE}:training", FORMER_TRAINING
        ),
        "evaluate": Command("mIoU of a trained network, and IoU per class", f"{HERE}:evaluate_run"),
        "predict": Command("segment images, with a legend", f"{HERE}:predict_images"),
        "costs": Command("parameters and multiply-accumulates on any backbone", f"{HERE}:costs"),
    },
)
