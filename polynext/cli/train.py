"""`polynext train`."""

from polynext.cli.configured import ConfiguredCommand
from polynext.data import DATA_SETS
from polynext.recipes import RECIPES, recipe
from polynext.training import train

DESCRIPTION = f"""Train a network by a recipe: `polynext train [RECIPE] [OPTIONS]`.

RECIPE is one of {", ".join(RECIPES)}, or a YAML file that an earlier run wrote. Without one, cpolynext_nano learns the
embedded handwritten digits. Every field of the config below can be set. Several processes: `torchrun
--nproc-per-node N -m polynext train ...`.

Data sets (--data.name), and what they want at --data.root: {"; ".join(f"{n}, {d.what}" for n, d in DATA_SETS.items())};
timm:NAME, anything that timm's create_dataset reads."""


training = ConfiguredCommand(
    name="polynext train",
    description=DESCRIPTION,
    recipe=recipe,
    default="digits",
    train=train,
)
