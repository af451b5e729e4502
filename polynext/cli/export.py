"""`polynext export`."""

from pathlib import Path
from typing import Annotated

import torch
import tyro

from polynext.cli.runs import load_subject
from polynext.data.images import open_picture
from polynext.data.transforms import evaluation_transform
from polynext.errors import PolyNeXtError
from polynext.export import SUFFIXES, Format, check, export, sample_images
from polynext.models import PolyNeXt


def main(
    model: Annotated[str, tyro.conf.Positional],
    format: Format = "onnx",
    checkpoint: Path | None = None,
    pretrained: bool = False,
    fold: bool = False,
    out: Path | None = None,
    images: tuple[Path, ...] = (),
) -> None:
    """Write a network as a file that runs without polynext, for batches of any size, and check it.

    The check compares the file's logits with the network's on random and on real images, in onnxruntime for ONNX. A
    file that is off by more than 1e-4 is an error.

    Args:
        model: a model's name, ours or timm's, or the folder of a finished training run.
        format: onnx, or torch for a torch.export program.
        checkpoint: weights, ours or published; a run's best by default.
        pretrained: fetch the published weights of the model instead.
        fold: absorb the constants into the weights first; ours only.
        out: the file; the model's name with .onnx or .pt2 by default.
        images: image files to check with; two photographs, or digits for small grey images, by default.
    """
    subject = load_subject(model, checkpoint, pretrained)
    network = subject.model
    if fold:
        if not isinstance(network, PolyNeXt):
            raise PolyNeXtError(f"{subject.name} cannot be folded: only our models can, leave --fold out.")
        network = network.fold()
    size = (len(subject.data.mean), subject.data.image_size, subject.data.image_size)
    path = out or Path(f"{subject.name}{SUFFIXES[format]}")
    if path.suffix != SUFFIXES[format]:
        raise PolyNeXtError(f"{path} does not end in {SUFFIXES[format]}, as a file of format {format} should.")
    transform = evaluation_transform(subject.data)
    real = torch.stack([transform(open_picture(i)) for i in images]) if images else sample_images(size, transform)
    path.parent.mkdir(parents=True, exist_ok=True)
    export(network, size, path, format)
    found = check(network, path, {"random": torch.randn(3, *size), "real": real})
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MB, {'x'.join(map(str, size))} images, any number at a time")
    print("largest difference of a logit: " + ", ".join(f"{d:.1e} on {kind} images" for kind, d in found.items()))
