"""What is measured: a model, the engine that runs it, and the settings that all share."""

import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import polynext
from polynext.acceleration import accelerate, compile, fold
from polynext.errors import PolyNeXtError
from polynext.export import export, load, load_openvino
from polynext.models import check_model

# An engine's name joins words by +: how to prepare the network, and what runs it.
PREPARATIONS = ("folded", "bf16")
RUNNERS = ("eager", "compiled", "onnxruntime", "openvino")
ONNX_RUNNERS = {"onnxruntime", "openvino"}

Runner = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Candidate:
    """A model by name and an engine such as `eager`, `compiled`, `folded+compiled` or `bf16`."""

    model: str
    engine: str

    def __post_init__(self) -> None:
        check_model(self.model)
        words = self.engine.split("+")
        unknown = [word for word in words if word not in PREPARATIONS + RUNNERS]
        if unknown or len(words) != len(set(words)) or sum(word in RUNNERS for word in words) > 1:
            raise PolyNeXtError(
                f"there is no engine {self.engine!r}: give one of {', '.join(RUNNERS)}, optionally with "
                f"{' or '.join(PREPARATIONS)} joined by +."
            )
        if "bf16" in words and (runner := ONNX_RUNNERS & set(words)):
            raise PolyNeXtError(f"{runner.pop()} computes in float32 here: leave bf16 out.")

    @property
    def words(self) -> set[str]:
        """The words of the engine's name."""
        return set(self.engine.split("+"))

    @property
    def obstacle(self) -> str | None:
        """Why the engine cannot run this model; None if it can."""
        if "folded" in self.words and not hasattr(timm.create_model(self.model, device="meta"), "fold"):
            return "only the package's own models fold"
        return None


@dataclass(frozen=True)
class Setting:
    """The device and the input that all candidates share; 0 threads for all."""

    device: str
    batch_size: int
    image_size: int | None = None
    threads: int = 0

    def can_measure_memory(self, candidate: Candidate) -> bool:
        """False for compiled networks on a CPU, where the compiler uses more memory than the network."""
        return self.device.startswith("cuda") or "compiled" not in candidate.words

    def describe(self) -> dict[str, Any]:
        """The settings, versions and command, for reports."""
        cuda = self.device.startswith("cuda")
        device = torch.cuda.get_device_name(self.device) if cuda else platform.processor()
        return {
            "device": f"{self.device} ({device or platform.machine()})",
            "batch": self.batch_size,
            "image size": self.image_size or "each model's own",
            "threads": self.threads or torch.get_num_threads(),
            "torch": torch.__version__,
            "timm": timm.__version__,
            "polynext": polynext.__version__,
            "command": " ".join(["polynext", *sys.argv[1:]]),
        }


def default_device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_setting(
    device: str, batch_size: int | None = None, image_size: int | None = None, threads: int = 0
) -> Setting:
    """Batches of 128 images on a GPU and of 8 on a CPU, unless given."""
    return Setting(device, batch_size or (128 if device.startswith("cuda") else 8), image_size, threads)


def input_size(model: nn.Module, setting: Setting) -> tuple[int, int, int]:
    """Channels, height and width of the model's input."""
    cfg: Any = model.pretrained_cfg
    channels, *own = cfg["input_size"]
    side = setting.image_size or own[0]
    return channels, side, side


def prepare(candidate: Candidate, setting: Setting) -> tuple[Runner, Tensor]:
    """A function that runs a batch, and a batch of random images."""
    if setting.threads:
        torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    model: Any = timm.create_model(candidate.model).eval()
    images = torch.randn(setting.batch_size, *input_size(model, setting))
    if "folded" in candidate.words:
        model = fold(model)
    if runner := ONNX_RUNNERS & candidate.words:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export(model, tuple(images.shape[1:]), path, "onnx")
            open_file = load if runner == {"onnxruntime"} else load_openvino
            return open_file(path, setting.threads), images
    dtype = torch.bfloat16 if "bf16" in candidate.words else torch.float32
    where: Any = {"device": setting.device, "dtype": dtype, "memory_format": torch.channels_last}
    model, images = model.to(**where), images.to(**where)
    return (compile(model) if "compiled" in candidate.words else accelerate(model)), images
