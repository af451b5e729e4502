"""`polynext predict`."""

import io
import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image

from polynext.errors import PolyNeXtError, require_at_least
from polynext.preprocessing import IMAGE_SUFFIXES, open_picture


def main(
    network: Annotated[str, tyro.conf.Positional],
    images: Annotated[list[str], tyro.conf.Positional],
    checkpoint: Path | None = None,
    pretrained: bool = False,
    top: int = 5,
    json: bool = False,
) -> int:
    """Classify images: print the most likely classes of each. The exit status is 1 if an image could not be read.

    Args:
        network: folder of a training run, a weights file, a model's name, or a shipped network: mnist, digits, cifar10,
            cifar10-deep.
        images: image files, folders of them, or - for one image from standard input.
        checkpoint: weights file; by default the best weights of a run.
        pretrained: use the published weights of the model.
        top: number of classes to print.
        json: print a line of JSON for each image.
    """
    from polynext.runs import load_run

    require_at_least(1, top=top)
    run = load_run(network, checkpoint, pretrained)
    run.require_trained()
    status = 0
    for path in image_files(images):
        try:
            image = open_image(path)
        except PolyNeXtError as error:
            print(f"polynext predict: {error}", file=sys.stderr)
            status = 1
            continue
        guesses = run.classify(image)[:top]
        if json:
            print(jsonlib.dumps({"image": path, "classes": [{"class": n, "probability": p} for n, p in guesses]}))
        else:
            print(f"{path}: " + ", ".join(f"{n} {100 * p:.1f}%" for n, p in guesses))
    return status


def image_files(given: list[str]) -> Iterator[str]:
    """The given files, and the images in the given folders."""
    for name in given:
        path = Path(name)
        if name != "-" and path.is_dir():
            inside = sorted(str(f) for f in path.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise PolyNeXtError(f"{name} has no images in it: give image files or a folder of them.")
            yield from inside
        elif name != "-" and not path.exists():
            raise PolyNeXtError(f"there is no file {name}: give image files, folders or -.")
        else:
            yield name


def open_image(path: str) -> Image.Image:
    return open_picture(io.BytesIO(sys.stdin.buffer.read()) if path == "-" else Path(path))
