"""Weights in files: reading them and their metadata, and loading them strictly."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from polynext.errors import PolyNeXtError, preview
from polynext.files import reading
from polynext.models.polynext import CONFIGS
from polynext.models.published import PUBLISHED, StateDict, check_same_entries, is_published, rename_published


def from_published(checkpoint: Mapping[str, Any]) -> StateDict:
    """Converts a published state dict to our layout. Missing, unexpected or misshapen entries are an error.

    A training checkpoint gives its EMA weights.
    """
    if not is_published(checkpoint):
        raise PolyNeXtError(
            f"this is not a published PolyNeXt checkpoint, it has {preview(map(str, checkpoint))}: "
            "give one of the authors' files, or a state dict read from one."
        )
    weights = rename_published(checkpoint)
    name = identify(weights)
    check_same_entries(weights, model_for(name, weights).state_dict(), name)
    return weights


def identify(weights: StateDict) -> str:
    """The name of the model that published weights belong to, which the authors' files do not contain."""
    if "stem.weight" not in weights or weights["stem.weight"].ndim != 4:
        raise PolyNeXtError(
            f"these are not weights of a PolyNeXt, they have {preview(weights)}: expected a stem.weight with four axes."
        )
    width, _, kernel, _ = weights["stem.weight"].shape
    numbers = [int(m[1]) for m in (re.match(r"stages\.(\d+)\.", key) for key in weights) if m]
    stages = 1 + max(numbers, default=-1)
    attention = any(".w_qkv." in key for key in weights)
    suffix = "_bn" if any(key.endswith(".gamma_c") for key in weights) else ""
    for name in dict.fromkeys(tagged.split(".")[0].removesuffix("_bn") for tagged in PUBLISHED):
        config = CONFIGS[name]
        looks = (config.stages[0].width, config.stem_kernel, len(config.stages))
        if looks == (width, kernel, stages) and attention == (config.stages[-1].mixer == "attention"):
            return name + suffix
    raise PolyNeXtError(
        f"no published PolyNeXt has a {kernel}x{kernel} stem of width {width} and {stages} stages: "
        "give one of the authors' files."
    )


def model_for(name: str, weights: StateDict, device: torch.device | str = "meta") -> nn.Module:
    """The named model, untrained, with the channels, classes and image size of the weights."""
    options: dict[str, Any] = {}
    if "stem.weight" in weights:
        options["in_chans"] = weights["stem.weight"].shape[1]
    if "head.fc.weight" in weights:
        options["num_classes"] = len(weights["head.fc.weight"])
    positions = weights.get("stages.0.cells.0.norm.gamma_hw")
    if positions is not None:
        stride = CONFIGS[name.removesuffix("_bn")].stem_stride
        options["img_size"] = tuple(stride * n for n in positions.shape)
    return timm.create_model(name, device=device, **options)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a .safetensors, .pt or .pth file. Only tensors and plain containers are unpickled."""
    path = Path(path)
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give the path of a .safetensors or .pt checkpoint.")
    with reading(
        f"{path} cannot be read as a checkpoint: it is truncated or has another format. Download or save it again."
    ):
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(checkpoint, dict):
        raise PolyNeXtError(f"{path} contains a {type(checkpoint).__name__}: expected a state dict.")
    return checkpoint


# Keys under which training scripts save a state dict, averaged weights first, and prefixes that wrappers add to names.
CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.")


def unwrap(checkpoint: Mapping[str, Any], source: object = "the checkpoint") -> StateDict:
    """The network's state dict in a checkpoint of a training script.

    Removes the containers and prefixes of DistributedDataParallel, `torch.compile`, timm, Lightning and others. In a
    Lightning checkpoint, the network is the submodule with the most entries.
    """
    inner = next((checkpoint[key] for key in CONTAINERS if isinstance(checkpoint.get(key), Mapping)), checkpoint)
    weights = {str(key): value for key, value in inner.items() if isinstance(value, Tensor)}
    if "pytorch-lightning_version" in checkpoint and weights:
        most, _ = Counter(key.partition(".")[0] for key in weights).most_common(1)[0]
        weights = {key.removeprefix(f"{most}."): value for key, value in weights.items() if key.startswith(f"{most}.")}
    elif others := [str(key) for key, value in inner.items() if not isinstance(value, Tensor)]:
        raise PolyNeXtError(
            f"{source} has {preview(others)} besides weights: give a state dict, or a dictionary with one under "
            f"{' or '.join(map(repr, CONTAINERS))}."
        )
    while prefix := next((p for p in WRAPPERS if weights and all(key.startswith(p) for key in weights)), None):
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights


def read_weights(path: str | Path) -> StateDict:
    """The weights in a file, in our layout. The file may be ours, the authors', or a training script's."""
    checkpoint = read_checkpoint(path)
    return from_published(checkpoint) if is_published(checkpoint) else unwrap(checkpoint, path)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Loads the weights in a file into a model, strictly."""
    weights = read_weights(path)
    check_same_entries(weights, model.state_dict(), type(model).__name__)
    model.load_state_dict(weights)


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a .safetensors file. In files of this package: the model, its classes and its training."""
    path = Path(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return {}
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except SafetensorError:  # reading its weights will raise the error
        return {}


def stored_classes(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names of the classes in a file's metadata, if it has them."""
    if "classes" not in metadata:
        return None
    with reading("the metadata of the weights has damaged class names: expected a JSON list of strings."):
        names = json.loads(metadata["classes"])
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError(names)
        return tuple(names)
