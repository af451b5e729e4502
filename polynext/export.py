"""Networks as files that need no polynext: ONNX, or a program of torch.export. For any batch size, and checked.

A file also tells how a picture becomes the network's input, and the names of the classes, as JSON: under `polynext` in
ONNX's metadata, in the extra file `polynext.json` of a torch.export program.
"""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from polynext.acceleration import onnx_form, restore
from polynext.errors import PolyNeXtError
from polynext.extras import require
from polynext.preprocessing import Preprocessing

__all__ = ["Format", "check", "export", "load", "load_openvino", "sample_images"]

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
TOLERANCE = 1e-4
ABOUT, ABOUT_FILE = "polynext", "polynext.json"

Network = Callable[[Tensor], Tensor]


def export(
    model: nn.Module,
    input_size: tuple[int, ...],
    path: Path,
    form: Format,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Writes a model in eval mode; batches of any size go into what is written."""
    model = onnx_form(model) if form == "onnx" else restore(copy.deepcopy(model))
    about = json.dumps({"preprocessing": preprocessing and preprocessing.to_json(), "classes": classes})
    example = torch.zeros(2, *input_size)  # torch.export takes a dimension of one for a constant
    with torch.no_grad():
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    if form == "torch":
        torch.export.save(program, path, extra_files={ABOUT_FILE: about})
        return
    require("export", "onnx", "onnxscript")
    made = torch.onnx.export(program, input_names=["images"], output_names=["logits"], dynamo=True, verbose=False)
    assert made is not None
    made.model.metadata_props[ABOUT] = about
    made.save(str(path), external_data=False)


def load(path: Path, threads: int = 0) -> Network:
    """What an exported file computes, as a function of images; ONNX runs in onnxruntime."""
    if path.suffix == SUFFIXES["torch"]:
        return torch.export.load(path).module()
    session = onnx_session(path, threads)
    return lambda images: torch.from_numpy(session.run(None, {"images": images.cpu().numpy()})[0])


def load_openvino(path: Path, threads: int = 0) -> Network:
    """What an exported ONNX file computes, as a function of images, in OpenVINO on the CPU and in float32."""
    require("openvino")
    import openvino

    wanted: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        wanted["INFERENCE_NUM_THREADS"] = threads
    compiled = openvino.Core().compile_model(str(path), "CPU", wanted)
    return lambda images: torch.from_numpy(compiled(images.cpu().numpy())[0].copy())


def onnx_session(path: Path, threads: int = 0) -> Any:
    require("export", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # it tells of every constant that it leaves where it is
    available = onnxruntime.get_available_providers()
    chosen = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    return onnxruntime.InferenceSession(str(path), options, providers=chosen)


def largest_difference(model: nn.Module, path: Path, images: Tensor) -> float:
    """The largest difference between the logits of a model and of its file, over batches of several sizes."""
    exported = load(path)
    differences = []
    with torch.no_grad():
        for batch in (images[:1], images):
            differences.append((model(batch) - exported(batch)).abs().max().item())
    return float(np.max(differences))  # max() of Python would lose a nan


def check(model: nn.Module, path: Path, images: dict[str, Tensor]) -> dict[str, float]:
    """Raises unless the file gives the model's logits for each kind of images; returns the largest differences."""
    differences = {kind: largest_difference(model, path, batch) for kind, batch in images.items()}
    for kind, difference in differences.items():
        if not difference <= TOLERANCE:
            raise PolyNeXtError(
                f"{path} gives logits that are {difference:.1e} off on {kind} images, more than {TOLERANCE:.0e}: "
                "do not use it, and report the model."
            )
    return differences


def sample_images(channels: int) -> list[Image.Image]:
    """Real images without a download: scikit-learn's two photographs, or its digits for grey images."""
    require("export", "sklearn")
    from sklearn.datasets import load_digits, load_sample_images

    if channels == 1:
        pictures = [(16 * digit).clip(0, 255).astype(np.uint8) for digit in load_digits().images[:8]]
    else:
        pictures = load_sample_images().images
    return [Image.fromarray(picture) for picture in pictures]
