"""A run's folder: its config, metrics, weights, and the states it can go on from.

    config.yaml          the resolved config; starts the same run again
    environment.json     versions, hardware, git revision, command
    metrics.jsonl        one line per epoch, and one every few steps
    tensorboard/         the same for TensorBoard
    curves.png           loss, accuracy and learning rate by epoch
    diagnostics.png      what happened inside the cells, if asked for
    best.safetensors     the weights with the highest test accuracy, raw or averaged
    last.safetensors     the weights after the last epoch
    states/              what a run needs to go on, the two newest

Every file is whole or not there. A state's name holds a checksum of its content: a torn one is noticed and the one
before used.
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
    """Files of one run. Only the first process writes."""

    def __init__(self, path: Path):
        self.path = path
        self.states = path / "states"

    def alone(self) -> AbstractContextManager[None]:
        """Nobody else may train here meanwhile: two would write into each other's files."""
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
            old.unlink()  # older states, and what a killed process left half written
        return target

    def load_state(self) -> dict[str, Any] | None:
        """The newest whole state, or None if there is none."""
        for path in sorted(self.states.glob("*.pt"), reverse=True):
            data = path.read_bytes()
            match = re.fullmatch(r"\d+-([0-9a-f]+)", path.stem)
            if match and match[1] == checksum(data):
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            warnings.warn(f"{path} is damaged and left out: going on from the state before it.", stacklevel=2)
        return None

    def log(self, record: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def finished(self) -> bool:
        """Whether a training run has come to its last epoch."""
        epochs = [record["epoch"] for record in self.records() if "epoch" in record]
        config = self.path / "config.yaml"
        return bool(epochs) and config.is_file() and max(epochs) + 1 == yaml.safe_load(config.read_text())["epochs"]

    def forget_after(self, step: int) -> None:
        """Drops the metrics of steps that a resumed run will take again."""
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
