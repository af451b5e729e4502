"""Commands that run by a config: a recipe's, a YAML file's or an interrupted run's, with options for its fields."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from polynext.errors import PolyNeXtError
from polynext.training import Interrupted, from_yaml, to_yaml

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True)
class Options(Generic[Config]):
    """How to run, beside what to run.

    Attributes:
        config: every field of the run.
        out: folder of the run; runs/RECIPE-TIME by default.
        resume: folder of an interrupted run, to go on with.
        print_config: show the resolved config as YAML and stop.
    """

    config: Annotated[Config, tyro.conf.arg(name="")]
    out: Path | None = None
    resume: Path | None = None
    print_config: bool = False


@dataclass(frozen=True, kw_only=True)
class ConfiguredCommand(Generic[Config]):
    """A command that trains by a config.

    Attributes:
        name: as it is called.
        description: for --help.
        recipe: the config of a name.
        default: the recipe if none is named.
        prefix: of a run's folder.
        options: what it takes.
        start: trains, in a folder.
    """

    name: str
    description: str
    recipe: Callable[[str], Config]
    default: str
    prefix: str = ""
    options: Any
    start: Callable[[Any, Path], object]

    def run(self, arguments: list[str]) -> int:
        """Trains, and returns the exit status."""
        named = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
        default = self.options(config=self.starting_config(named, resumed_folder(arguments)))
        options = tyro.cli(self.options, args=arguments, default=default, prog=self.name, description=self.description)
        if options.resume and options.out:
            raise PolyNeXtError(f"both --resume {options.resume} and --out were given: a resumed run keeps its folder.")
        if options.print_config:
            print(to_yaml(options.config), end="")
            return 0
        title = f"{self.prefix}{Path(named or self.default).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            self.start(options, options.resume or options.out or Path("runs") / title)
        except Interrupted as stop:
            print(f"{self.name}: {stop}", file=sys.stderr)
            return stop.exit_status
        return 0

    def starting_config(self, named: str | None, resumed: Path | None) -> Config:
        """What the options change."""
        if resumed is not None:
            if named is not None:
                raise PolyNeXtError(
                    f"both the recipe {named!r} and --resume {resumed} were given: a resumed run has its own config."
                )
            return self.read_config(resumed / "config.yaml")
        if named is not None and named.endswith((".yaml", ".yml")):
            return self.read_config(Path(named))
        return self.recipe(named or self.default)

    def read_config(self, path: Path) -> Config:
        if not path.is_file():
            raise PolyNeXtError(
                f"there is no file {path}: give a config.yaml that a run wrote, or its folder to --resume."
            )
        return from_yaml(path.read_text(), str(path), type(self.recipe(self.default)))


def resumed_folder(arguments: list[str]) -> Path | None:
    """What --resume names; its config has to be known before the other options can be read."""
    for i, argument in enumerate(arguments):
        if argument == "--resume" and i + 1 < len(arguments):
            return Path(arguments[i + 1])
        if argument.startswith("--resume="):
            return Path(argument.removeprefix("--resume="))
    return None
