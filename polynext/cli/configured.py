"""Commands with a config, from a recipe, a YAML file or an interrupted run, and an option for each of its fields."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import tyro

from polynext.cli.commands import readable_help, renamed, with_options
from polynext.config import LoopConfig, read_config, to_yaml
from polynext.errors import PolyNeXtError
from polynext.extras import require

if TYPE_CHECKING:  # imported when a command runs: --help needs no torch
    from polynext.distributed import Processes
    from polynext.training import Task

AnyLoopConfig = TypeVar("AnyLoopConfig", bound=LoopConfig)

# As commands without a config call them.
SHORT = {"--data": "--data.name", "--root": "--data.root", "--workers": "--data.workers"}
SHORT_HELP = "--data, --root and --workers are short for --data.name, --data.root and --data.workers."


@dataclass(frozen=True, kw_only=True)
class Options(Generic[AnyLoopConfig]):
    """How to run, besides the config.

    Attributes:
        config: the config of the run.
        out: folder of the run; runs/RECIPE-TIME by default.
        resume: folder of an interrupted run to resume.
        dry_run: check all phases of the run in a few minutes, and estimate its memory, time and disk space.
        profile: print the time that each part of a step took.
        print_config: print the resolved config as YAML and stop.
    """

    config: Annotated[AnyLoopConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    resume: Path | None = None
    dry_run: bool = False
    profile: bool = False
    print_config: bool = False


@dataclass(frozen=True, kw_only=True)
class ConfiguredCommand(Generic[AnyLoopConfig]):
    """A command that trains.

    Attributes:
        name: its words on the command line.
        description: its description in --help.
        recipe: the function from a recipe's name to its config.
        default: the name of the default recipe.
        prefix: prefix of the run's folder.
        task: the task of a config and its processes.
        adapt: the function from a config with options and the config before to the one that is run.
    """

    name: str
    description: str
    recipe: Callable[[str], AnyLoopConfig]
    default: str
    prefix: str = ""
    task: Callable[[Any, "Processes"], "Task"]
    adapt: Callable[[Any, Any], Any] = lambda config, before: config

    def run(self, arguments: list[str]) -> int:
        """Trains, and returns the exit status."""
        require("train")
        named = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
        before = self.starting_config(named, resumed_folder(arguments))
        kind: Any = Options[type(before)]  # type: ignore[misc]
        options = tyro.cli(
            kind,
            args=renamed(arguments, SHORT),
            default=Options(config=before),
            prog=self.name,
            description=f"{self.description}\n\n{SHORT_HELP}",
            config=readable_help(),
        )
        config = self.adapt(options.config, before)
        if options.resume and options.out:
            raise PolyNeXtError(f"both --resume {options.resume} and --out were given: a resumed run keeps its folder.")
        if options.print_config:
            print(to_yaml(config), end="")
            return 0
        from polynext.training import Interrupted, run

        title = f"{self.prefix}{Path(named or self.default).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            out = options.resume or options.out or Path("runs") / title
            if options.dry_run:
                return self.dry_run(config, out)
            run(partial(self.task, config), config, out, options.resume is not None, options.profile)
        except Interrupted as stop:
            print(f"{self.name}: {stop}", file=sys.stderr)
            return stop.exit_status
        return 0

    def dry_run(self, config: Any, out: Path) -> int:
        from polynext.training import dry_run
        from polynext.training.stopping import termination_as_interrupt

        with termination_as_interrupt():  # so that no file remains
            report = dry_run(self.task, config, out, show=partial(print, flush=True))
        if int(os.environ.get("RANK", 0)) == 0:
            print(with_options(report.conclusion()))
        return 1 if report.problems else 0

    def starting_config(self, named: str | None, resumed: Path | None) -> AnyLoopConfig:
        """The config before the options are applied."""
        kind = type(self.recipe(self.default))
        if resumed is not None:
            if named is not None:
                raise PolyNeXtError(
                    f"both the recipe {named!r} and --resume {resumed} were given: a resumed run has its own config."
                )
            return read_config(resumed / "config.yaml", kind)
        if named is not None and named.endswith((".yaml", ".yml")):
            return read_config(Path(named), kind)
        return self.recipe(named or self.default)


def resumed_folder(arguments: list[str]) -> Path | None:
    """The folder of --resume, whose config has the defaults of the other options."""
    for i, argument in enumerate(arguments):
        if argument == "--resume" and i + 1 < len(arguments):
            return Path(arguments[i + 1])
        if argument.startswith("--resume="):
            return Path(argument.removeprefix("--resume="))
    return None
