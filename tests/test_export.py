"""Networks as files: the same function, for any batch size."""

from pathlib import Path

import pytest
import timm
import torch

import polynext  # noqa: F401  (registers the models)
from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.export import SUFFIXES, check, export, load, load_openvino
from polynext.models import create_variant


def perturbed(name: str) -> torch.nn.Module:
    """A model whose scales and norms are not at their special initial values."""
    model = timm.create_model(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("form", SUFFIXES)
@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano", "apolynext_nano_bn"])
def test_a_file_computes_what_the_model_does(name: str, form, tmp_path: Path) -> None:
    model, path = perturbed(name), tmp_path / f"model{SUFFIXES[form]}"
    export(model, (1, 8, 8), path, form)
    runtimes = [load(path), load_openvino(path, threads=1)] if form == "onnx" else [load(path)]
    for batch in (1, 2, 7):
        images = torch.randn(batch, 1, 8, 8)
        with torch.no_grad():
            for exported in runtimes:
                torch.testing.assert_close(exported(images), model(images), atol=1e-5, rtol=1e-5)


def test_onnx_holds_no_copies_of_maps(tmp_path: Path) -> None:
    """Engines copy a map to permute, cut or reverse it: the head alone does, once."""
    import onnx

    export(perturbed("cpolynext_nano"), (1, 8, 8), tmp_path / "model.onnx", "onnx")
    operations = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert not {"MatMul", "Slice", "Concat", "LayerNormalization"} & set(operations)
    assert operations.count("Transpose") <= 1
    assert operations.count("Split") == 1


@pytest.mark.parametrize("variant", ["no-flip", "addition"])
def test_variants_export(variant: str, tmp_path: Path) -> None:
    model = create_variant("cpolynext_ablate_digits", variant, in_chans=1).eval()
    export(model, (1, 8, 8), tmp_path / "model.onnx", "onnx")
    assert check(model, tmp_path / "model.onnx", {"random": torch.randn(3, 1, 8, 8)})["random"] < 1e-5


def test_a_file_of_other_weights_does_not_pass(tmp_path: Path) -> None:
    model = perturbed("cpolynext_nano")
    export(model, (1, 8, 8), tmp_path / "model.pt2", "torch")
    images = {"random": torch.randn(3, 1, 8, 8)}
    assert check(model, tmp_path / "model.pt2", images)["random"] < 1e-6
    with torch.no_grad():
        model.head.fc.bias += 1e-3
    with pytest.raises(PolyNeXtError, match="random images, more than 1e-04"):
        check(model, tmp_path / "model.pt2", images)
    with torch.no_grad():
        model.head.fc.bias.fill_(float("nan"))
    with pytest.raises(PolyNeXtError, match="by nan on"):
        check(model, tmp_path / "model.pt2", images)


@pytest.mark.parametrize("name", ["cpolynext_nano_bn", "test_resnet"])
def test_export_command(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "new" / "model.onnx"
    folding = ["--fold"] if name.startswith("cpolynext") else []
    assert main(["export", name, "--out", str(path), *folding]) == 0
    said = capsys.readouterr().out
    assert "any batch size" in said
    assert "on real images" in said
    assert path.is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["test_resnet", "--fold"], "a ResNet cannot be folded"),
        (["cpolynext_nano", "--out", "model.pt"], "--out is model.pt: give a name that ends in .onnx"),
        (["cpolynext_nano", "--out", f"{__file__}/model.onnx"], "test_export.py is not a folder"),
        (["cpolynext_nano", "--images", "absent.png"], "absent.png cannot be read"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys) -> None:
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cpolynext_small", "apolynext_tiny", "apolynext_tiny_bn", "monet_tiny", "dttn_tiny", "caformer_s18"]
)
def test_larger_models_export(name: str, tmp_path: Path) -> None:
    assert main(["export", name, "--out", str(tmp_path / "model.onnx")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["monet_tiny_bn", "dttn_tiny_bn"])
def test_prior_networks_export_folded(name: str, tmp_path: Path) -> None:
    assert main(["export", name, "--fold", "--out", str(tmp_path / "model.onnx")]) == 0
