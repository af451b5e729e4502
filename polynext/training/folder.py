"""The folder of a run.

    config.yaml          the resolved config; `polynext train config.yaml` repeats the run
    environment.json     versions, hardware, git revision, command
    metrics.jsonl        a line for each epoch, and one every few steps
    tensorboard/         the same for TensorBoard
    curves.png           loss, accuracy and learning rate by epoch
    diagnostics.png      activations, gradients and scales of the cells, with `diagnostics`
    best.safetensors     the weights with the highest test accuracy, raw or averaged
    last.safetensors     the weights after the last epoch
    states/              the two newest states, to resume from

Files are written atomically. The name of a state has a checksum of its content; a damaged state is skipped, and the one
before is used.
"""

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml
from torch import Tensor

from polynext.files import lock_folder, write_atomically

STATES_KEPT = 2


class RunFolder:
    """The files of one run, which only the first process writes."""

    def __init__(self, path: Path):
        self.path = path
        self.states = path / "states"

    def alone(self) -> AbstractContextManager[None]:
        """Locks the folder against other training processes."""
        return lock_folder(
            self.states, f"another process trains in {self.path}: wait until it ends, or give another --out."
        )

    def create(self, config_yaml: str) -> None:
        write_atomically(self.path / "config.yaml", config_yaml.encode())
        write_atomically(self.path / "environment.json", json.dumps(environment(), indent=2).encode())

    def save_weights(self, name: str, weights: dict[str, Tensor], **metadata: str) -> None:
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in weights.items()}, metadata)
        write_atomically(self.path / f"{name}.safetensors", data)

    def save_state(self, step: int, state: dict[str, Any]) -> Path:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        target = self.states / f"{step:09d}-{checksum(data)}.pt"
        write_atomically(target, data)
        for old in [*sorted(self.states.glob("*.pt"))[:-STATES_KEPT], *self.states.glob(".*.pt.*")]:
            old.unlink()  # and temporary files of killed processes
        return target

    def load_state(self) -> dict[str, Any] | None:
        """The newest intact state, or None."""
        for path in sorted(self.states.glob("*.pt"), reverse=True):
            data = path.read_bytes()
            match = re.fullmatch(r"\d+-([0-9a-f]+)", path.stem)
            if match and match[1] == checksum(data):
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            warnings.warn(f"{path} is damaged: using the state before it.", stacklevel=2)
        return None

    def log(self, record: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def finished(self) -> bool:
        """Whether the last epoch of the run is complete."""
        epochs = [record["epoch"] for record in self.records() if "epoch" in record]
        config = self.path / "config.yaml"
        return bool(epochs) and config.is_file() and max(epochs) + 1 == yaml.safe_load(config.read_text())["epochs"]

    def forget_after(self, step: int) -> None:
        """Removes the metrics of steps that a resumed run repeats."""
        kept = [r for r in self.records() if r["step"] <= step]
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in kept).encode())


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def environment() -> dict[str, Any]:
    import timm
    import torchvision

    from polynext import __version__

    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": sys.argv,
        "versions": {
            "polynext": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
        },
        "git_revision": git.stdout.strip() or None,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }
