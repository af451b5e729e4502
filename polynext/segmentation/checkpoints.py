"""The authors' published segmentation networks, converted from mmsegmentation's names to ours."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from torch import Tensor

from polynext.errors import PolyNeXtError, preview
from polynext.models.checkpoints import read_checkpoint
from polynext.models.published import HUB, StateDict, check_same_entries, rename_published
from polynext.segmentation.upernet import UPerNet

# Patterns of the owners of parameters in mmsegmentation, and our names.
PARTS = {
    r"backbone\.extra_norms\.(\d)": r"norms.\1",
    r"decode_head\.psp_modules\.(\d)\.1": r"head.pyramid.\1",
    r"decode_head\.bottleneck": "head.bottleneck",
    r"decode_head\.lateral_convs\.(\d)": r"head.lateral.\1",
    r"decode_head\.fpn_convs\.(\d)": r"head.smooth.\1",
    r"decode_head\.fpn_bottleneck": "head.merge",
    r"decode_head\.conv_seg": "head.classifier",
    r"auxiliary_head\.convs\.0": "auxiliary.conv",
    r"auxiliary_head\.conv_seg": "auxiliary.classifier",
}
# Parts of the backbone's classifier, which segmentation does not use.
UNUSED = ("norm.", "proj.", "head.")

# Recipes with published weights, and their files.
PUBLISHED = {"ade20k": "uper_cpolynexts.pth", "ade20k_apolynext": "uper_apolynexts.pth"}


def fetch_segmentation_weights(recipe: str) -> Path:
    """The authors' file for a recipe's network, from the Hugging Face Hub or its cache."""
    if recipe not in PUBLISHED:
        raise PolyNeXtError(f"there are no published weights of {recipe!r}: choose {' or '.join(PUBLISHED)}.")
    try:
        return Path(hf_hub_download(HUB, PUBLISHED[recipe]))
    except OSError as error:
        raise PolyNeXtError(
            f"{PUBLISHED[recipe]} cannot be downloaded ({type(error).__name__}): check the connection to the Hugging "
            "Face Hub, or give a file as `checkpoint`."
        ) from error


def is_published_segmentation(checkpoint: Mapping[str, Any]) -> bool:
    return any(key.startswith("decode_head.") for key in state_of(checkpoint))


def state_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = checkpoint.get("state_dict")
    return inner if isinstance(inner, Mapping) else checkpoint


def rename_segmentation(checkpoint: Mapping[str, Any]) -> StateDict:
    """A published segmentation checkpoint with our names. Unknown entries are an error."""
    renamed: StateDict = {}
    backbone: StateDict = {}
    unknown = []
    for key, value in state_of(checkpoint).items():
        if not isinstance(value, Tensor):
            continue
        inner = key.removeprefix("backbone.")
        if name := our_name(key):
            renamed[name] = value
        elif inner == key:
            unknown.append(key)
        elif not inner.startswith(UNUSED):
            backbone[inner] = value
    if unknown:
        raise PolyNeXtError(
            f"the checkpoint has entries that no UPerNet has: {preview(unknown)}. Give one of the authors' files."
        )
    return renamed | {f"backbone.model.{key}": value for key, value in rename_published(backbone).items()}


def our_name(key: str) -> str | None:
    for owner, ours in PARTS.items():
        if match := re.fullmatch(rf"{owner}\.(?P<leaf>(conv\.|bn\.)?\w+)", key):
            return f"{match.expand(ours)}.{match['leaf'].replace('bn.', 'norm.')}"
    return None


def load_segmentation_weights(model: UPerNet, path: Path) -> None:
    """Loads our weights, or the authors', strictly."""
    checkpoint = read_checkpoint(path)
    weights = rename_segmentation(checkpoint) if is_published_segmentation(checkpoint) else dict(checkpoint)
    expected = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    given = {k: v for k, v in weights.items() if not k.endswith("num_batches_tracked")}
    check_same_entries(given, expected, "this network")
    model.load_state_dict(given, strict=False)
