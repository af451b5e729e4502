"""Many short runs, each in a folder of its own, whatever happens to the others.

    OUT/sweep.json                what all runs share
    OUT/NAME/seed-N/              a training run's folder
    OUT/NAME/seed-N/result.json   written when it is over: an accuracy, the step it diverged at, or an error

A run with a result is not run again, unless that is an error; one without goes on where it was.
"""

import functools
import json
import math
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from polynext.config import TrainConfig
from polynext.data import DataConfig, load_examples
from polynext.distributed import cores
from polynext.errors import PolyNeXtError
from polynext.files import write_atomically
from polynext.threads import idle_threads_give_way
from polynext.training.classification import train
from polynext.training.folder import RunFolder
from polynext.training.loop import DivergedError
from polynext.training.stopping import Interrupted, termination_as_interrupt

SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True, kw_only=True)
class Sweep(ABC):
    """What all runs of a sweep share. What tells its runs apart is for its kinds to say.

    Attributes:
        images: how many training images; 0 for all.
        root: folder of the data.
    """

    images: int = 0
    root: str = ""

    # What may be given otherwise when a sweep goes on: data may have moved.
    may_change: ClassVar[frozenset[str]] = frozenset({"root"})

    @abstractmethod
    def config(self, name: str) -> TrainConfig:
        """How the run of this name is trained."""

    def conclude(self, folder: Path) -> dict[str, Any]:
        """What to find out about a trained network beside its accuracy."""
        return {}

    def on_its_data(self, config: TrainConfig) -> TrainConfig:
        """A run on the sweep's images."""
        root = Path(self.root) if self.root else config.data.root
        return replace(config, data=replace(config.data, limit=self.images, root=root))

    def open(self, out: Path) -> None:
        """Starts a sweep's folder, or checks that it is this one's."""
        file = out / "sweep.json"
        if file.is_file():
            before = self.read(out)
            pairs = zip(asdict(before).items(), asdict(self).values(), strict=True)
            different = [f"{key} {old!r}, not {new!r}" for (key, old), new in pairs if old != new and self.fixed(key)]
            if different:
                raise PolyNeXtError(
                    f"{out} holds runs with {', '.join(different)}: give the same again, or another `out`."
                )
        elif out.exists() and (not out.is_dir() or (out / "config.yaml").exists()):
            raise PolyNeXtError(f"{out} is {'a training run' if out.is_dir() else 'a file'}: give another `out`.")
        write_atomically(file, json.dumps(asdict(self), indent=2).encode())

    def fixed(self, field: str) -> bool:
        return field not in self.may_change

    @classmethod
    def read(cls, out: Path) -> Self:
        """What the runs in a folder share."""
        file = out / "sweep.json"
        if not file.is_file():
            raise PolyNeXtError(f"{out} holds no sweep: give the `out` of one.")
        try:
            return cls(**json.loads(file.read_text()))
        except (TypeError, ValueError) as error:
            raise PolyNeXtError(f"{out} holds a sweep of another kind: give another `out`.") from error


@dataclass(frozen=True)
class Trial:
    """One training of a sweep."""

    name: str
    seed: int

    def folder(self, out: Path) -> Path:
        return out / self.name / f"seed-{self.seed}"

    def result(self, out: Path) -> dict[str, Any] | None:
        file = self.folder(out) / "result.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def finished(self, out: Path) -> bool:
        result = self.result(out)
        return result is not None and "error" not in result

    def forget(self, out: Path) -> None:
        """Takes the result away, so that the trial is concluded again; what was trained stays."""
        (self.folder(out) / "result.json").unlink(missing_ok=True)


@functools.cache
def training_images(data: DataConfig) -> int:
    return len(load_examples(data, "train"))


def require_a_batch(config: TrainConfig) -> None:
    images = training_images(config.data)
    if images < config.batch_size:
        raise PolyNeXtError(
            f"there are {images} training images, fewer than one batch of {config.batch_size}: give more."
        )


