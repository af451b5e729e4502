"""Models by name."""

from typing import Any

import timm
from torch import nn

from polynext.errors import PolyNeXtError, suggest
from polynext.models.polynext import CONFIGS
from polynext.models.published import PUBLISHED
from polynext.models.registry import KINDS


def list_models(fully_polynomial: bool | None = None) -> list[str]:
    """The names of our models; only, or without, the fully polynomial ones if that is given.

    A fully polynomial model's inference is a polynomial of the image.
    """
    return [name for name, kind in KINDS.items() if fully_polynomial in (None, kind == "fully polynomial")]


def is_polynext(name: str) -> bool:
    """Whether a name, with a tag or without, is that of a PolyNeXt."""
    return name.split(".")[0].removesuffix("_bn") in CONFIGS


def check_model(name: str) -> None:
    """Raises unless there is a model of this name, ours or timm's, with weights of its tag if it has one."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        hint = suggest(architecture, [*list_models(), *timm.list_models()], "`polynext models` lists ours.")
        raise PolyNeXtError(f"there is no model named {name!r}: {hint}")
    tagged = timm.models.get_arch_pretrained_cfgs(architecture)
    if tag and name not in tagged:
        have = [known for known in tagged if "." in known]
        hint = f"take {' or '.join(have)}, or leave the tag out." if have else "leave the tag out."
        raise PolyNeXtError(f"{architecture} has no weights tagged {tag!r}: {hint}")


def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
    """`timm.create_model` for our models and timm's, with a helpful answer where there is no such model or weights."""
    check_model(name)
    elsewhere = {"pretrained_cfg", "pretrained_cfg_overlay"} & options.keys()
    if pretrained and not elsewhere and not timm.models.is_model_pretrained(name):
        raise PolyNeXtError(
            f"there are no published weights of {name}: leave pretrained=True out and train it, "
            f"or take one that has them: {', '.join(PUBLISHED)}."
        )
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except OSError as error:
        if not pretrained:
            raise
        raise PolyNeXtError(
            f"the weights of {name} cannot be fetched ({type(error).__name__}): check the connection to the Hugging "
            "Face hub, or take a file that you have: --checkpoint of a command, polynext.load_weights in Python."
        ) from error
