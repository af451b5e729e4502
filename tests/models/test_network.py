"""The network of `network.py`: stem, output stride, dropout, layer groups."""

import pytest
import timm
import torch
from timm.models import group_parameters
from torch import nn

import polynext
from polynext.models import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig


def test_options_reach_the_network() -> None:
    model = timm.create_model("apolynext_small", num_classes=10, in_chans=1, drop_path_rate=0.1, device="meta")
    assert model(torch.empty(2, 1, 64, 64, device="meta")).shape == (2, 10)
    rates = [getattr(c.stacks[0].drop_path, "drop_prob", 0.0) for stage in model.stages for c in stage.cells]
    expected = [0.1 * i / 16 for i in range(17)]
    assert rates == pytest.approx(expected)
    one_cell = timm.create_model("cpolynext_nano", drop_path_rate=0.3)
    assert one_cell.stages[0].cells[0].stacks[0].drop_path.drop_prob == 0.3


def test_layer_groups_run_from_stem_to_head() -> None:
    model = timm.create_model("cpolynext_tiny", device="meta")
    for coarse, layers in ((True, 1 + 4 + 1), (False, 1 + 12 + 1)):
        groups = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
        assert set(groups) == {n for n, _ in model.named_parameters()}
        assert groups["stem.weight"] == 0
        assert max(groups.values()) >= layers - 1


def test_scales_and_norms_are_not_decayed() -> None:
    model = timm.create_model("apolynext_nano_bn")
    spared = model.no_weight_decay()
    mixing = {n for n, _ in model.named_parameters()} - spared
    assert all(n.endswith(".weight") for n in mixing)
    assert "stages.0.cells.0.scale.logits" in spared
    assert "stages.1.cells.0.stacks.0.mixer.row_norm.gamma" in spared
    assert "stages.0.cells.0.norm.gamma_hw" in spared


def test_head_dropout_and_stochastic_depth_act_in_training_only() -> None:
    model = timm.create_model("cpolynext_nano", drop_rate=0.5, drop_path_rate=0.5)
    x = torch.randn(4, 1, 8, 8)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


@pytest.mark.parametrize("patch", [2, 4])
def test_a_stem_of_patches_is_a_pointwise_map_of_them(patch: int) -> None:
    """Kernel equal to stride: no padding, so that each position sees one whole patch of the image."""
    stage = StageConfig(width=8, cells=1, stacks=1, coarse_kernel=3)
    config = PolyNeXtConfig(stages=(stage,), scale_logits=(1.0, 0.5), stem_kernel=patch, stem_stride=patch)
    model = PolyNeXt(config, num_classes=3, img_size=16, blocks=FullyPolynomialBlocks()).eval()
    x = torch.randn(2, 3, 16, 16)
    patches = nn.functional.pixel_unshuffle(x, patch)  # (B, 3 patch^2, 16 / patch, 16 / patch)
    with torch.no_grad():
        wanted = nn.functional.conv2d(patches, model.stem.weight.flatten(1)[:, :, None, None])
        torch.testing.assert_close(model.stem(x), wanted)
        assert model(x).shape == (2, 3)


@pytest.mark.parametrize("name", ["cpolynext_tiny", "apolynext_tiny_bn"])
@pytest.mark.parametrize(("stride", "reductions"), [(8, [4, 8, 8, 8]), (16, [4, 8, 16, 16]), (32, [4, 8, 16, 32])])
def test_output_stride(name: str, stride: int, reductions: list[int]) -> None:
    options = {"img_size": 64} if name.endswith("_bn") else {}
    backbone = timm.create_model(name, features_only=True, output_stride=stride, **options).eval()
    assert backbone.feature_info.reduction() == reductions
    with torch.no_grad():
        assert [f.shape[2] for f in backbone(torch.randn(1, 3, 64, 64))] == [64 // r for r in reductions]
    with pytest.raises(polynext.PolyNeXtError, match="output_stride is 12: choose one of 4, 8, 16, 32"):
        timm.create_model("cpolynext_tiny", output_stride=12)


def test_dilated_kernels_see_what_strided_ones_do() -> None:
    """Every other position of a dilated stage has the strided stage's output."""
    plain = timm.create_model("cpolynext_lowres").eval()
    dilated = timm.create_model("cpolynext_lowres", output_stride=2).eval()
    dilated.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        coarse = plain.forward_intermediates(x, indices=[2], intermediates_only=True)[0]
        fine = dilated.forward_intermediates(x, indices=[2], intermediates_only=True)[0]
    torch.testing.assert_close(fine[..., ::2, ::2], coarse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_a_network_without_its_last_child_gives_features(name: str) -> None:
    model, x = timm.create_model(name).eval(), torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(nn.Sequential(*list(model.children())[:-1])(x), model.forward_features(x))
