"""What has to be run for a table: commands of this package, each in a process of its own.

    OUT/results/NAME.json         what an experiment found; one with a result, by the same commands, is not run again
    OUT/results/NAME.log          what it said
    OUT/results/experiments.json  the commands of all results

An experiment that was interrupted starts its commands again, which go on where they were.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from polynext.files import write_atomically

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """Commands, of which the last leaves a JSON.

    Attributes:
        name: of its files.
        commands: arguments of `polynext`; RESULT among them is the file to write.
        prints: whether the result is what the last command prints.
    """

    name: str
    commands: tuple[Arguments, ...]
    prints: bool = False

    @property
    def fetches(self) -> bool:
        """Whether it may need published weights from the hub."""
        return any("--pretrained" in command or command[:2] == ("segment", "train") for command in self.commands)


PROGRAM = (sys.executable, "-m", "polynext")
RESULT = "RESULT"
SECONDS_FOR_THE_HUB = 10


class Results:
    """What experiments have found, in a folder, and the reasons of those that `failed` since this was made."""

    def __init__(self, out: Path):
        self.folder = out / "results"
        self.environment = dict(os.environ)
        self.failed: dict[Experiment, str] = {}

    def file(self, experiment: Experiment, ending: str = "json") -> Path:
        return self.folder / f"{experiment.name}.{ending}"

    def commands(self) -> dict[str, Any]:
        file = self.folder / "experiments.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def read(self, experiment: Experiment) -> dict[str, Any] | None:
        """What an experiment found, if it was run, by the same commands."""
        known = self.commands().get(experiment.name) == [list(command) for command in experiment.commands]
        return json.loads(self.file(experiment).read_text()) if known and self.file(experiment).is_file() else None

    def arguments(self, experiment: Experiment) -> list[list[str]]:
        """The commands as they have to be run now: trainings that were begun go on."""
        file = str(self.file(experiment))
        return [[file if a == RESULT else a for a in resumed(command)] for command in experiment.commands]

    def find_hub(self) -> bool:
        """Looks for the Hugging Face hub, so that without it no command waits and tries again for every file."""
        if "HF_HUB_OFFLINE" not in self.environment and not hub_answers():
            self.environment["HF_HUB_OFFLINE"] = "1"
            return False
        return True

    def run(self, experiment: Experiment) -> str | None:
        """Runs an experiment, and returns what went wrong if something did."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file(experiment).unlink(missing_ok=True)
        printed = b""
        with self.file(experiment, "log").open("wb") as log:
            for number, arguments in enumerate(self.arguments(experiment), 1):
                kept = experiment.prints and number == len(experiment.commands)
                status, printed = run_program(arguments, log, kept, self.environment)
                if status:
                    return last_sentence(self.file(experiment, "log")) or f"it ended with status {status}"
        if experiment.prints:
            write_atomically(self.file(experiment), printed)
        commands = self.commands() | {experiment.name: experiment.commands}
        write_atomically(self.folder / "experiments.json", json.dumps(commands, indent=2).encode())
        return None


def run_program(arguments: list[str], log: BinaryIO, kept: bool, environment: dict[str, str]) -> tuple[int, bytes]:
    """Runs `polynext` and returns its status and, if that is kept, what it prints; interrupted, it may still save."""
    output = subprocess.PIPE if kept else log
    with subprocess.Popen([*PROGRAM, *arguments], stdout=output, stderr=log, env=environment) as program:
        try:
            printed, _ = program.communicate()
        except KeyboardInterrupt:
            program.terminate()
            program.wait()
            raise
    return program.returncode, printed or b""


def hub_answers() -> bool:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS_FOR_THE_HUB)
    except Exception:  # whatever it is, weights will not come from there
        return False
    return True


def resumed(command: Sequence[str]) -> list[str]:
    """A training's command, or the one that goes on with it if it was begun."""
    training = command[:1] == ("train",) or command[:2] == ("segment", "train")
    if training and (Path(command[command.index("--out") + 1]) / "states").is_dir():
        return [*command[: command.index("train") + 1], "--resume", command[command.index("--out") + 1]]
    return list(command)


def last_sentence(log: Path) -> str:
    """What a command says in the end, without its name; the last line of all if it says nothing."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    said = [match[1] for line in lines if (match := re.match(r"polynext(?: \w+)+: (.+)", line))]
    return (said or lines or [""])[-1]
