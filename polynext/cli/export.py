"""`polynext export`."""

from pathlib import Path
from typing import Annotated

import torch
import tyro

from polynext import acceleration
from polynext.errors import PolyNeXtError
from polynext.export import SUFFIXES, Format, check, export, sample_images
from polynext.files import require_place
from polynext.preprocessing import open_picture
from polynext.runs import load_run


def main(
    network: Annotated[str, tyro.conf.Positional],
    format: Format = "onnx",
    checkpoint: Path | None = None,
    pretrained: bool = False,
    fold: bool = False,
    out: Path | None = None,
    images: tuple[Path, ...] = (),
) -> None:
    """Write a network as a file that runs without polynext, for batches of any size, and check it.

    The check compares the file's logits with the network's on random and on real images, in onnxruntime for ONNX. A
    file that is off by more than 1e-4 is an error. How pictures become its input is written into the file.

    Args:
        network: folder of a training run, a file of weights, or a model's name, ours or timm's.
        format: onnx, or torch for a torch.export program.
        checkpoint: weights, ours or published; a run's best by default.
        pretrained: fetch the published weights of the model instead.
        fold: absorb the constants into the weights first; the package's own models only.
        out: the file; the model's name with .onnx or .pt2 by default.
        images: image files to check with; two photographs, or digits for small grey images, by default.
    """
    run = load_run(network, checkpoint, pretrained)
    model = run.model
    if fold:
        model = acceleration.fold(model)
    path = out or Path(f"{run.name}{SUFFIXES[format]}")
    if path.suffix != SUFFIXES[format]:
        raise PolyNeXtError(f"{path} does not end in {SUFFIXES[format]}, as a file of format {format} should.")
    require_place(path)
    preprocessing = run.preprocessing
    pictures = [open_picture(image) for image in images] or sample_images(preprocessing.channels)
    real = torch.stack([torch.from_numpy(preprocessing(picture)) for picture in pictures])
    path.parent.mkdir(parents=True, exist_ok=True)
    export(model, preprocessing.input_size, path, format, preprocessing, run.classes)
    differences = check(model, path, {"random": torch.randn(3, *preprocessing.input_size), "real": real})
    size = "x".join(map(str, preprocessing.input_size))
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MB, {size} images, any number at a time")
    told = ", ".join(f"{difference:.1e} on {kind} images" for kind, difference in differences.items())
    print(f"largest difference of a logit: {told}")
