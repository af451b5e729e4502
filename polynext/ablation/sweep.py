"""Trains ablations: many short runs, each in a folder of its own, whatever happens to the others.

    OUT/sweep.json               what all runs share
    OUT/ROW/seed-N/              a training run's folder
    OUT/ROW/seed-N/result.json   written when it is over: an accuracy, the step it diverged at, or an error

A run with a result is not run again, unless that is an error; one without goes on where it was.
"""

import functools
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from polynext.ablation.baselines import FAMILIES, baselines, shortened
from polynext.ablation.rows import ROWS
from polynext.data import DataConfig, load_examples
from polynext.distributed import cores
from polynext.errors import PolyNeXtError
from polynext.files import write_atomically
from polynext.models import is_polynext
from polynext.training import DivergedError, Interrupted, TrainConfig, train
from polynext.training.folder import RunFolder
from polynext.training.stopping import termination_as_interrupt

SECONDS_BETWEEN_LOOKS = 0.5
STEPS_BETWEEN_DIAGNOSTICS = 10


@functools.cache
def training_images(data: DataConfig) -> int:
    return len(load_examples(data, "train"))


@dataclass(frozen=True)
class Sweep:
    """What all runs of a sweep share.

    Attributes:
        recipe: digits, cifar10 or imagenet.
        steps: optimiser steps of a run, rounded up to whole epochs; 0 for the recipe's own length.
        images: how many training images; 0 for all.
        root: folder of the data.
        diagnostics: watch what happens inside the cells, ten steps apart.
    """

    recipe: str
    steps: int = 0
    images: int = 0
    root: str = ""
    diagnostics: bool = False

    def baseline(self, family: str) -> TrainConfig:
        train = baselines(self.recipe)[family]
        data = replace(train.data, limit=self.images, root=Path(self.root) if self.root else train.data.root)
        epochs = train.epochs
        if self.steps:
            in_an_epoch = training_images(data) // train.batch_size
            epochs = math.ceil(self.steps / max(in_an_epoch, 1))
        train = replace(shortened(train, epochs), data=data, evaluate_every=epochs)
        if self.diagnostics and is_polynext(train.model.name):  # others have no cells to look into
            train = replace(train, diagnostics=True, log_steps=STEPS_BETWEEN_DIAGNOSTICS)
        return train

    def config(self, name: str) -> TrainConfig:
        """A row's, or of an unchanged family."""
        if name in FAMILIES:
            return self.baseline(name)
        return ROWS[name].change(self.baseline(ROWS[name].family))


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


def all_trials(rows: Sequence[str], seeds: int) -> list[Trial]:
    """The rows and the families they are compared with; all with one seed before any with the next."""
    families = dict.fromkeys(ROWS[name].family for name in rows)
    return [Trial(name, seed) for seed in range(seeds) for name in (*families, *rows)]


def open_sweep(out: Path, sweep: Sweep) -> None:
    """Starts a sweep's folder, or checks that it is this one's."""
    file = out / "sweep.json"
    if file.is_file():
        before = replace(read_sweep(out), root=sweep.root)  # data may have moved
        if before != sweep:
            raise PolyNeXtError(
                f"{out} holds runs with {differences(before, sweep)}: give the same again, or another `out`."
            )
        return
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(sweep), indent=2).encode())


def read_sweep(out: Path) -> Sweep:
    """What the runs in a folder share."""
    file = out / "sweep.json"
    if not file.is_file():
        raise PolyNeXtError(f"{out} holds no sweep: give the `out` of one.")
    return Sweep(**json.loads(file.read_text()))


def differences(before: Sweep, now: Sweep) -> str:
    pairs = zip(asdict(before).items(), asdict(now).values(), strict=True)
    return ", ".join(f"{key} {old!r}, not {new!r}" for (key, old), new in pairs if old != new)


def run_sweep(
    sweep: Sweep,
    trials: Sequence[Trial],
    out: Path,
    processes: int = 1,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> None:
    """Trains all runs that have no result yet, so many at a time, and tells of each when it is over."""
    training_images(sweep.baseline(FAMILIES[0]).data)  # missing data is one mistake, not one of every run
    open_sweep(out, sweep)
    pending = [trial for trial in trials if not trial.finished(out)]
    for trial in pending:  # an error of another time is not this one's
        (trial.folder(out) / "result.json").unlink(missing_ok=True)
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
        except Exception as error:  # whatever it is, it is one row's and the others go on
            write_result(trial, out, {"error": f"{type(error).__name__}: {error}"})


def train_trial(sweep: Sweep, trial: Trial, out: Path) -> dict[str, Any]:
    start = time.monotonic()
    config = replace(sweep.config(trial.name), seed=trial.seed)
    folder = RunFolder(trial.folder(out))
    train(config, folder.path, resume=folder.states.is_dir(), quiet=True)
    last = [record for record in folder.records() if "test_accuracy" in record][-1]
    return {
        "accuracy": max(last["test_accuracy"], last.get("ema_test_accuracy", 0.0)),
        "steps": last["step"],
        "seconds": time.monotonic() - start,
    }


def write_result(trial: Trial, out: Path, result: dict[str, Any]) -> None:
    folder = trial.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "result.json", json.dumps(result).encode())
