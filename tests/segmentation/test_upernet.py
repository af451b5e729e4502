"""UPerNet, what it is measured by, and what it draws."""

import pytest
import torch

from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.models.costs import count_macs, count_parameters
from polynext.segmentation.data import IGNORED
from polynext.segmentation.task import pixel_loss
from polynext.segmentation.upernet import UPerNet

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


def test_costs_are_printed_beside_the_papers(capsys) -> None:
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
    ("backbone", "options", "message"),
    [
        ("nonet", {}, "there is no model named 'nonet'"),
        ("vgg11", {"drop_path_rate": 0.1}, "vgg11 cannot be a backbone"),
        ("cpolynext_nano", {}, "has 1 level of features"),
    ],
)
def test_networks_that_cannot_be_backbones_have_a_message(backbone: str, options: dict, message: str) -> None:
    with pytest.raises(PolyNeXtError, match=message):
        UPerNet(backbone, 3, device="meta", **options)


def test_classifiers_start_from_small_normal_weights_and_convolutions_from_kaiming() -> None:
    torch.manual_seed(0)
    model = UPerNet("test_convnext", 150, width=64)
    for classifier in (model.head.classifier, model.auxiliary.classifier):
        assert classifier.weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert classifier.weight.mean().abs() < 1e-3 and not classifier.bias.any()
    assert model.head.merge.conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


def test_the_loss_is_averaged_over_all_pixels() -> None:
    """Ignored pixels add nothing to the sum and count in its average."""
    logits, labels = torch.randn(2, 4, 3, 5), torch.randint(0, 4, (2, 3, 5))
    labels[0, :2] = IGNORED
    total = sum(
        -logits[b, :, y, x].log_softmax(0)[labels[b, y, x]].item()
        for b in range(2)
        for y in range(3)
        for x in range(5)
        if labels[b, y, x] != IGNORED
    )
    assert pixel_loss(logits, labels).item() == pytest.approx(total / 30, rel=1e-5)
    assert pixel_loss(logits, torch.full_like(labels, IGNORED)) == 0
