"""Experiments: function calls, each in a fresh process, with stored results.

    OUT/results/NAME.json  an experiment's result, and the call behind it
    OUT/results/NAME.log   its output

An experiment with a result of the same call is not repeated. An interrupted one resumes from what its function stored.
"""

import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polynext.errors import PolyNeXtError
from polynext.files import read_json, write_atomically
from polynext.memory import keep_freed_memory
from polynext.threads import idle_threads_give_way

OFFLINE = "HF_HUB_OFFLINE"
HUB_TIMEOUT = 10  # seconds


@dataclass(frozen=True)
class Experiment:
    """A function call that returns a record for JSON.

    Attributes:
        name: name of its files.
        function: a function that can be imported.
        arguments: its keyword arguments.
        fetches: whether it may download published weights.
    """

    name: str
    function: Callable[..., dict[str, Any]]
    arguments: dict[str, Any]
    fetches: bool = False

    @property
    def call(self) -> str:
        """The call as Python code."""
        return f"{self.function.__name__}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


class Results:
    """The results of experiments in a folder. `failed` has the errors of those that failed in this process."""

    def __init__(self, out: Path):
        self.folder = out / "results"
        self.failed: dict[str, str] = {}
        self.offline = False

    def file(self, experiment: Experiment, ending: str = "json") -> Path:
        """The path of an experiment's result or log."""
        return self.folder / f"{experiment.name}.{ending}"

    def read(self, experiment: Experiment) -> dict[str, Any] | None:
        """The result of an experiment; None if there is none of the same call."""
        file = self.file(experiment)
        result = read_json(file) if file.is_file() else {}
        return result if result.get("call") == experiment.call else None

    def find_hub(self) -> bool:
        """Whether the Hugging Face hub can be reached. If not, experiments do not wait for it."""
        self.offline = OFFLINE not in os.environ and not hub_answers()
        return not self.offline

    def run(self, experiment: Experiment) -> str | None:
        """Runs an experiment in a fresh process and stores its result. Returns an error message if it failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file(experiment).unlink(missing_ok=True)
        log = self.file(experiment, "log")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, redirect_output, (log,)) as pool, hub_mode(self.offline):
            try:
                with idle_threads_give_way():
                    process_id = pool.submit(os.getpid).result()
            except BrokenProcessPool as error:
                raise PolyNeXtError(
                    f"a process could not start (see {log}): in a script, put the call of reproduce under "
                    '`if __name__ == "__main__":`.'
                ) from error
            try:
                result, message = pool.submit(call, experiment.function, experiment.arguments).result()
            except BrokenProcessPool:
                return "its process died: there may be too little memory"
            except KeyboardInterrupt:
                os.kill(process_id, signal.SIGTERM)  # training saves its state first
                raise
        if message is None:
            write_atomically(self.file(experiment), json.dumps(result | {"call": experiment.call}, indent=2).encode())
        return message


def call(function: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Calls a function in an experiment's process. Returns its result and, if it failed, an error message."""
    try:
        return function(**arguments), None
    except PolyNeXtError as error:
        message = str(error)
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
    print(message)
    return {}, message


def redirect_output(log: Path) -> None:
    """Starts an experiment's process: all its output goes to a log."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    keep_freed_memory()


@contextmanager
def hub_mode(offline: bool) -> Iterator[None]:
    """Processes that start inside do not access the hub if it is offline."""
    if offline:
        os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if offline:
            del os.environ[OFFLINE]


def hub_answers() -> bool:
    """Whether the Hugging Face hub answers a request."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception:  # whatever the reason, weights cannot be fetched
        return False
    return True
