"""One function for each published run, which returns its config. `imagenet.py` has the main recipes of the paper.

`baselines.py` has those of the networks that the paper compares with, `frozen.py` the last step
before encrypted inference.
"""

from collections.abc import Callable
from functools import partial

from polynext.config import TrainConfig
from polynext.errors import PolyNeXtError, suggest
from polynext.recipes import baselines, imagenet, lowres, metaformer, small
from polynext.recipes.frozen import with_frozen_statistics

RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "digits": small.digits,
    "mnist": small.mnist,
    "mnist_frozen": small.mnist_frozen,
    "cifar10": small.cifar10,
    "cipher": small.cipher,
    "cipher_deep": small.cipher_deep,
    "cipher_deep_restart": small.cipher_deep_restart,
    **imagenet.RECIPES,
    **lowres.RECIPES,
    **metaformer.RECIPES,
    **baselines.RECIPES,
}
CIPHERS = ("cipher", "cipher_deep", "cipher_deep_restart")
FULLY_POLYNOMIAL = (*CIPHERS, *(name for name in RECIPES if name.endswith("_bn")))
RECIPES |= {
    f"{name}_frozen": partial(lambda base: with_frozen_statistics(recipe(base)), name) for name in FULLY_POLYNOMIAL
}


def recipe(name: str) -> TrainConfig:
    """The config of a run by its name."""
    if name not in RECIPES:
        hint = suggest(name, RECIPES, f"choose one of {', '.join(RECIPES)}, or give a YAML file.")
        raise PolyNeXtError(f"there is no recipe {name!r}: {hint}")
    return RECIPES[name]()


__all__ = ["RECIPES", "recipe"]
