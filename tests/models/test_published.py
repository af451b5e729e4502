"""The published networks: same answers, same parameters, strict loading."""

import re

import pytest
import timm
import torch
from safetensors.torch import load_file

import polynext
from polynext.cli import main
from polynext.models import PUBLISHED
from polynext.models.costs import count_macs, count_parameters
from polynext.models.published import check_same_entries, rename_published
from tests import golden
from tests.golden.reference import initial_scales, manifest, published_logits

PARAMETERS = {
    "cpolynext_tiny": 6_431_752,
    "cpolynext_small": 25_654_376,
    "cpolynext_base": 39_753_160,
    "cpolynext_large": 57_359_272,
    "apolynext_tiny": 6_530_380,
    "apolynext_small": 26_287_948,
    "apolynext_base": 40_896_400,
    "apolynext_large": 57_404_020,
    "cpolynext_lowres": 5_460_322,
    "cpolynext_tiny_bn": 6_495_599,
    "apolynext_tiny_bn": 6_612_791,
    "cpolynext_small_bn": 25_756_884,
}
# Multiply-accumulates in billions: the paper's Table 1, to one more digit than it prints.
GMACS = {
    "cpolynext_tiny": 1.199,
    "cpolynext_small": 4.780,
    "cpolynext_base": 8.496,
    "cpolynext_large": 12.619,
    "apolynext_tiny": 1.342,
    "apolynext_small": 5.290,
    "apolynext_base": 9.312,
    "apolynext_large": 13.350,
    "cpolynext_lowres": 0.705,
}


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("name", golden.NETWORKS)
def test_golden_outputs(name: str) -> None:
    our_name, size = golden.NETWORKS[name]
    model = timm.create_model(our_name).eval()
    model.load_state_dict(polynext.from_published(golden.checkpoint(name)))
    expected = golden.outputs(name)
    with torch.no_grad():
        features, stages = model.forward_intermediates(golden.images(size))
        logits = model.forward_head(features)
    assert relative_error(logits, expected["logits"]) < 1e-4
    for i, stage in enumerate(stages, start=1):
        assert relative_error(stage[:, :4, :4, :4], expected[f"stage{i}"]) < 1e-4


@pytest.mark.parametrize("name", golden.NETWORKS)
def test_the_inverse_of_the_converter_gives_the_published_entries(name: str) -> None:
    our_name, size = golden.NETWORKS[name]
    assert manifest(timm.create_model(our_name, device="meta", img_size=size)) == golden.shapes(name)


@pytest.mark.parametrize("name", golden.NETWORKS)
def test_the_second_implementation_gives_the_golden_outputs(name: str) -> None:
    our_name, size = golden.NETWORKS[name]
    with torch.no_grad():
        logits = published_logits(golden.images(size), golden.checkpoint(name), "tiny" in our_name)
    assert relative_error(logits, golden.outputs(name)["logits"]) < 1e-4


LARGE = ("base", "large")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name.endswith(LARGE) else []) for name in PARAMETERS],
)
def test_every_published_network_agrees_with_the_second_implementation(name: str) -> None:
    """At another size than the golden outputs, which makes the large networks fast."""
    size = 48 if name == "cpolynext_lowres" else 96
    model = timm.create_model(name, device="meta", img_size=size)
    weights = golden.filled(manifest(model), name.endswith("_bn"))
    ours = rename_published(weights)
    check_same_entries(ours, model.state_dict(), name)
    model.load_state_dict(ours, assign=True)
    with torch.no_grad():
        logits = model.eval()(golden.images(size))
        expected = published_logits(golden.images(size), weights, "tiny" in name)
    assert expected.std() > 0.01
    assert relative_error(logits, expected) < 1e-4


@pytest.mark.parametrize("name", [name for name in PARAMETERS if not name.endswith("_bn")])
def test_initial_scales(name: str) -> None:
    model = timm.create_model(name)
    expected = torch.tensor(initial_scales(name.split("_")[1]))
    logits = [value for key, value in model.state_dict().items() if re.search(r"cells\.\d+\.scale\.logits$", key)]
    assert len(logits) == sum(stage.cells for stage in model.config.stages)
    for value in logits:
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(("name", "expected"), PARAMETERS.items())
def test_parameters_to_the_last_digit(name: str, expected: int) -> None:
    assert count_parameters(timm.create_model(name, device="meta")) == expected


@pytest.mark.parametrize(("name", "expected"), GMACS.items())
def test_multiply_accumulates(name: str, expected: float) -> None:
    model = timm.create_model(name, device="meta")
    assert round(count_macs(model, model.pretrained_cfg["input_size"]) / 1e9, 3) == expected


def small_checkpoint() -> dict[str, torch.Tensor]:
    return golden.checkpoint("cpolynext_lr_cifar10")


