"""UPerNet, what it is measured by, and what it draws."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import polynext
from polynext.cli import main
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.models.costs import count_macs, count_parameters
from polynext.models.network import Cell
from polynext.segmentation.checkpoints import load_segmentation_weights, rename_segmentation
from polynext.segmentation.data import IGNORED
from polynext.segmentation.gradients import limit_cell_gradients
from polynext.segmentation.overlay import draw_overlay, palette
from polynext.segmentation.scores import score
from polynext.segmentation.sliding import slide, windows
from polynext.segmentation.task import (
    pixel_loss,
)
from polynext.segmentation.upernet import UPerNet

ALONE = Processes(0, 1, torch.device("cpu"))


# The network


@pytest.mark.parametrize(
    ("backbone", "parameters", "macs"),
    [("cpolynext_small", 54, 941), ("apolynext_small", 55, 1121), ("convformer_s18", 54, 925)],
)
def test_cost_is_the_papers(backbone: str, parameters: int, macs: int) -> None:
    """Table 6 prints whole numbers: CPolyNeXt-S has 941.5."""
    model = UPerNet(backbone, 150, device="meta")
    assert round(count_parameters(model) / 1e6) == parameters
    assert abs(count_macs(model, (3, 512, 2048)) / 1e9 - macs) < 0.51


def test_costs_stand_beside_the_papers(capsys) -> None:
    assert main(["segment", "costs", "cpolynext_small", "test_convnext", "--size", "64", "64"]) == 0
    ours, other = (line.split() for line in capsys.readouterr().out.splitlines()[2:])
    assert (ours[2], ours[-3:], other[-3:]) == ("53.92", ["54", "941", "50.6"], ["-", "-", "-"])


@pytest.mark.parametrize("backbone", ["cpolynext_tiny", "convnextv2_atto", "test_resnet", "cpolynext_lowres"])
def test_any_backbone_with_features(backbone: str) -> None:
    model = UPerNet(backbone, 5, width=16)
    images = torch.randn(2, 3, 64, 96)
    logits, auxiliary = model.train()(images)
    assert logits.shape == auxiliary.shape == (2, 5, 64, 96)
    (pixel_loss(logits, torch.zeros(2, 64, 96, dtype=torch.long)) + auxiliary.mean()).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert model.eval()(images).shape == (2, 5, 64, 96)


def test_segmentation_models_pytorch_takes_our_backbones() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    model = smp.UPerNet(encoder_name="tu-cpolynext_tiny", encoder_weights=None, classes=5, decoder_channels=32)
    assert model.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 5, 64, 64)


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


def test_a_backbone_for_one_size_gets_that_size() -> None:
    """Windows of a Swin transformer also come channels last."""
    model = UPerNet("swin_tiny_patch4_window7_224", 3, width=8, image_size=64, window_size=2).eval()
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 3, 64, 64)
    with pytest.raises(PolyNeXtError, match="takes 64x64 pixels but got 60x64"):
        model(torch.randn(1, 3, 64, 60))


def test_logits_are_float32_under_autocast() -> None:
    model = UPerNet("test_convnext", 3, width=8).eval()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert model(torch.randn(1, 3, 64, 64)).dtype == torch.float32


@pytest.mark.parametrize(
    ("backbone", "options", "sentence"),
    [
        ("nonet", {}, "there is no model named 'nonet'"),
        ("vgg11", {"drop_path_rate": 0.1}, "vgg11 cannot be a backbone"),
        ("cpolynext_nano", {}, "has 1 level of features"),
    ],
)
def test_networks_that_cannot_be_backbones_are_told(backbone: str, options: dict, sentence: str) -> None:
    with pytest.raises(PolyNeXtError, match=sentence):
        UPerNet(backbone, 3, device="meta", **options)


# Windows and scores


@given(st.integers(1, 300), st.integers(1, 64), st.data())
def test_windows_cover_everything(length: int, window: int, data) -> None:
    stride = data.draw(st.integers(1, window))
    seen = np.zeros(length, dtype=int)
    for piece in windows(length, window, stride):
        assert piece.stop - piece.start == min(window, length)
        seen[piece] += 1
    assert seen.min() >= 1


def test_one_window_is_the_whole_image() -> None:
    model = UPerNet("cpolynext_tiny", 4, width=8).eval()
    image = torch.randn(1, 3, 64, 80)
    with torch.no_grad():
        torch.testing.assert_close(slide(model, image, 96, 64), model(image), atol=1e-5, rtol=0)


def test_sliding_averages_what_several_windows_see() -> None:
    """A network that tells each window's mean: where windows overlap, the mean of theirs."""
    image = torch.arange(6.0).reshape(1, 1, 1, 6).repeat(1, 1, 4, 1)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.mean() * torch.ones_like(x)

    found = slide(mean, image, 4, 2)[0, 0, 0]
    torch.testing.assert_close(found, torch.tensor([1.5, 1.5, 2.5, 2.5, 3.5, 3.5]))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31))
