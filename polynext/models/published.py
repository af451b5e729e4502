"""Trained weights: the authors' published files, the conversion of their names to ours, and the shipped files."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from polynext.errors import PolyNeXtError, preview

HUB = "JJWCactus/PolyNeXt"

StateDict = dict[str, Tensor]

# Models with published weights, by timm's name with its tag, and their files in the HUB repository.
PUBLISHED = {
    "cpolynext_tiny.in1k": "cpolynext_t.pt",
    "cpolynext_small.in1k": "cpolynext_s.pt",
    "cpolynext_base.in1k": "cpolynext_b.pt",
    "cpolynext_large.in1k": "cpolynext_l.pt",
    "apolynext_tiny.in1k": "apolynext_t.pt",
    "apolynext_small.in1k": "apolynext_s.pt",
    "apolynext_base.in1k": "apolynext_b.pt",
    "apolynext_large.in1k": "apolynext_l.pt",
    "cpolynext_tiny_bn.in1k": "cpolynext_t_bn.pt",
    "apolynext_tiny_bn.in1k": "apolynext_t_bn.pt",
    "cpolynext_small_bn.in1k": "cpolynext_s_bn.pt",
    "cpolynext_lowres.cifar10": "cpolynext_lr_cifar10.pt",
    "cpolynext_lowres.svhn": "cpolynext_lr_svhn.pt",
    "cpolynext_lowres.tiny_imagenet": "cpolynext_lr_tiny_imagenet.pt",
}

# Models whose trained weights are shipped with the package, in files of these names, with their short names.
WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = {
    "cpolynext_mnist_bn.mnist": "mnist",
    "cpolynext_nano_bn.digits": "digits",
    "cpolynext_cipher_bn.cifar10": "cifar10",
    "cpolynext_cipher_deep_bn.cifar10": "cifar10-deep",
}


def shipped_weights(name: str) -> Path | None:
    """The shipped file for a model's name, with or without a tag, or for a short name; None if there is none."""
    tags = [tagged for tagged, short in SHIPPED.items() if name in (tagged, tagged.split(".")[0], short)]
    return WEIGHTS / f"{tags[0]}.safetensors" if tags else None


# The published files number the operators of a cell: six for each stack with PolyConv, three with PolyAttention.
CONV_STACK = {
    "0": "mixer.w_in",
    "1": "mixer.k_coarse",
    "2": "mixer.k_fine",
    "3.0": "mixer.k",
    "3.1": "mixer.w_out",
    "3.2": "mixer.norm",
    "4": "mlp.w_ab",
    "5.0": "mlp.norm",
    "5.1": "mlp.w_o",
}
ATTENTION_STACK = {
    "0.0": "mixer.norm",
    "0.1": "mixer",
    "0.1.qkv": "mixer.w_qkv",
    "0.1.q_conv": "mixer.k_q",
    "0.1.k_conv": "mixer.k_k",
    "0.1.v_conv": "mixer.k_v",
    "0.1.norm": "mixer.row_norm",
    "0.1.final_conv": "mixer.k",
    "0.1.norm2": "mixer.out_norm",
    "0.1.proj": "mixer.w_out",
    "1": "mlp.w_ab",
    "2.0": "mlp.norm",
    "2.1": "mlp.w_o",
}
CELL = {
    "skip_weight": "scale.logits",
    "preprocess0.scale": "skip.s0",
    "preprocess1.scale": "skip.s1",
}
OUTSIDE = {"stem": "stem", "norm": "norm", "proj": "head.w_ab", "head.3": "head.fc"}
LEAVES = {"scale": "scale.logits", "running_denom": "running_row_sum"}


