"""`polynext export`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polynext.errors import PolyNeXtError
from polynext.files import require_place
from polynext.preprocessing import open_picture


def main(
    network: Annotated[str, tyro.conf.Positional],
    format: Literal["onnx", "torch"] = "onnx",
    checkpoint: Path | None = None,
    pretrained: bool = False,
    fold: bool = False,
    out: Path | None = None,
    check_images: tuple[Path, ...] = (),
) -> None:
    """Export a network to a file that runs without polynext, for batches of any size, and check the file.

    The check compares the logits of the file and the network on random and on real images. ONNX files run in
    onnxruntime. A difference above 1e-4 is an error. The file also contains the preprocessing of images.

    Args:
        network: folder of a training run, a weights file, a model's name, or a shipped network: mnist, digits, cifar10,
            cifar10-deep.
        format: onnx, or torch for a torch.export program.
        checkpoint: weights file; by default the best weights of a run.
        pretrained: use the published weights of the model.
        fold: absorb constants into the weights first; only for models of this package.
        out: the file to write; the model's name with .onnx or .pt2 by default.
        check_images: image files for the check; by default two photographs, or digits for one channel.
    """
    import torch

    from polynext import acceleration
    from polynext.export import SUFFIXES, check, export, sample_images
    from polynext.runs import load_run

    run = load_run(network, checkpoint, pretrained)
    model = run.model
    if run.weights == "untrained":
        print(f"polynext export: {run.name} has no trained weights: its predictions are random.", file=sys.stderr)
    if fold:
        model = acceleration.fold(model)
    path = out or Path(f"{run.name}{SUFFIXES[format]}")
    if path.suffix != SUFFIXES[format]:
        raise PolyNeXtError(f"`out` is {path}: give a name that ends in {SUFFIXES[format]}, for format {format}.")
    require_place(path)
    preprocessing = run.preprocessing
    opened = [open_picture(image) for image in check_images] or sample_images(preprocessing.channels)
    real = torch.stack([torch.from_numpy(preprocessing(image)) for image in opened])
    path.parent.mkdir(parents=True, exist_ok=True)
    export(model, preprocessing.input_size, path, format, preprocessing, run.classes)
    differences = check(model, path, {"random": torch.randn(3, *preprocessing.input_size), "real": real})
    size = "x".join(map(str, preprocessing.input_size))
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MB, {size} images, any batch size")
    found = ", ".join(f"{difference:.1e} on {kind} images" for kind, difference in differences.items())
    print(f"largest difference of a logit: {found}")