def test_a_training_checkpoint_gives_its_ema_weights() -> None:
    ema = small_checkpoint()
    raw = {key: torch.zeros_like(value) for key, value in ema.items()}
    wrapped = {f"module.{key}": value for key, value in ema.items()} | {"n_averaged": torch.tensor(5)}
    converted = polynext.from_published({"epoch": 299, "state_dict": raw, "ema_state_dict": wrapped})
    assert torch.equal(converted["stem.weight"], ema["stem.weight"])


def test_a_training_checkpoint_without_ema_gives_its_weights() -> None:
    weights = small_checkpoint()
    converted = polynext.from_published({"epoch": 10, "state_dict": weights, "optimizer": {}})
    assert torch.equal(converted["stem.weight"], weights["stem.weight"])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w.pop("cells.3.ops.2.weight"), "missing stages.1.cells.1.stacks.0.mixer.k_fine.weight"),
        (lambda w: w.update({"cells.0.ops.99.weight": torch.zeros(1)}), "no PolyNeXt has: cells.0.ops.99.weight"),
        (lambda w: w.update({"extra.weight": torch.zeros(1)}), "no PolyNeXt has: extra.weight"),
        (lambda w: w.update({"norm.weight": torch.zeros(7)}), r"norm.weight \(7,\) instead of \(288,\)"),
        (lambda w: w.pop("cells.0.skip_weight"), "not a published PolyNeXt checkpoint"),
        (lambda w: w.pop("head.3.weight"), "missing head.fc.weight"),
        (lambda w: w.pop("stem.weight"), "expected a stem.weight"),
        (lambda w: w.update({"stem.weight": torch.zeros(72)}), "expected a stem.weight with four axes"),
        (lambda w: w.update({"cells.2.preprocess1.scale": torch.zeros(5)}), r"s1 \(5,\) instead of \(144,\)"),
    ],
)
def test_conversion_is_strict(spoil, message: str) -> None:
    weights = small_checkpoint()
    spoil(weights)
    with pytest.raises(polynext.PolyNeXtError, match=message):
        polynext.from_published(weights)


def test_convert_command(tmp_path, capsys) -> None:
    torch.save(small_checkpoint(), tmp_path / "published.pt")
    assert main(["convert", str(tmp_path / "published.pt"), str(tmp_path / "ours.safetensors")]) == 0
    assert "cpolynext_lowres, 5,460,322 parameters" in capsys.readouterr().out
    expected = polynext.from_published(small_checkpoint())
    written = load_file(tmp_path / "ours.safetensors")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[key], expected[key]) for key in expected)
    model = polynext.create_model("cpolynext_lowres")
    polynext.load_weights(model, tmp_path / "ours.safetensors")
    polynext.load_weights(model, tmp_path / "published.pt")
    assert torch.equal(model.stem.weight, expected["stem.weight"])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Stands in for the download: serves files written to tmp_path, and notes what was asked for."""
    asked = []

    def download(repo_id: str, filename: str, **_) -> str:
        from huggingface_hub.errors import EntryNotFoundError

        if not (tmp_path / filename).exists():
            raise EntryNotFoundError(filename)
        asked.append((repo_id, filename))
        return str(tmp_path / filename)

    monkeypatch.setattr("timm.models._hub.hf_hub_download", download)
    torch.save({"epoch": 1, "state_dict": small_checkpoint()}, tmp_path / "cpolynext_lr_cifar10.pt")
    return asked


def test_pretrained_weights_come_from_the_hub(hub) -> None:
    model = timm.create_model("cpolynext_lowres.cifar10", pretrained=True).eval()
    assert hub == [("JJWCactus/PolyNeXt", "cpolynext_lr_cifar10.pt")]
    with torch.no_grad():
        logits = model(golden.images(32))
    assert relative_error(logits, golden.outputs("cpolynext_lr_cifar10")["logits"]) < 1e-4


def test_pretrained_weights_adapt_to_other_channels_and_classes(hub) -> None:
    model = timm.create_model("cpolynext_lowres", pretrained=True, in_chans=1, num_classes=7)
    assert model.stem.weight.shape == (72, 1, 3, 3)
    assert torch.allclose(model.stem.weight, small_checkpoint()["stem.weight"].sum(dim=1, keepdim=True))
    assert model.head.fc.weight.shape == (7, 576)
    features = timm.create_model("cpolynext_lowres", pretrained=True, features_only=True)
    assert len(features(golden.images(32))) == 3


def test_pretrained_weights_of_another_shape_are_refused(hub, tmp_path) -> None:
    weights = small_checkpoint()
    del weights["cells.1.ops.0.weight"]
    torch.save(weights, tmp_path / "cpolynext_lr_cifar10.pt")
    with pytest.raises(polynext.PolyNeXtError, match=r"missing stages\.0\.cells\.1\.stacks\.0\.mixer\.w_in"):
        timm.create_model("cpolynext_lowres.cifar10", pretrained=True)


def test_every_published_file_has_a_model() -> None:
    assert set(PUBLISHED) <= set(timm.list_pretrained("*polynext*"))
