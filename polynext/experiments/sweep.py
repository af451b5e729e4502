"""Sweeps: many short training runs, each in its own folder, trained in parallel processes.

    OUT/sweep.json                settings that all runs share
    OUT/NAME/seed-N/              a training run's folder
    OUT/NAME/seed-N/result.json   its result: an accuracy, the step at which it diverged, or an error

`run_sweep` skips runs that have a result, repeats runs that ended with an error, and resumes interrupted runs.
"""

import functools
import json
import math
import multiprocessing
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import torch

from polynext.config import TrainConfig
from polynext.data import DataConfig, load_examples
from polynext.errors import PolyNeXtError
from polynext.experiments.report import Report
from polynext.files import read_json, write_atomically
from polynext.schema import Config, NonNegativeInt, validate
from polynext.threads import cores, idle_threads_give_way
from polynext.training.classification import train
from polynext.training.folder import RunFolder
from polynext.training.loop import DivergedError
from polynext.training.stopping import Interrupted, termination_as_interrupt

CRASHED_AT_START, INTERRUPTED = 1, 130  # exit statuses of a process
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Trial:
    """One training run of a sweep."""

    name: str
    seed: int

    def folder(self, out: Path) -> Path:
        """The run's folder in the sweep's folder `out`."""
        return out / self.name / f"seed-{self.seed}"

    def result(self, out: Path) -> dict[str, Any] | None:
        """The run's result; None if it has not ended."""
        file = self.folder(out) / "result.json"
        return read_json(file) if file.is_file() else None

    def finished(self, out: Path) -> bool:
        """Whether the run ended without an error."""
        return "error" not in (self.result(out) or {"error": "not trained yet"})

    def write(self, out: Path, result: dict[str, Any]) -> None:
        """Stores the run's result."""
        write_atomically(self.folder(out) / "result.json", json.dumps(result).encode())

    def forget(self, out: Path) -> None:
        """Removes the result but keeps the trained weights, so that `run_sweep` only repeats `Sweep.conclude`."""
        (self.folder(out) / "result.json").unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Sweep(Config, ABC):
    """Settings that all runs of a sweep share. Subclasses define the runs by name.

    Attributes:
        images: number of training images; 0 for all.
        root: folder or .npz file of the data; the recipe's by default.
    """

    images: NonNegativeInt = 0
    root: str = ""

    # Fields that may change when a sweep is resumed. Data may have moved.
    may_change: ClassVar[frozenset[str]] = frozenset({"root"})

    @abstractmethod
    def config(self, name: str) -> TrainConfig:
        """The training config of the run with this name."""

    @abstractmethod
    def report(self, trials: Sequence[Trial], out: Path) -> Report:
        """The report on the results in a sweep's folder."""

    def conclude(self, folder: Path) -> dict[str, Any]:
        """Further results for result.json, computed from a trained run's folder."""
        return {}

    def with_data(self, config: TrainConfig) -> TrainConfig:
        """The config with the sweep's data."""
        root = Path(self.root) if self.root else config.data.root
        return replace(config, data=replace(config.data, limit=self.images, root=root))

    def open(self, out: Path) -> None:
        """Creates a sweep's folder, or checks that an existing one has the same settings."""
        file = out / "sweep.json"
        if file.is_file():
            new = asdict(self)
            old = {key: value for key, value in asdict(self.read(out)).items() if key not in self.may_change}
            if different := [f"{key} {value!r}, not {new[key]!r}" for key, value in old.items() if value != new[key]]:
                raise PolyNeXtError(
                    f"{out} has runs with {', '.join(different)}: give the same settings, or another `out`."
                )
        elif out.exists() and (not out.is_dir() or (out / "config.yaml").exists()):
            raise PolyNeXtError(f"{out} is {'a training run' if out.is_dir() else 'a file'}: give another `out`.")
        write_atomically(file, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def read(cls, out: Path) -> Self:
        """The settings of the sweep in a folder."""
        file = out / "sweep.json"
        if not file.is_file():
            raise PolyNeXtError(f"{out} has no sweep: give the folder of a sweep as `out`.")
        try:
            return validate(cls, json.loads(file.read_text()), str(file))
        except ValueError as error:
            raise PolyNeXtError(f"{out} has a sweep of another kind or version: give another `out`.") from error


@functools.cache
def training_images(data: DataConfig) -> int:
    """The number of training images."""
    return len(load_examples(data, "train"))


def require_a_batch(config: TrainConfig) -> None:
    """Raises if the training images are missing or fewer than one batch."""
    images = training_images(config.data)
    if images < config.batch_size:
        raise PolyNeXtError(
            f"there are {images} training images, fewer than one batch of {config.batch_size}: give more."
        )


def shortened(train: TrainConfig, epochs: int) -> TrainConfig:
    """Changes the length of a run. Its schedule shrinks in proportion; two warmup epochs remain if possible."""
    schedule, share = train.schedule, min(1.0, epochs / train.epochs)
    cooldown = round(share * schedule.cooldown_epochs)
    warmup = max(min(schedule.warmup_epochs, 2), math.ceil(share * schedule.warmup_epochs))
    warmup = min(warmup, epochs - cooldown)
    drops = tuple(max(1, round(share * epoch)) for epoch in schedule.drop_epochs)
    schedule = replace(schedule, warmup_epochs=warmup, cooldown_epochs=cooldown, drop_epochs=drops)
    return replace(train, epochs=epochs, schedule=schedule)


def run_sweep(
    sweep: Sweep,
    trials: Sequence[Trial],
    out: Path,
    processes: int = 1,
    on_result: Callable[[Trial], None] = lambda trial: None,
) -> None:
    """Trains all runs that have no result yet.

    A run that fails, or whose process dies, gets an error as its result; the other runs continue. SIGINT and SIGTERM
    let the current runs save their state before `KeyboardInterrupt` is raised. A script that defines its own kind of
    sweep, or registers models or data sets for it, must call this function under `if __name__ == "__main__":`: then
    the training processes import the script.

    Args:
        sweep: the settings.
        trials: the runs.
        out: the sweep's folder.
        processes: number of runs at a time.
        on_result: called after each run.
    """
    for trial in trials:  # so that missing data is reported once, not by every run
        require_a_batch(sweep.config(trial.name))
    sweep.open(out)
    pending = [trial for trial in trials if not trial.finished(out)]
    for trial in pending:
        folder = RunFolder(trial.folder(out))
        with folder.alone() if folder.states.is_dir() else nullcontext():  # raises if another sweep trains this run
            trial.forget(out)
    threads, context = max(1, cores() // processes), multiprocessing.get_context("spawn")
    shares = [pending[i::processes] for i in range(processes)]
    running: dict[BaseProcess, list[Trial]] = {}
    with termination_as_interrupt():
        try:
            while any(shares) or running:
                for share in filter(None, shares):
                    process = context.Process(target=run_trials, args=(sweep, share, out, threads))
                    with idle_threads_give_way(), script_not_imported(sweep):
                        process.start()
                    running[process] = share
                wait([process.sentinel for process in running], timeout=POLL_SECONDS)
                ended = {process: share for process, share in running.items() if not process.is_alive()}
                shares = [trials_left(share, process.exitcode, out) for process, share in ended.items()]
                running = {process: share for process, share in running.items() if process not in ended}
                for trial in [trial for trial in pending if trial.result(out) is not None]:
                    pending.remove(trial)
                    on_result(trial)
        finally:
            for one in running:
                one.terminate()  # training saves its state first
            for one in running:
                one.join()


@contextmanager
def script_not_imported(sweep: Sweep) -> Iterator[None]:
    """While inside, new processes do not import a script without a guard, unless it defines this kind of sweep.

    It would start the sweep again.
    """
    main = sys.modules["__main__"]
    if type(sweep).__module__ != "__main__" and not guarded(main):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def guarded(script: ModuleType) -> bool:
    """Whether a script has `if __name__ == "__main__":`, so that it can be imported."""
    file = Path(getattr(script, "__file__", None) or "")
    return file.is_file() and re.search(rb"^if __name__ == .__main__.:", file.read_bytes(), re.MULTILINE) is not None


def trials_left(trials: Sequence[Trial], status: int | None, out: Path) -> list[Trial]:
    """The runs that a process did not reach. The run that it died in gets an error. Raises if it could not start."""
    left = [trial for trial in trials if trial.result(out) is None]
    if left and status == CRASHED_AT_START:
        raise PolyNeXtError(
            "a process of the sweep could not import the script that started it: put the call of run_sweep under "
            '`if __name__ == "__main__":`.'
        )
    for trial in left[:1]:
        trial.write(out, {"error": f"its process died with status {status}: there may be too little memory."})
    return left[1:]


def run_trials(sweep: Sweep, trials: Sequence[Trial], out: Path, threads: int) -> None:
    """Trains runs one after the other and writes their results; the main function of a process."""
    torch.set_num_threads(threads)
    for trial in trials:
        try:
            trial.write(out, train_trial(sweep, trial, out))
        except (Interrupted, KeyboardInterrupt):
            os._exit(INTERRUPTED)  # without a traceback; the state is saved
        except DivergedError as error:
            trial.write(out, {"diverged": error.step})
        except Exception as error:
            trial.write(out, {"error": f"{type(error).__name__}: {error}"})


def train_trial(sweep: Sweep, trial: Trial, out: Path) -> dict[str, Any]:
    """Trains, or resumes, one run and returns its result."""
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
