"""Networks as files that need no polynext: ONNX, or a program of torch.export. For any batch size, and checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
TOLERANCE = 1e-4

Network = Callable[[Tensor], Tensor]


def export(model: nn.Module, input_size: tuple[int, ...], path: Path, form: Format) -> None:
    """Writes a model in eval mode; batches of any size go into what is written."""
    example = torch.zeros(2, *input_size)  # torch.export takes a dimension of one for a constant
    with torch.no_grad():
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    if form == "torch":
        torch.export.save(program, path)
        return
    require_onnx()
    made = torch.onnx.export(program, input_names=["images"], output_names=["logits"], dynamo=True, verbose=False)
    assert made is not None
    made.save(str(path), external_data=False)


def load(path: Path, threads: int = 0) -> Network:
    """What an exported file computes, as a function of images; ONNX runs in onnxruntime."""
    if path.suffix == SUFFIXES["torch"]:
        return torch.export.load(path).module()
    require_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # it tells of every constant that it leaves where it is
    available = onnxruntime.get_available_providers()
    chosen = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    session = onnxruntime.InferenceSession(str(path), options, providers=chosen)
    return lambda images: torch.from_numpy(session.run(None, {"images": images.cpu().numpy()})[0])


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
    found = {kind: largest_difference(model, path, batch) for kind, batch in images.items()}
    for kind, difference in found.items():
        if not difference <= TOLERANCE:
            raise PolyNeXtError(
                f"{path} gives logits that are {difference:.1e} off on {kind} images, more than {TOLERANCE:.0e}: "
                "do not use it, and report the model."
            )
    return found


def require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise PolyNeXtError(f"ONNX needs {error.name}, which is missing: pip install 'polynext[onnx]'.") from None


def sample_images(input_size: tuple[int, ...], transform: Callable[[Any], Tensor]) -> Tensor:
    """Real images without a download: scikit-learn's two photographs, or its digits for small grey images."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_images

    if input_size[0] == 1:
        pictures = [(16 * d).clip(0, 255).astype(np.uint8) for d in load_digits().images[:8]]
    else:
        pictures = load_sample_images().images
    return torch.stack([transform(Image.fromarray(picture)) for picture in pictures])
