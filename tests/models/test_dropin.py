"""Polynomial modules in other networks."""

from pathlib import Path

import pytest
import timm
import torch
from timm.models import metaformer
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

import polynext
from polynext.errors import PolyNeXtError
from polynext.export import check, export
from polynext.models.dropin import image_size
from polynext.models.tokens import TokenAttention
from polynext.nn import PolyAttention, PolyConv, PolyMLP


@pytest.mark.parametrize("match", ["params", "flops"])
@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("caformer_s18", {"PolyConv": 6, "PolyAttention": 12, "PolyMLP": 18}),
        ("convformer_s18", {"PolyConv": 18, "PolyMLP": 18}),
        ("convnextv2_atto", {"PolyConv": 12, "PolyMLP": 12}),
        ("convnext_tiny", {"PolyConv": 18, "PolyMLP": 18}),
        ("vit_tiny_patch16_224", {"PolyAttention": 12, "PolyMLP": 12}),
    ],
)
def test_replacing_keeps_the_cost(name: str, modules: dict[str, int], match) -> None:
    plain = timm.create_model(name, num_classes=10, device="meta")
    before = sum(p.numel() for p in plain.parameters())
    model, found = polynext.replace_mixers(plain, match=match)
    after = sum(p.numel() for p in model.parameters())
    assert found.parameters == (before, after)
    assert abs(found.parameter_change if match == "params" else found.mac_change) < 0.03
    kinds = list(found.replaced.values())
    assert {kind: kinds.count(kind) for kind in set(kinds)} == modules
    for kind, cls in (("PolyConv", PolyConv), ("PolyAttention", PolyAttention), ("PolyMLP", PolyMLP)):
        assert sum(isinstance(m, cls) for m in model.modules()) == modules.get(kind, 0)
    assert str(found).count("%") == 2


def test_one_kind_alone_and_other_channels() -> None:
    model = timm.create_model("convnextv2_atto", in_chans=1, num_classes=3, device="meta")
    _, found = polynext.replace_mixers(model, attention=None, mlp=None)
    assert set(found.replaced.values()) == {"PolyConv"}
    assert abs(found.parameter_change) < 0.03


def small_caformer() -> nn.Module:
    return metaformer.MetaFormer(
        depths=(1, 1, 1, 1),
        dims=(16, 16, 32, 32),
        num_classes=5,
        token_mixers=[metaformer.SepConv, metaformer.SepConv, metaformer.Attention, metaformer.Attention],
        norm_layers=[metaformer.LayerNorm2dNoBias] * 2 + [metaformer.LayerNormNoBias] * 2,
        res_scale_init_values=(None, None, 0.7, 0.7),
    )


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def test_other_modules_stay() -> None:
    """With mixers that add nothing, the network with its attention replaced is the one it was."""
    model = small_caformer().eval()
    images = torch.randn(2, 3, 64, 96)
    for block in model.modules():
        if isinstance(block, metaformer.MetaFormerBlock) and isinstance(block.token_mixer, metaformer.Attention):
            handle = block.token_mixer.register_forward_hook(lambda module, inputs, output: output * 0)
            block.handle = handle
    wanted = model(images)
    weights = {k: v.clone() for k, v in model.state_dict().items() if "token_mixer" not in k}

    def nothing(channels: int, heads: int, head_dim: int, norm, **dd) -> nn.Module:
        module = Nothing()
        module.weight = nn.Parameter(torch.zeros(4 * channels * channels, **dd))  # costs what attention did
        return module

    model, _ = polynext.replace_mixers(model, conv=None, attention=nothing, mlp=None)
    kept = {k.replace(".inner", ""): v for k, v in model.state_dict().items() if "token_mixer" not in k}
    assert kept.keys() == weights.keys()
    assert all(torch.equal(kept[k], weights[k]) for k in weights)
    torch.testing.assert_close(model(images), wanted)


def test_the_image_size_is_what_the_network_was_built_for() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", img_size=(32, 48), patch_size=4, depth=1, num_classes=5)
    assert image_size(vit) == (3, 32, 48)
    vit, _ = polynext.replace_mixers(vit)
    assert vit(torch.randn(1, 3, 32, 48)).shape == (1, 5)
    assert image_size(timm.create_model("convnext_atto", device="meta")) == (3, 224, 224)


