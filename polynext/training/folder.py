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

Files are written atomically. States and weights have checksums, and a state has that of the metrics so far. A damaged
file is renamed to NAME.damaged and never deleted.
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
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polynext.files import lock_folder, reading, write_atomically

STATES_KEPT = 2
STATE_NAME = re.compile(r"\d{9}-([0-9a-f]{16})\.pt")
WEIGHTS = ("best", "last")


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

    def results(self) -> list[str]:
        """What a new run in this folder would destroy: states, weights and the metrics of finished rounds."""
        states = len([*self.states.glob("*.pt"), *self.states.glob("*.pt.damaged")])
        rounds = sum("train_loss" in record for record in self.records())
        return [
            *([f"{states} state(s)"] if states else []),
            *(path.name for path in map(self.weights, WEIGHTS) if path.exists()),
            *([f"metrics of {rounds} round(s)"] if rounds else []),
        ]

    def weights(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"

    def save_weights(self, name: str, weights: dict[str, Tensor], **metadata: str) -> None:
        stored = {key: value.detach().cpu().contiguous() for key, value in weights.items()}
        metadata["checksum"] = weights_checksum(stored, metadata)
        write_atomically(self.weights(name), safetensors.torch.save(stored, metadata))

    def score_of(self, name: str, score: str) -> float | None:
        """The score of intact weights; None if they are missing or damaged. Damaged ones are renamed."""
        path = self.weights(name)
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
            stated = metadata.pop("checksum", None)  # missing in files of earlier versions
            if stated is None or stated == weights_checksum(safetensors.torch.load_file(path), metadata):
                return float(metadata[score])
        except (SafetensorError, KeyError, ValueError):
            pass
        set_aside(path)
        return None

    def save_state(self, step: int, state: dict[str, Any]) -> Path:
        """Saves a state, and deletes old ones but for the newest."""
        buffer = io.BytesIO()
        torch.save(state | {"metrics": self.metrics_checksum(step)}, buffer)
        data = buffer.getvalue()
        target = self.states / f"{step:09d}-{checksum(data)}.pt"
        write_atomically(target, data)
        others = [path for path in self.saved_states() if path != target]
        for old in [*others[STATES_KEPT - 1 :], *self.states.glob(".*.pt.*")]:
            old.unlink()  # and temporary files of killed processes
        return target

    def saved_states(self) -> list[Path]:
        """All states, the newest first."""
        return sorted((path for path in self.states.glob("*.pt") if STATE_NAME.fullmatch(path.name)), reverse=True)

    def newest_state(self) -> Path | None:
        """The newest intact state, or None. If there is one, damaged states after it are renamed."""
        states = self.saved_states()
        for number, path in enumerate(states):
            if path.is_file() and path.stem.endswith(checksum(path.read_bytes())):
                for damaged in states[:number]:
                    set_aside(damaged, "the state before it is used")
                return path
        return None

    def load_state(self) -> dict[str, Any] | None:
        """The newest intact state, or None."""
        path = self.newest_state()
        return None if path is None else read_state(path)

    def log(self, record: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The records of the metrics file, without damaged lines."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [record for record in map(read_record, lines) if record is not None]

    def metrics_checksum(self, step: int) -> str:
        """A checksum of the metrics up to a step."""
        return checksum(as_lines(record for record in self.records() if record["step"] <= step))

    def forget_after(self, step: int, expected: str | None = None) -> None:
        """Removes the metrics of steps that a resumed run repeats.

        If what remains does not have the expected checksum, the original file is kept beside it.
        """
        path = self.path / "metrics.jsonl"
        lost = expected is not None and expected != self.metrics_checksum(step)
        if lost:
            warnings.warn(f"{path} lacks metrics up to step {step}, or has others than were saved.", stacklevel=2)
        if path.exists():
            kept = as_lines(record for record in self.records() if record["step"] <= step)
            if lost:
                write_atomically(damaged_name(path), path.read_bytes())
            write_atomically(path, kept)


def damaged_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")


def set_aside(path: Path, consequence: str = "") -> None:
    """Renames a damaged file, so that it is neither used nor replaced."""
    renamed = path.rename(damaged_name(path))
    warnings.warn(f"{path} is damaged and now named {renamed.name}{consequence and f'; {consequence}'}.", stacklevel=3)


def read_state(path: Path) -> dict[str, Any]:
    with reading(f"{path} cannot be read as a state: rename it, and the state before it is used."):
        return torch.load(path, map_location="cpu", weights_only=True)


def read_record(line: str) -> dict[str, Any] | None:
    """A line of the metrics file; None if it is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def as_lines(records: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def weights_checksum(weights: dict[str, Tensor], metadata: dict[str, str]) -> str:
    return checksum(safetensors.torch.save(weights) + json.dumps(metadata, sort_keys=True).encode())


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
