"""`polynext train`."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from polynext.cli.configured import ConfiguredCommand
from polynext.data import DATA_SETS
from polynext.recipes import RECIPES, recipe

if TYPE_CHECKING:
    from polynext.config import TrainConfig
    from polynext.distributed import Processes
    from polynext.training import Classification

DESCRIPTION = f"""Train a network by a recipe: `polynext train [RECIPE] [OPTIONS]`.

RECIPE is one of {", ".join(RECIPES)}, or the config.yaml of an earlier run; the default is digits. The options below
set the fields of its config. For several processes: `torchrun --nproc-per-node N -m polynext train ...`.

Data sets (--data.name) and their --data.root: {"; ".join(f"{n}: {d.what}" for n, d in DATA_SETS.items())};
timm:NAME: any data set that timm's create_dataset reads."""


def classification(config: "TrainConfig", group: "Processes") -> "Classification":
    from polynext.training import Classification

    return Classification(config, group)


def with_fitting_schedule(config: "TrainConfig", recipe: "TrainConfig") -> "TrainConfig":
    """If --epochs leaves no room for the recipe's warmup and cooldown, they shrink in proportion."""
    old = config.schedule
    changed = old != recipe.schedule or config.epochs == recipe.epochs
    if changed or not 1 <= config.epochs < old.warmup_epochs + old.cooldown_epochs:
        return config
    warmup, cooldown = (n * config.epochs // recipe.epochs for n in (old.warmup_epochs, old.cooldown_epochs))
    print(
        f"polynext train: for {config.epochs} of {recipe.epochs} epochs, the warmup is {warmup} and the cooldown "
        f"{cooldown} epochs instead of {old.warmup_epochs} and {old.cooldown_epochs}.",
        file=sys.stderr,
    )
    return replace(config, schedule=replace(old, warmup_epochs=warmup, cooldown_epochs=cooldown))


training = ConfiguredCommand(
    name="polynext train",
    description=DESCRIPTION,
    recipe=recipe,
    default="digits",
    task=classification,
    adapt=with_fitting_schedule,
)
