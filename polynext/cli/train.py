"""`polynext train`."""

from dataclasses import dataclass
from pathlib import Path

from polynext.cli.configured import ConfiguredCommand, Options
from polynext.data import DATA_SETS
from polynext.recipes import RECIPES, recipe
from polynext.training import TrainConfig, train

DESCRIPTION = f"""Train a network by a recipe: `polynext train [RECIPE] [OPTIONS]`.

RECIPE is one of {", ".join(RECIPES)}, or a YAML file that an earlier run wrote. Without one, cpolynext_nano learns the
embedded handwritten digits. Every field of the config below can be set. Several processes: `torchrun
--nproc-per-node N -m polynext train ...`.

Data sets (--data.name), and what they want at --data.root: {"; ".join(f"{n}, {d.what}" for n, d in DATA_SETS.items())};
timm:NAME, anything that timm's create_dataset reads."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options[TrainConfig]):
    """How to run, beside what to run.

    Attributes:
        profile: tell in the end where the time went.
    """

    profile: bool = False


def start(options: TrainOptions, out: Path) -> None:
    train(options.config, out, resume=options.resume is not None, profile=options.profile)


training = ConfiguredCommand(
    name="polynext train",
    description=DESCRIPTION,
    recipe=recipe,
    default="digits",
    options=TrainOptions,
    start=start,
)
