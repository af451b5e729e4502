"""What is measured: a model, and the engine that runs it."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from polynext.acceleration import accelerate, compile, fold
from polynext.errors import PolyNeXtError
from polynext.export import export, load, load_openvino
from polynext.models import check_model

# Words of an engine's name, joined by +: how the network is prepared, and what runs it.
PREPARATIONS = ("folded", "bf16")
RUNNERS = ("eager", "compiled", "onnxruntime", "openvino")
OF_FILES = {"onnxruntime", "openvino"}  # what runs a file in ONNX

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
                f"there is no engine {self.engine!r}: give one of {', '.join(RUNNERS)}, "
                f"with {' or '.join(PREPARATIONS)} added by a + if wanted."
            )
        if "bf16" in words and (runner := OF_FILES & set(words)):
            raise PolyNeXtError(f"{runner.pop()} computes in float32 here: leave bf16 out.")

    @property
    def words(self) -> set[str]:
        return set(self.engine.split("+"))

    @property
    def obstacle(self) -> str | None:
        """Why this model cannot go with this engine, if so."""
        if "folded" in self.words and not hasattr(timm.create_model(self.model, device="meta"), "fold"):
            return "only the package's own models fold"
        return None


@dataclass(frozen=True)
class Setting:
    """Where and on what all candidates run."""

    device: str
    batch_size: int
    image_size: int | None = None
    threads: int = 0

    def tells_memory(self, candidate: Candidate) -> bool:
        """Whether the memory of a process is the network's: on a CPU, a compiler takes more than what it compiles."""
        return self.device.startswith("cuda") or "compiled" not in candidate.words


def input_size(model: nn.Module, setting: Setting) -> tuple[int, int, int]:
    cfg: Any = model.pretrained_cfg
    channels, *own = cfg["input_size"]
    side = setting.image_size or own[0]
    return channels, side, side


def prepare(candidate: Candidate, setting: Setting) -> tuple[Runner, Tensor]:
    """A function that runs a batch, and a batch to run it on."""
    if setting.threads:
        torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    model: Any = timm.create_model(candidate.model).eval()
    images = torch.randn(setting.batch_size, *input_size(model, setting))
    if "folded" in candidate.words:
        model = fold(model)
    if runner := OF_FILES & candidate.words:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export(model, tuple(images.shape[1:]), path, "onnx")
            open_file = load if runner == {"onnxruntime"} else load_openvino
            return open_file(path, setting.threads), images
    dtype = torch.bfloat16 if "bf16" in candidate.words else torch.float32
    where: Any = {"device": setting.device, "dtype": dtype, "memory_format": torch.channels_last}
    model, images = model.to(**where), images.to(**where)
    return (compile(model) if "compiled" in candidate.words else accelerate(model)), images
