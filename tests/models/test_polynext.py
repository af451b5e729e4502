"""Our models as timm models: what timm's own test suite asks of a model, asked of ours."""

import importlib
import math
import pickle

import pytest
import timm
import torch
from timm.models import get_notrace_functions, get_notrace_modules
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

import polynext
from polynext.models import check_model
from polynext.models.checkpoints import read_metadata
from polynext.models.polynext import CONFIGS, halving
from polynext.models.published import shipped_weights
from polynext.training.diagnostics import Diagnostics

NAMES = timm.list_models(module="polynext")
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
# One of each kind; the larger sizes are the same code with other numbers.
KINDS = [n for n in NAMES if n.removesuffix("_bn").endswith(("tiny", "lowres", "nano"))]


def image_size(name: str) -> int:
    """Small images for the four-stage networks, the default for the others."""
    return {"lowres": 16, "micro": 16, "cipher": 32, "mnist": 28, "nano": 8}.get(
        name.removesuffix("_bn").split("_")[1], 64
    )


def build(name: str, **options):
    if name in NAMES and name.endswith("_bn"):
        options["img_size"] = image_size(name)
    return timm.create_model(name, **options)


def images(name: str, batch: int = 2, channels: int | None = None) -> torch.Tensor:
    channels = channels or (1 if "nano" in name or "digits" in name or "mnist" in name else 3)
    return torch.randn(batch, channels, image_size(name), image_size(name))


def test_every_name_of_the_family_is_registered() -> None:
    sizes = ["tiny", "small", "base", "large", "nano", "ablate_digits", "ablate_cifar10"]
    expected = {f"{kind}polynext_{size}" for kind in "ca" for size in sizes}
    expected |= {f"cpolynext_{size}" for size in ("lowres", "micro", "cipher", "cipher_deep", "mnist")}
    expected |= {f"{name}_bn" for name in expected}
    assert set(NAMES) == expected == set(timm.list_models("*polynext*"))


def test_every_registered_model_is_listed() -> None:
    ours = [name for module in ("polynext", "monet", "dttn", "dropin") for name in timm.list_models(module=module)]
    assert sorted(polynext.list_models()) == sorted(ours)
    prior = {"monet_tiny", "monet_small", "dttn_tiny", "dttn_small", "dttn_base"}
    prior |= {f"{name}_bn" for name in prior}
    assert set(ours) - set(NAMES) == prior | {"caformer_s18_poly"}
    polynomial = polynext.list_models(fully_polynomial=True)
    assert set(polynomial) == {name for name in ours if name.endswith("_bn")}
    assert set(polynext.list_models(fully_polynomial=False)) == set(ours) - set(polynomial)


@pytest.mark.parametrize("name", polynext.list_models())
def test_a_name_is_a_function_of_its_module(name: str) -> None:
    entrypoint = timm.model_entrypoint(name)
    assert pickle.loads(pickle.dumps(entrypoint)) is entrypoint
    assert getattr(importlib.import_module(entrypoint.__module__), name) is entrypoint
    assert entrypoint.__doc__
    assert entrypoint.__module__.split(".")[-1] in timm.list_modules()


LARGE = [pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in KINDS]
QUICK = [n for n in KINDS if "tiny" not in n]
TINY = [pytest.param(n, marks=pytest.mark.slow) for n in KINDS if "tiny" in n]


@pytest.mark.parametrize("name", KINDS + LARGE)
def test_forward(name: str) -> None:
    model = build(name).eval()
    with torch.no_grad():
        logits = model(images(name))
    assert logits.shape == (2, model.num_classes)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", KINDS)
def test_backward_reaches_every_parameter(name: str) -> None:
    model = build(name, num_classes=42).train()
    model(images(name)).mean().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", KINDS)
def test_default_config_and_classifier(name: str) -> None:
    model = build(name).eval()
    x = images(name)
    cfg = model.pretrained_cfg
    assert f"{cfg['classifier']}.weight" in model.state_dict()
    assert f"{cfg['first_conv']}.weight" in model.state_dict()
    assert model.get_classifier() is model.head.fc
    with torch.no_grad():
        features = model.forward_features(x)
        assert features.shape[1] == model.num_features
        before_logits = model.forward_head(features, pre_logits=True)
        assert before_logits.shape == (2, model.head_hidden_size)
        model.reset_classifier(0)
        torch.testing.assert_close(model(x), before_logits)
        model.reset_classifier(0, "")
        assert model(x).shape == (2, model.head_hidden_size, *features.shape[2:])
        model.reset_classifier(5)
        assert model(x).shape == (2, 5, *features.shape[2:])
        model.reset_classifier(5, "avg")
        assert model(x).shape == (2, 5)
    assert model.num_classes == 5


