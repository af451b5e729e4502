"""`polynext predict`."""

import io
import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from PIL import Image, ImageOps, UnidentifiedImageError

from polynext.cli.evaluate import load_subject
from polynext.data.sets import IMAGE_SUFFIXES
from polynext.data.transforms import evaluation_transform
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError


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
    subject = load_subject(model, checkpoint, pretrained, Processes(0, 1, torch.device("cpu")))
    transform = evaluation_transform(subject.data)
    names = class_names(subject)
    status = 0
    for path in found(images):
        try:
            picture = open_image(path)
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            print(f"polynext predict: {path} cannot be read as an image ({error}).", file=sys.stderr)
            status = 1
            continue
        with torch.inference_mode():
            chances = subject.model.eval()(transform(picture)[None]).float().softmax(dim=1)[0]
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
    """An image of any kind as RGB, upright; 16-bit greys are scaled to 8."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    with Image.open(io.BytesIO(data)) as file:
        file.load()
        picture = ImageOps.exif_transpose(file)
    if picture.mode.startswith("I"):
        picture = picture.point(lambda value: value / 257).convert("L")
    if "A" in picture.getbands() or "transparency" in picture.info:
        clear = Image.new("RGBA", picture.size, "white")
        clear.alpha_composite(picture.convert("RGBA"))
        picture = clear
    return picture.convert("RGB")


def class_names(subject: Any) -> list[str]:
    """Names where they are known: ImageNet's words, a run's classes; otherwise numbers."""
    from polynext.data import load_examples

    count = subject.model.num_classes
    if subject.data.name == "imagenet":
        if count != 1000:
            return [str(i) for i in range(count)]
        from timm.data import ImageNetInfo

        return [str(name).split(",")[0] for name in ImageNetInfo().label_descriptions()]
    return list(load_examples(subject.data, "test").classes)