@pytest.mark.parametrize("match", ["params", "flops"])
def test_an_error_leaves_the_network_unchanged(match) -> None:
    def too_wide(channels: int, ratio: float, **dd) -> nn.Module:
        return PolyMLP(channels, 64, **dd)

    model = small_caformer()
    before = str(model)
    with pytest.raises(PolyNeXtError, match="change by"):
        polynext.replace_mixers(model, mlp=too_wide, match=match)
    assert str(model) == before
    assert all(module.training for module in model.modules())


def test_any_module_can_replace_an_mlp_among_maps() -> None:
    """Not ours only: what the maker returns gets the maps (B, C, H, W)."""

    def gelu_mlp(channels: int, ratio: float, device=None, dtype=None) -> nn.Module:
        width = int(channels * ratio)
        dd = dict(device=device, dtype=dtype)
        return nn.Sequential(nn.Conv2d(channels, width, 1, **dd), nn.GELU(), nn.Conv2d(width, channels, 1, **dd))

    model, _ = polynext.replace_mixers(small_caformer(), mlp=gelu_mlp)
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 5)


def test_attention_on_tokens_is_attention_on_maps() -> None:
    attention = PolyAttention(32, heads=2, head_dim=8)
    x = torch.randn(2, 32, 4, 6)
    tokens = TokenAttention(attention, prefix=0, grid=(4, 6))(x.flatten(2).transpose(1, 2))
    torch.testing.assert_close(tokens, attention(x).flatten(2).transpose(1, 2))


def test_class_tokens_take_part() -> None:
    attention = TokenAttention(PolyAttention(32, heads=2, head_dim=8, norm=nn.Identity), prefix=2, grid=(4, 4))
    x = torch.randn(1, 18, 32, requires_grad=True)
    y = attention(x)
    assert y.shape == x.shape
    (from_class,) = torch.autograd.grad(y[:, :2].sum(), x, retain_graph=True)
    assert (from_class[0].abs().sum(dim=1) > 0).all()
    (from_patches,) = torch.autograd.grad(y[:, 2:].sum(), x)
    assert (from_patches[0].abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: polynext.replace_mixers(timm.create_model("test_resnet")), "ResNet has nothing to replace"),
        (
            lambda: polynext.replace_mixers(small_caformer(), conv=None, attention=None, mlp=None),
            "MetaFormer has nothing to replace",
        ),
        (lambda: polynext.replace_mixers(small_caformer(), match="size"), "match is 'size'"),
        (lambda: timm.create_model("caformer_s18_poly", pretrained=True), "no published weights"),
        (
            lambda: TokenAttention(PolyAttention(32), prefix=0, grid=None)(torch.zeros(1, 12, 32)),
            "12 patches are neither",
        ),
        (lambda: TokenAttention(nn.Identity(), prefix=1, grid=None), "Identity cannot replace attention among class"),
    ],
)
def test_mistakes(call, message: str) -> None:
    with pytest.raises(PolyNeXtError, match=message):
        call()


def test_the_registered_model_is_a_timm_model() -> None:
    model = timm.create_model("caformer_s18_poly", num_classes=7)
    assert abs(sum(p.numel() for p in model.parameters()) / 24_310_000 - 1) < 0.03
    assert sum(isinstance(m, PolyAttention) for m in model.modules()) == 12
    images = torch.randn(2, 3, 64, 96)
    model(images).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    model.eval()
    with torch.no_grad():
        features = model.forward_intermediates(images, intermediates_only=True)
        backbone = timm.create_model("caformer_s18_poly", features_only=True).eval()
        assert [f.shape[1:] for f in features] == [f.shape[1:] for f in backbone(images)]
        assert timm.data.resolve_model_data_config(model)["input_size"] == (3, 224, 224)
        _, nodes = get_graph_node_names(model)
        traced = create_feature_extractor(model, nodes[-1:])
        torch.testing.assert_close(next(iter(traced(images).values())), model(images))


def test_the_result_learns_and_exports(tmp_path: Path) -> None:
    model, _ = polynext.replace_mixers(small_caformer(), match="params")
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    export(model.eval(), (3, 32, 32), tmp_path / "model.pt2", "torch")
    assert check(model, tmp_path / "model.pt2", {"random": images})["random"] < 1e-4