@pytest.mark.parametrize("name", timm.list_models("*polynext*", include_tags=True))
def test_pool_size_is_that_of_the_default_input(name: str) -> None:
    model = timm.create_model(name, device="meta", num_classes=0, global_pool="")
    cfg = model.pretrained_cfg
    out = model(torch.empty(1, *cfg["input_size"], device="meta"))
    assert out.shape[2:] == cfg["pool_size"]


@pytest.mark.parametrize("name", KINDS)
def test_intermediates_and_features_only(name: str) -> None:
    model = build(name).eval()
    x = images(name)
    first = model.config.stem_stride
    with torch.no_grad():
        final, intermediates = model.forward_intermediates(x)
        torch.testing.assert_close(final, model.forward_features(x))
        assert [f.shape[1] for f in intermediates] == [info["num_chs"] for info in model.feature_info]
        reductions = [info["reduction"] for info in model.feature_info]
        assert reductions == [first * 2**i for i in range(len(reductions))]
        assert [f.shape[2] for f in intermediates] == [image_size(name) // r for r in reductions]
        last = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
        torch.testing.assert_close(last, [final])
        early = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True)
        torch.testing.assert_close(early, intermediates[:1])

        backbone = build(name, features_only=True).eval()
        backbone.model.load_state_dict(model.state_dict(), strict=False)
        torch.testing.assert_close(backbone(x), intermediates)
        some = build(name, features_only=True, out_indices=(0,))
        assert some.feature_info.reduction() == [first]
        assert len(some.model.stages) == 1
    assert all(p.requires_grad for p in backbone.parameters())


def test_feature_reductions_are_those_of_a_pyramid() -> None:
    backbone = timm.create_model("apolynext_small", features_only=True, out_indices=(1, 3), device="meta")
    assert backbone.feature_info.reduction() == [8, 32]
    full = timm.create_model("apolynext_small", features_only=True, device="meta")
    assert full.feature_info.reduction() == [4, 8, 16, 32]
    assert full.feature_info.channels() == [72, 144, 288, 432]


def test_every_parameter_of_a_pruned_backbone_is_used() -> None:
    backbone = timm.create_model("apolynext_nano", features_only=True)
    sum(f.sum() for f in backbone(torch.randn(1, 1, 8, 8))).backward()
    assert [n for n, p in backbone.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", QUICK + TINY)
def test_fx_trace_gives_the_same_values(name: str) -> None:
    model = build(name).eval()
    options = dict(
        leaf_modules=get_notrace_modules(),
        autowrap_functions=get_notrace_functions(),
        param_shapes_constant=True,
    )
    _, nodes = get_graph_node_names(model, tracer_kwargs=options, suppress_diff_warning=True)
    traced = create_feature_extractor(
        model, return_nodes=[nodes[-1]], tracer_kwargs=options, suppress_diff_warning=True
    )
    x = images(name)
    with torch.no_grad():
        assert torch.equal(*traced(x).values(), model(x))


@pytest.mark.parametrize("name", [n for n in QUICK if "nano" in n])
def test_fx_trace_trains(name: str) -> None:
    model = build(name).train()
    options = dict(leaf_modules=get_notrace_modules(), autowrap_functions=get_notrace_functions())
    nodes, _ = get_graph_node_names(model, tracer_kwargs=options, suppress_diff_warning=True)
    traced = create_feature_extractor(
        model, return_nodes=[nodes[-1]], tracer_kwargs=options, suppress_diff_warning=True
    ).train()
    for _ in range(2):
        (logits,) = traced(images(name)).values()
        logits.sum().backward()
    assert [n for n, p in traced.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", [n if "nano" in n else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_every_model_compiles_as_one_graph(name: str) -> None:
    model = build(name).eval()
    x = images(name)
    rtol = 1e-4 if "nano" in name else 1e-3
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x), rtol=rtol, atol=rtol / 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_compiled_code_gives_the_same_values_and_gradients(name: str) -> None:
    model = build(name).train()
    x = images(name, batch=4)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.compile(model, fullgraph=True)(x).square().sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-3, atol=1e-3 * grad.abs().max().item())


@pytest.mark.parametrize("name", [n for n in KINDS if "bn" not in n])
def test_any_image_and_batch_size(name: str) -> None:
    model = build(name).eval()
    least = model.config.stride
    for batch, height, width in ((1, least, least), (3, 2 * least + 1, 3 * least - 1)):
        with torch.no_grad():
            assert model(torch.randn(batch, model.in_chans, height, width)).shape == (batch, model.num_classes)