def test_miou_is_what_numpy_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 6))
    pairs = []
    for _ in range(3):
        wanted = rng.integers(0, classes, (5, 7))
        wanted[rng.random((5, 7)) < 0.3] = IGNORED
        pairs.append((rng.integers(0, classes, (5, 7)), wanted))
    found = score([(torch.tensor(p), torch.tensor(w)) for p, w in pairs], classes, ALONE)
    predicted, wanted = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    predicted, wanted = predicted[wanted != IGNORED], wanted[wanted != IGNORED]
    if not len(wanted):
        return
    ious = []
    for c in range(classes):
        union = ((predicted == c) | (wanted == c)).sum()
        ious.append(100 * ((predicted == c) & (wanted == c)).sum() / union if union else np.nan)
    np.testing.assert_allclose(found.iou, ious)
    assert found.miou == pytest.approx(np.nanmean(ious))
    assert found.accuracy == pytest.approx(100 * (predicted == wanted).mean())
    assert found.images == 3


# Gradients


def parameter_gradients(limit: float | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = polynext.create_model("cpolynext_micro", num_classes=4)
    if limit:
        limit_cell_gradients(model, limit)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def test_small_gradients_stay_as_they_are() -> None:
    pairs = zip(parameter_gradients(1e9), parameter_gradients(None), strict=True)
    assert all(torch.equal(limited, free) for limited, free in pairs)


def test_large_gradients_are_held() -> None:
    seen: list[float] = []
    model = polynext.create_model("cpolynext_micro", num_classes=4)
    limit_cell_gradients(model, 5.0)
    for cell in (m for m in model.modules() if isinstance(m, Cell)):
        cell.register_forward_hook(
            lambda m, x, y: y.register_hook(lambda g: seen.append(g.norm().item())) and None
        )  # after the limit
    (1e6 * model(torch.randn(2, 3, 16, 16)).square().sum()).backward()
    assert len(seen) == 3
    assert max(seen) <= 5.0 * (1 + 1e-5)
    assert max(seen) > 4.9
    with pytest.raises(PolyNeXtError, match="this one has no cells"):
        limit_cell_gradients(nn.Linear(2, 2), 5.0)


# Pictures


def test_overlay_names_what_it_shows() -> None:
    labels = np.zeros((60, 80), np.uint8)
    labels[:, 40:] = 2
    labels[:5] = IGNORED
    image = Image.new("RGB", (80, 60), "white")
    picture = np.asarray(draw_overlay(image, labels, ("one", "two", "three"), strength=1.0))
    colours = palette(3)
    assert (picture[30, 10] == colours[0]).all()
    assert (picture[30, 70] == colours[2]).all()
    assert (picture[2, 10] == 255).all()
    assert not (picture == colours[1]).all(axis=2).any()
    assert len({tuple(c) for c in palette(150)}) == 150
