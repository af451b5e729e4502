"""Export of networks to files that run without polynext: ONNX or torch.export programs, for any batch size.

A file also contains the preprocessing of images and the names of the classes, as JSON: under `polynext` in ONNX's
metadata, or as the extra file `polynext.json` of a torch.export program.
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
METADATA, METADATA_FILE = "polynext", "polynext.json"

Network = Callable[[Tensor], Tensor]


def export(
    model: nn.Module,
    input_size: tuple[int, ...],
    path: Path,
    form: Format,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Writes a model in eval mode to a file that takes batches of any size."""
    model = onnx_form(model) if form == "onnx" else restore(copy.deepcopy(model))
    metadata = json.dumps({"preprocessing": preprocessing and preprocessing.to_json(), "classes": classes})
    example = torch.zeros(2, *input_size)  # torch.export treats a dimension of 1 as a constant
    with torch.no_grad():
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    if form == "torch":
        torch.export.save(program, path, extra_files={METADATA_FILE: metadata})
        return
    require("export", "onnx", "onnxscript")
    made = torch.onnx.export(program, input_names=["images"], output_names=["logits"], dynamo=True, verbose=False)
    assert made is not None
    made.model.metadata_props[METADATA] = metadata
    made.save(str(path), external_data=False)


def load(path: Path, threads: int = 0) -> Network:
    """An exported file as a function of images. ONNX files run in onnxruntime."""
    if path.suffix == SUFFIXES["torch"]:
        return torch.export.load(path).module()
    session = onnx_session(path, threads)
    return lambda images: torch.from_numpy(session.run(None, {"images": images.cpu().numpy()})[0])


def load_openvino(path: Path, threads: int = 0) -> Network:
    """An exported ONNX file as a function of images, in OpenVINO on the CPU in float32."""
    require("openvino")
    import openvino

    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        config["INFERENCE_NUM_THREADS"] = threads
    compiled = openvino.Core().compile_model(str(path), "CPU", config)
    return lambda images: torch.from_numpy(compiled(images.cpu().numpy())[0].copy())


def onnx_session(path: Path, threads: int = 0) -> Any:
    require("export", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only: it warns about every constant that it does not fold
    available = onnxruntime.get_available_providers()
    chosen = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    return onnxruntime.InferenceSession(str(path), options, providers=chosen)


def largest_difference(model: nn.Module, path: Path, images: Tensor) -> float:
    """The largest difference between the logits of a model and of its file, over batches of several sizes.

    It is relative to the largest logit if that exceeds 1: a fully polynomial network has large logits for noise.
    """
    exported, differences = load(path), []
    with torch.no_grad():
        for batch in (images[:1], images):
            logits = model(batch)
            difference = (logits - exported(batch)).abs().max()
            differences.append((difference / logits.abs().max().clamp(min=1)).item())
    return float(np.max(differences))  # Python's max would lose a nan


def check(model: nn.Module, path: Path, images: dict[str, Tensor]) -> dict[str, float]:
    """Raises an error unless the file gives the model's logits for each set of images. Returns the differences."""
    differences = {kind: largest_difference(model, path, batch) for kind, batch in images.items()}
    for kind, difference in differences.items():
        if not difference <= TOLERANCE:
            raise PolyNeXtError(
                f"the logits of {path} differ from the model's by {difference:.1e} on {kind} images, more than "
                f"{TOLERANCE:.0e}: do not use the file, and report the model."
            )
    return differences


def sample_images(channels: int) -> list[Image.Image]:
    """scikit-learn's two photographs, or its digits for one channel, which need no download."""
    require("export", "sklearn")
    from sklearn.datasets import load_digits, load_sample_images

    if channels == 1:
        images = [(16 * digit).clip(0, 255).astype(np.uint8) for digit in load_digits().images[:8]]
    else:
        images = load_sample_images().images
    return [Image.fromarray(image) for image in images]