@pytest.mark.parametrize("name", polynext.list_models())
def test_constructors_work_without_memory(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    assert all(t.is_meta for t in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_gradient_checkpointing_changes_memory_and_nothing_else(name: str) -> None:
    model = build(name).train()
    x = images(name)

    def step() -> tuple[list[torch.Tensor], int]:
        saved = 0

        def pack(t: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            saved += t.numel()
            return t

        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = model(x)
        y.square().sum().backward()
        return [p.grad.clone() for p in model.parameters()], saved

    plain, kept = step()
    model.set_grad_checkpointing()
    recomputed, kept_less = step()
    for a, b in zip(plain, recomputed, strict=True):
        torch.testing.assert_close(a, b)
    assert kept_less < kept / 2


def test_wrong_images_names_and_options_have_a_message() -> None:
    model = timm.create_model("cpolynext_tiny")
    with pytest.raises(polynext.PolyNeXtError, match=r"takes \(batch, 3, height, width\) but got \(1, 1, 64, 64\)"):
        model(torch.randn(1, 1, 64, 64))
    with pytest.raises(polynext.PolyNeXtError, match="reduces images by 32 but got 16x64"):
        model(torch.randn(1, 3, 16, 64))
    with pytest.raises(polynext.PolyNeXtError, match="reduces images by 32 but got 8x8"):
        timm.create_model("cpolynext_tiny_bn", img_size=8)
    with pytest.raises(polynext.PolyNeXtError, match="got a 10x10 feature map but holds statistics for 8x8"):
        timm.create_model("cpolynext_nano_bn")(torch.randn(1, 1, 10, 10))
    with pytest.raises(polynext.PolyNeXtError, match="'cpolynext_tinny': did you mean cpolynext_tiny"):
        polynext.create_model("cpolynext_tinny")
    with pytest.raises(polynext.PolyNeXtError, match=r"no weights tagged 'mnist': use cpolynext_lowres\.cifar10 or "):
        polynext.create_model("cpolynext_lowres.mnist")
    with pytest.raises(polynext.PolyNeXtError, match="no weights tagged 'in1k': use no tag"):
        check_model("cpolynext_nano.in1k")
    for name in ("cpolynext_nano", "cpolynext_lowres_bn", "monet_tiny"):
        with pytest.raises(polynext.PolyNeXtError, match=f"no published weights of {name}: .* cpolynext_tiny.in1k"):
            polynext.create_model(name, pretrained=True)
    with pytest.raises(polynext.PolyNeXtError, match="'NCHW' only"):
        model.forward_intermediates(torch.randn(1, 3, 64, 64), output_fmt="NLC")


def test_a_failing_download_has_a_message(monkeypatch) -> None:
    def offline(*_, **__) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", offline)
    with pytest.raises(polynext.PolyNeXtError, match=r"weights of cpolynext_lowres\.svhn cannot be downloaded"):
        polynext.create_model("cpolynext_lowres.svhn", pretrained=True)


@pytest.mark.parametrize(
    ("tagged", "classes", "accuracy"),
    [
        ("cpolynext_mnist_bn.mnist", "0123456789", 0.98),
        ("cpolynext_nano_bn.digits", "0123456789", 0.98),
        ("cpolynext_cipher_bn.cifar10", CIFAR10, 0.78),
        ("cpolynext_cipher_deep_bn.cifar10", CIFAR10, 0.86),
    ],
)
def test_shipped_weights_have_their_accuracy(tagged: str, classes: str, accuracy: float, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = polynext.load_run(tagged, pretrained=True)
    assert run.tagged_name == tagged and run.class_names == (classes.split() if " " in classes else list(classes))
    images, labels, _ = run.images("test", 10_000)
    model = polynext.create_model(tagged, pretrained=True).eval()
    with torch.no_grad():
        found, by_run = (
            network(torch.from_numpy(images).float()).argmax(dim=1).numpy() for network in (model, run.model)
        )
    assert (found == by_run).all() and (found == labels).mean() > accuracy
    assert float(read_metadata(shipped_weights(tagged))["test_accuracy"]) > 100 * accuracy


def randomise(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


def test_diagnostics_show_the_mean_of_a_scale_per_channel() -> None:
    model = randomise(polynext.models.create_variant("cpolynext_nano", "layerscale-one"))
    gamma = model.stages[0].cells[0].scale.gamma
    with Diagnostics(model).watching() as records:
        pass
    assert records["stages.0.cells.0"]["scales"] == gamma.mean(dim=1).tolist()


def test_tinys_scales_halve() -> None:
    start = CONFIGS["cpolynext_tiny"].scale_logits
    published = CONFIGS["cpolynext_lowres"].scale_logits  # these probabilities, as logits
    assert start == halving(6) == tuple(math.log(p / (1 - p)) for p in published)
