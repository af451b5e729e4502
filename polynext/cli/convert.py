"""`polynext convert`."""

from pathlib import Path
from typing import Annotated

import tyro
from safetensors.torch import save_file

from polynext.errors import PolyNeXtError
from polynext.models.checkpoints import from_published, identify, model_for, read_checkpoint
from polynext.models.costs import count_parameters
from polynext.runs import published_tag


def main(source: Annotated[Path, tyro.conf.Positional], target: Annotated[Path, tyro.conf.Positional]) -> None:
    """Turn a checkpoint that the authors published into a safetensors file in our layout.

    Every entry is checked: a missing, unexpected or misshapen one is an error. Of a training checkpoint the EMA
    weights are taken.

    Args:
        source: the published file (.pt or .pth).
        target: the .safetensors file to write.
    """
    if target.suffix != ".safetensors":
        raise PolyNeXtError(f"the target is {target}: give a name that ends in .safetensors.")
    if not target.parent.is_dir():
        raise PolyNeXtError(f"there is no folder {target.parent}: make it first, or write elsewhere.")
    weights = from_published(read_checkpoint(source))
    name = identify(weights)
    about = {"model": name} | ({"tag": tag} if (tag := published_tag(name, source)) else {})
    save_file({key: value.contiguous() for key, value in weights.items()}, target, metadata=about)
    print(f"{target}: {name}, {count_parameters(model_for(name, weights)):,} parameters")
