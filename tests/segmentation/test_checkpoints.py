"""Published segmentation checkpoints."""

from pathlib import Path

import pytest
import torch

from polynext.errors import PolyNeXtError
from polynext.segmentation.checkpoints import load_segmentation_weights, rename_segmentation
from polynext.segmentation.upernet import UPerNet


def theirs(model: UPerNet) -> dict[str, torch.Tensor]:
    """A state dict as mmsegmentation would write it: our names turned back, for two stages' worth of kinds."""
    back = {
        "head.pyramid.": "decode_head.psp_modules.",
        "head.bottleneck.": "decode_head.bottleneck.",
        "head.lateral.": "decode_head.lateral_convs.",
        "head.smooth.": "decode_head.fpn_convs.",
        "head.merge.": "decode_head.fpn_bottleneck.",
        "head.classifier.": "decode_head.conv_seg.",
        "auxiliary.conv.": "auxiliary_head.convs.0.",
        "auxiliary.classifier.": "auxiliary_head.conv_seg.",
        "norms.": "backbone.extra_norms.",
    }
    written = {}
    for key, value in model.state_dict().items():
        for ours, name in back.items():
            if key.startswith(ours):
                rest = key.removeprefix(ours).replace("norm.", "bn.") if ours != "norms." else key.removeprefix(ours)
                if ours == "head.pyramid.":
                    rest = rest.replace(".", ".1.", 1)
                written[name + rest] = torch.randn_like(value.float()).to(value.dtype)
    return written


def test_published_heads_load_by_name() -> None:
    model = UPerNet("cpolynext_tiny", 7, width=16)
    written = theirs(model)
    renamed = rename_segmentation({"state_dict": written, "meta": {}})
    expected = {k: v for k, v in model.state_dict().items() if not k.startswith("backbone.")}
    assert renamed.keys() == expected.keys()
    assert all(renamed[k].shape == v.shape for k, v in expected.items())
    torch.testing.assert_close(
        renamed["head.pyramid.2.conv.weight"], written["decode_head.psp_modules.2.1.conv.weight"]
    )
    torch.testing.assert_close(renamed["norms.1.bias"], written["backbone.extra_norms.1.bias"])
    with pytest.raises(PolyNeXtError, match=r"entries that no UPerNet has: decode_head\.extra"):
        rename_segmentation(written | {"decode_head.extra": torch.zeros(1)})


def test_a_published_checkpoint_loads_strictly(tmp_path: Path) -> None:
    from tests.models.test_published import small_checkpoint  # a backbone in the authors' layout

    model = UPerNet("cpolynext_lowres", 7, width=16)
    backbone = {k: v for k, v in small_checkpoint().items() if not k.startswith(("norm.", "proj.", "head."))}
    weights = (
        theirs(model) | {f"backbone.{k}": v for k, v in backbone.items()} | {"backbone.norm.weight": torch.ones(3)}
    )
    torch.save({"state_dict": weights, "meta": {"iter": 160000}}, tmp_path / "uper.pth")
    load_segmentation_weights(model, tmp_path / "uper.pth")
    torch.testing.assert_close(model.backbone.model.stem.weight, backbone["stem.weight"])
    del weights["backbone.stem.weight"]
    torch.save(weights, tmp_path / "part.pth")
    with pytest.raises(PolyNeXtError, match=r"missing backbone\.model\.stem\.weight"):
        load_segmentation_weights(model, tmp_path / "part.pth")
