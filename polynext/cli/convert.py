"""`polynext convert`."""

from pathlib import Path
from typing import Annotated

import tyro

from polynext.errors import PolyNeXtError


def main(source: Annotated[Path, tyro.conf.Positional], target: Annotated[Path, tyro.conf.Positional]) -> None:
    """Convert a published checkpoint of the authors to a safetensors file in our layout.

    Missing, unexpected or misshapen entries are an error. A training checkpoint gives its EMA weights.

    Args:
        source: the published file (.pt or .pth).
        target: the .safetensors file to write.
    """
    from safetensors.torch import save_file

    from polynext.models.checkpoints import from_published, identify, model_for, read_checkpoint
    from polynext.models.costs import count_parameters
    from polynext.runs import published_tag

    if target.suffix != ".safetensors":
        raise PolyNeXtError(f"the target is {target}: give a name that ends in .safetensors.")
    if not target.parent.is_dir():
        raise PolyNeXtError(f"there is no folder {target.parent}: create it, or give another target.")
    weights = from_published(read_checkpoint(source))
    name = identify(weights)
    metadata = {"model": name} | ({"tag": tag} if (tag := published_tag(name, source)) else {})
    save_file({key: value.contiguous() for key, value in weights.items()}, target, metadata=metadata)
    print(f"{target}: {name}, {count_parameters(model_for(name, weights)):,} parameters")