def is_published(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a state dict or training checkpoint is in the authors' layout."""
    return "cells.0.skip_weight" in published_weights(checkpoint)


def published_weights(checkpoint: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The state dict in a checkpoint of the authors; the EMA weights if it has them."""
    inner = checkpoint.get("ema_state_dict") or checkpoint.get("state_dict")
    weights = inner if isinstance(inner, Mapping) else checkpoint
    tensors = {str(key): value for key, value in weights.items() if isinstance(value, Tensor) and key != "n_averaged"}
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", key): value for key, value in tensors.items()}


def rename_published(checkpoint: Mapping[str, Any]) -> StateDict:
    """A published checkpoint with our names and shapes. Unknown entries are an error."""
    weights = published_weights(checkpoint)
    scales = {k: v for k, v in weights.items() if k.endswith(".preprocess0.scale")}
    widths = {int(key.split(".")[1]): scale.numel() for key, scale in scales.items()}
    places = cell_places(widths)
    renamed: StateDict = {}
    unknown = []
    for key, value in weights.items():
        if key == "head.2.p" or key.endswith(".num_batches_tracked"):
            continue  # a dropout rate and counters, which affect no result
        name = our_name(key, places, weights)
        if name is None:
            unknown.append(key)
        else:
            renamed[name] = without_unit_axes(name, value)
    if unknown:
        raise PolyNeXtError(
            f"the checkpoint has entries that no PolyNeXt has: {preview(unknown)}. Give one of the authors' files."
        )
    return renamed


def cell_places(widths: dict[int, int]) -> dict[int, str]:
    """From a cell's number in the whole network to its place in a stage. A new width starts a stage."""
    places = {}
    stage = position = 0
    for number in sorted(widths):
        if number > 0 and widths[number] != widths.get(number - 1):
            stage, position = stage + 1, 0
        places[number] = f"stages.{stage}.cells.{position}"
        position += 1
    return places


def our_name(key: str, places: dict[int, str], weights: Mapping[str, Tensor]) -> str | None:
    owner, _, leaf = key.rpartition(".")
    leaf = LEAVES.get(leaf, leaf)
    if owner in OUTSIDE:
        return f"{OUTSIDE[owner]}.{leaf}"
    if match := re.fullmatch(r"reductions\.(\d+)(\.[01])?", owner):
        path = "newer" if int(match[1]) % 2 else "older"
        return f"stages.{int(match[1]) // 2 + 1}.downsampling.{path}{match[2] or ''}.{leaf}"
    match = re.fullmatch(r"cells\.(\d+)\.(.+)", key)
    if match is None or int(match[1]) not in places:
        return None
    cell, inside = places[int(match[1])], match[2]
    if inside in CELL:
        return f"{cell}.{CELL[inside]}"
    if inside.startswith("postprocess."):
        return f"{cell}.norm.{leaf}"
    match = re.fullmatch(r"ops\.(\d+)((?:\..+)?)\.\w+", inside)
    if match is None:
        return None
    attention = f"{key.split('.ops.')[0]}.ops.0.1.qkv.weight" in weights
    stack, operators = (ATTENTION_STACK, 3) if attention else (CONV_STACK, 6)
    part = stack.get(f"{int(match[1]) % operators}{match[2]}")
    return part and f"{cell}.stacks.{int(match[1]) // operators}.{part}.{leaf}"


def without_unit_axes(name: str, value: Tensor) -> Tensor:
    """Removes the axes of length 1 that published scales and statistics have for broadcasting."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("gamma_hw", "running_mean", "running_var"):  # (1, 1, H, W)
        return value.flatten(0, -2) if value.ndim > 2 else value
    if leaf in ("gamma", "running_row_sum"):  # (1, heads, queries, 1)
        return value.flatten(0, 1).flatten(1) if value.ndim > 2 else value
    return value.flatten() if leaf in ("s0", "s1", "logits") else value  # (1, C, 1, 1)


def check_same_entries(given: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raises an error that lists the differences unless both have the same names, shapes and kinds of numbers.

    Numbers must be finite.
    """
    problems = []
    if missing := sorted(expected.keys() - given.keys()):
        problems.append(f"missing {preview(missing)}")
    if unexpected := sorted(given.keys() - expected.keys()):
        problems.append(f"unexpected {preview(unexpected)}")
    misshapen = [
        f"{key} {tuple(given[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & given.keys())
        if given[key].shape != expected[key].shape
    ]
    if misshapen:
        problems.append(f"misshapen {preview(misshapen)}")
    if other_kind := [
        f"{key} {given[key].dtype} instead of {expected[key].dtype}"
        for key in sorted(expected.keys() & given.keys())
        if given[key].is_floating_point() != expected[key].is_floating_point()
    ]:
        problems.append(f"of another type {preview(other_kind)}")
    if unusable := [key for key in sorted(given) if not is_finite(given[key])]:
        problems.append(f"not finite {preview(unusable)}")
    if problems:
        raise PolyNeXtError(
            f"the weights do not fit {what}: {'; '.join(problems)}; "
            "load them into the model they were made for, with its classes, channels and image size."
        )


def is_finite(values: Tensor) -> bool:
    return values.is_meta or not values.is_floating_point() or bool(values.float().isfinite().all())


def adapt_checkpoint(checkpoint: Mapping[str, Any], model: nn.Module) -> StateDict:
    """The weights that timm loads for `pretrained=True`: in our layout, checked against the model.

    The stem and the classifier are not checked: timm adapts them to other channels and classes.
    """
    weights = rename_published(checkpoint) if is_published(checkpoint) else dict(checkpoint)

    def body(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {k: v for k, v in entries.items() if not k.startswith(("stem.", "head.fc."))}

    check_same_entries(body(weights), body(model.state_dict()), "this model")
    return weights
