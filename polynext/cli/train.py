"""`polynext train`."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from polynext.errors import PolyNeXtError
from polynext.recipes import RECIPES, recipe
from polynext.training import Interrupted, TrainConfig, from_yaml, to_yaml, train

DESCRIPTION = f"""Train a network by a recipe: `polynext train [RECIPE] [OPTIONS]`.

RECIPE is one of {", ".join(RECIPES)}, or a YAML file that an earlier run wrote. Without one, cpolynext_nano learns the
embedded handwritten digits. Every field of the config below can be set. Several processes: `torchrun
--nproc-per-node N -m polynext train ...`."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, beside what to run.

    Attributes:
        config: every field of the run.
        out: folder of the run; runs/RECIPE-TIME by default.
        resume: folder of an interrupted run, to go on with.
        print_config: show the resolved config as YAML and stop.
        profile: tell in the end where the time went.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    resume: Path | None = None
    print_config: bool = False
    profile: bool = False


def run(arguments: list[str]) -> int:
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    config = starting_config(name, arguments)
    options = tyro.cli(
        Options, args=arguments, default=Options(config=config), prog="polynext train", description=DESCRIPTION
    )
    if options.print_config:
        print(to_yaml(options.config), end="")
        return 0
    title = Path(name).stem if name else "digits"
    out = options.resume or options.out or Path("runs") / f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        train(options.config, out, resume=options.resume is not None, profile=options.profile)
    except Interrupted as stop:
        print(f"polynext train: {stop}", file=sys.stderr)
        return stop.exit_status
    return 0


def starting_config(name: str | None, arguments: list[str]) -> TrainConfig:
    """What the options change: a resumed run's own config, a YAML file's, or a recipe's."""
    if "--resume" in arguments[:-1]:
        folder = Path(arguments[arguments.index("--resume") + 1])
        if name is not None:
            raise PolyNeXtError(
                f"both the recipe {name!r} and --resume {folder} were given: a resumed run has its own config."
            )
        return read_yaml(folder / "config.yaml")
    if name is not None and name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name))
    return recipe(name or "digits")


def read_yaml(path: Path) -> TrainConfig:
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give a config.yaml that a run wrote, or its folder to --resume.")
    return from_yaml(path.read_text(), str(path))
