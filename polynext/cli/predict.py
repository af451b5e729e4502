"""`polynext predict`."""

import io
import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import tyro
from PIL import Image
from timm.data import ImageNetInfo

from polynext.cli.runs import Subject, load_subject
from polynext.data.images import IMAGE_SUFFIXES, open_picture
from polynext.data.transforms import evaluation_transform
from polynext.errors import PolyNeXtError, require_at_least


def run(arguments: list[str]) -> int:
    """Returns 1 if some image could not be read."""
    return tyro.cli(predict, prog="polynext predict", args=arguments)


def predict(
    images: Annotated[list[str], tyro.conf.Positional],
    model: str,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    top: int = 5,
    json: bool = False,
) -> int:
    """Tell what is in images: the most likely classes of each.

    Args:
        images: image files, folders of them, or - for one image from standard input.
        model: a model's name, or the folder of a finished training run.
        checkpoint: weights of the model; a run's best by default.
        pretrained: fetch the published weights of the model instead.
        top: how many classes to show.
        json: print one JSON object a line.
    """
    if checkpoint is None and not pretrained and not Path(model).is_dir():
        raise PolyNeXtError(f"{model} is untrained as it is: give --checkpoint, --pretrained or the folder of a run.")
    require_at_least(1, top=top)
    subject = load_subject(model, checkpoint, pretrained)
    transform = evaluation_transform(subject.data)
    names = class_names(subject)
    status = 0
    for path in found(images):
        try:
            picture = open_image(path)
        except PolyNeXtError as error:
            print(f"polynext predict: {error}", file=sys.stderr)
            status = 1
            continue
        with torch.inference_mode():
            chances = subject.model(transform(picture)[None]).float().softmax(dim=1)[0]
        best = chances.topk(min(top, len(chances)))
        guesses = [(names[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        if json:
            print(jsonlib.dumps({"image": path, "classes": [{"class": n, "probability": p} for n, p in guesses]}))
        else:
            print(f"{path}: " + ", ".join(f"{n} {100 * p:.1f}%" for n, p in guesses))
    return status


def found(images: list[str]) -> Iterator[str]:
    """Files as they are, and the images in folders."""
    for given in images:
        path = Path(given)
        if given != "-" and path.is_dir():
            inside = sorted(str(f) for f in path.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise PolyNeXtError(f"{given} has no images in it: give image files or a folder of them.")
            yield from inside
        elif given != "-" and not path.exists():
            raise PolyNeXtError(f"there is no file {given}: give image files, folders or -.")
        else:
            yield given


def open_image(path: str) -> Image.Image:
    return open_picture(io.BytesIO(sys.stdin.buffer.read()) if path == "-" else Path(path))


def class_names(subject: Subject) -> list[str]:
    """Names where they are known: the network's own, or ImageNet's words; otherwise numbers."""
    if subject.classes:
        return subject.classes
    if subject.model.num_classes == 1000:
        return [str(name).split(",")[0] for name in ImageNetInfo().label_descriptions()]
    return [str(i) for i in range(subject.model.num_classes)]