def shortened(train: TrainConfig, epochs: int) -> TrainConfig:
    """A run of other length; if shorter, warmup and cooldown in proportion, but for two epochs that make a warmup."""
    schedule, share = train.schedule, min(1.0, epochs / train.epochs)
    cooldown = round(share * schedule.cooldown_epochs)
    warmup = max(min(schedule.warmup_epochs, 2), math.ceil(share * schedule.warmup_epochs))
    warmup = min(warmup, epochs - cooldown)
    schedule = replace(schedule, warmup_epochs=warmup, cooldown_epochs=cooldown)
    return replace(train, epochs=epochs, schedule=schedule)


def run_sweep(
    sweep: Sweep,
    trials: Sequence[Trial],
    out: Path,
    processes: int = 1,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> None:
    """Trains all runs that have no result yet, so many at a time, and tells of each when it is over."""
    for trial in trials:  # missing data is one mistake, not one of every run
        require_a_batch(sweep.config(trial.name))
    sweep.open(out)
    pending = [trial for trial in trials if not trial.finished(out)]
    for trial in pending:
        folder = RunFolder(trial.folder(out))
        with folder.alone() if folder.states.is_dir() else nullcontext():  # refused if another sweep trains it
            trial.forget(out)  # an error of another time is not this one's
    threads = max(1, cores() // processes)
    shares = [pending[i::processes] for i in range(processes)]
    with termination_as_interrupt():
        workers = [Worker(sweep, share, out, threads) for share in shares if share]
        told: set[Trial] = set()
        try:
            while True:
                over = not any(worker.alive() for worker in workers)
                for trial in pending:
                    if trial not in told and trial.result(out) is not None:
                        told.add(trial)
                        tell(trial)
                if over:
                    return
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for worker in workers:
                worker.stop()


class Worker:
    """A process that trains its share of the runs one after the other; if it dies, the next one goes on."""

    def __init__(self, sweep: Sweep, trials: list[Trial], out: Path, threads: int):
        self.sweep, self.trials, self.out, self.threads = sweep, trials, out, threads
        self.start()

    def start(self) -> None:
        left = [trial for trial in self.trials if trial.result(self.out) is None]
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=train_trials, args=(self.sweep, left, self.out, self.threads))
        with idle_threads_give_way():
            self.process.start()

    def alive(self) -> bool:
        if self.process.is_alive():
            return True
        left = [trial for trial in self.trials if trial.result(self.out) is None]
        if not left:
            return False
        died = f"its process died with status {self.process.exitcode}: there may be too little memory."
        write_result(left[0], self.out, {"error": died})
        self.start()
        return True

    def stop(self) -> None:
        """Lets the run under way save its state."""
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def train_trials(sweep: Sweep, trials: Sequence[Trial], out: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    for trial in trials:
        try:
            write_result(trial, out, train_trial(sweep, trial, out))
        except (Interrupted, KeyboardInterrupt):
            os._exit(1)  # quietly: the one who asked for it knows
        except DivergedError as error:
            write_result(trial, out, {"diverged": error.step})
        except Exception as error:  # whatever it is, it is one run's and the others go on
            write_result(trial, out, {"error": f"{type(error).__name__}: {error}"})


def train_trial(sweep: Sweep, trial: Trial, out: Path) -> dict[str, Any]:
    start = time.monotonic()
    config = replace(sweep.config(trial.name), seed=trial.seed)
    folder = RunFolder(trial.folder(out))
    train(config, folder.path, resume=folder.states.is_dir(), quiet=True)
    seconds = time.monotonic() - start
    last = [record for record in folder.records() if "test_accuracy" in record][-1]
    return {
        "accuracy": max(last["test_accuracy"], last.get("ema_test_accuracy", 0.0)),
        "steps": last["step"],
        "seconds": seconds,
        **sweep.conclude(folder.path),
    }


def write_result(trial: Trial, out: Path, result: dict[str, Any]) -> None:
    folder = trial.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "result.json", json.dumps(result).encode())
