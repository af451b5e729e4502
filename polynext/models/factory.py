"""Creating models by name."""

from typing import Any

import timm
from torch import nn

from polynext.errors import PolyNeXtError, suggest
from polynext.models.polynext import CONFIGS
from polynext.models.published import PUBLISHED
from polynext.models.registry import KINDS


def list_models(fully_polynomial: bool | None = None) -> list[str]:
    """The names of the package's models.

    Args:
        fully_polynomial: True for only the models whose inference is a polynomial of the image, False for the others.
    """
    return [name for name, kind in KINDS.items() if fully_polynomial in (None, kind == "fully polynomial")]


def is_polynext(name: str) -> bool:
    """Whether a model's name, with or without a tag, is that of a PolyNeXt."""
    return name.split(".")[0].removesuffix("_bn") in CONFIGS


def check_model(name: str) -> None:
    """Raises an error if neither this package nor timm has the model, or the weights of its tag."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        hint = suggest(architecture, [*list_models(), *timm.list_models()], "see `polynext models`.")
        raise PolyNeXtError(f"there is no model named {name!r}: {hint}")
    tagged = timm.models.get_arch_pretrained_cfgs(architecture)
    if tag and name not in tagged:
        have = [known for known in tagged if "." in known]
        hint = f"use {' or '.join(have)}, or no tag." if have else "use no tag."
        raise PolyNeXtError(f"{architecture} has no weights tagged {tag!r}: {hint}")


def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
    """`timm.create_model` for the package's models and timm's, with messages for unknown models and missing weights."""
    check_model(name)
    elsewhere = {"pretrained_cfg", "pretrained_cfg_overlay"} & options.keys()
    if pretrained and not elsewhere and not timm.models.is_model_pretrained(name):
        raise PolyNeXtError(
            f"there are no published weights of {name}: create it without `pretrained` and train it, "
            f"or use one of {', '.join(PUBLISHED)}."
        )
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except OSError as error:
        if not pretrained:
            raise
        raise PolyNeXtError(
            f"the weights of {name} cannot be downloaded ({type(error).__name__}): check the connection to the Hugging "
            "Face Hub, or load a file by polynext.load_weights, or by --checkpoint on the command line."
        ) from error
