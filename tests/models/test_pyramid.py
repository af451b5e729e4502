"""MONet and DTTN: the published counts, their formulas, and the interface of a timm model."""

import pytest
import timm
import torch
from timm.models import group_parameters
from torch import nn

import polynext
from polynext.circuit import lower, polynomial_degree
from polynext.circuit.rewrites import expand_sums, factor_sums, merge_linear_maps
from polynext.models import DTTN, MONet
from polynext.models.costs import count_macs, count_parameters
from polynext.models.dttn import DttnBlock
from polynext.models.monet import shift
from polynext.nn import LayerNorm2d

SIZES = [
    ("monet_tiny", 10.34e6, 2.70e9),
    ("monet_small", 32.88e6, 6.71e9),
    ("dttn_tiny", 7.80e6, 3.37e9),
    ("dttn_small", 12.91e6, 4.26e9),
    ("dttn_base", 35.17e6, 10.58e9),
]
NETWORKS = [MONet, DTTN]


def small(network, **options):
    """A block of each kind, in two stages."""
    torch.manual_seed(0)
    return network(depths=(2, 1), widths=(32, 64), num_classes=5, **options)


def settled(model: nn.Module) -> nn.Module:
    """In eval mode, with running statistics and parameters that are not those of the start."""
    for _ in range(60):
        model(torch.randn(8, 3, 8, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("polynomial", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_torch_fx_traces_them(network, polynomial: bool) -> None:
    model, x = small(network, polynomial=polynomial).eval(), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))


@pytest.mark.parametrize("name, parameters, macs", SIZES)
def test_the_public_codes_sizes(name: str, parameters: float, macs: float) -> None:
    model = timm.create_model(name, device="meta")
    assert count_parameters(model) == pytest.approx(parameters, abs=5e3)
    assert count_macs(model, (3, 224, 224)) == pytest.approx(macs, abs=5e6)


def test_a_fully_polynomial_monet_has_as_many_parameters() -> None:
    counts = [count_parameters(timm.create_model(name, device="meta")) for name in ("monet_tiny", "monet_tiny_bn")]
    assert counts[0] == counts[1]


def test_the_shift_moves_each_quarter_its_way() -> None:
    rows = torch.arange(4.0)[None, :, None, None].expand(1, 4, 4, 4)
    columns = rows.transpose(1, 2)
    assert shift(rows)[0, :, 0].T.tolist() == [[0, 0, 1, 2], [1, 2, 3, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert shift(columns)[0, 0].T.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 2], [1, 2, 3, 3]]


@pytest.mark.parametrize("polynomial", [False, True])
def test_dttns_block(polynomial: bool) -> None:
    """Against its formula, each norm written out."""
    block = DttnBlock(4, 12, polynomial, 0.0).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(3, 4, 5, 5, dtype=torch.double)

    def normed(y: torch.Tensor, norm: nn.Module, axes: tuple[int, ...], eps: float) -> torch.Tensor:
        centred = y - y.mean(axes, keepdim=True)
        y = centred / (centred.square().mean(axes, keepdim=True) + eps).sqrt()
        return y * norm.weight[:, None, None] + norm.bias[:, None, None]

    left, right = block.l2(block.l1(x)), block.r2(block.r1(x))
    if polynomial:
        product = normed(left, block.norm_l, (0, 2, 3), 1e-5) * normed(right, block.norm_r, (0, 2, 3), 1e-5)
    else:
        assert isinstance(block.norm, LayerNorm2d)
        product = normed(left * right, block.norm, (1,), 1e-6)
    expected = x + block.alpha * normed(block.p(product), block.norm_p, (0, 2, 3), 1e-5)
    torch.testing.assert_close(block(x), expected)
    assert (block.l1.groups, block.r2.groups) == (4, 12)


def test_every_other_block_of_dttn_is_wide() -> None:
    blocks = timm.create_model("dttn_tiny", device="meta").stages[1].blocks
    assert [block.r1.out_channels for block in blocks] == [128, 384] * 3


@pytest.mark.parametrize("name", ["monet_tiny", "dttn_tiny"])
def test_a_timm_model(name: str) -> None:
    model = timm.create_model(name, num_classes=5).eval()
    images = torch.randn(2, 3, 64, 64)
    features, stages = model.forward_intermediates(images)
    assert torch.equal(features, stages[-1]) and torch.equal(features, model.forward_features(images))
    assert [s.shape[1] for s in stages] == [i["num_chs"] for i in model.feature_info]
    logits = model(images)
    assert logits.shape == (2, 5) and torch.equal(model.forward_head(features), logits)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    maps = timm.create_model(name, features_only=True)(images)
    assert [m.shape[-1] for m in maps] == [16, 8, 4, 2]
    model.reset_classifier(7)
    assert model(images).shape == (2, 7) and model.get_classifier().out_features == 7
    model.reset_classifier(7, "")
    assert model(images).shape == (2, 7, 2, 2)
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), features)
    model.reset_classifier(0, "avg")
    torch.testing.assert_close(model(images), features.mean(dim=(2, 3)))
    groups = group_parameters(model, model.group_matcher(coarse=False))
    assert sum(map(len, groups.values())) == len(list(model.parameters()))


@pytest.mark.parametrize("network", NETWORKS)
def test_stochastic_depth_rises_and_dropout_is_in_the_head(network) -> None:
    model = small(network, drop_path_rate=0.4, drop_rate=0.3)
    rates = [getattr(b.drop_path, "drop_prob", 0.0) for stage in model.stages for b in stage.blocks]
    assert rates == pytest.approx([0.0, 0.2, 0.4])
    assert [m.p for m in model.head.modules() if isinstance(m, nn.Dropout)] == [0.3]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("polynomial", [False, True])
def test_folding_changes_no_logits(network, polynomial: bool) -> None:
    model = settled(small(network, polynomial=polynomial)).double()
    images = torch.randn(3, 3, 8, 8, dtype=torch.double)
    folded = polynext.fold(model)
    torch.testing.assert_close(folded(images), model(images))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())


@pytest.mark.parametrize("network", NETWORKS)
def test_a_fully_polynomial_one_becomes_a_circuit_of_its_degree(network) -> None:
    model = settled(small(network, polynomial=True)).double()
    images = torch.randn(2, 3, 8, 8, dtype=torch.double)
    circuit = lower(model, images)
    expected = model(images).detach().numpy()
    assert abs(circuit(images.numpy()) - expected).max() < 1e-9 * abs(expected).max()
    assert circuit.degree() == polynomial_degree(model, images) == 2**model.log2_degree
    products = sum(hasattr(module, "degree") for module in model.modules())
    assert circuit.count()["product"] == products  # a linear layer on a map is no product with its weights
    assert expand_sums(merge_linear_maps(factor_sums(circuit))).levels(shared_rescale=True) == products + 1


@pytest.mark.parametrize("name", [f"{name}_bn" for name, *_ in SIZES])
def test_an_untrained_one_is_finite_in_eval_mode(name: str) -> None:
    assert timm.create_model(name).eval()(torch.randn(1, 3, 32, 32)).isfinite().all()


def test_mistakes() -> None:
    model = timm.create_model("monet_tiny", device="meta")
    with pytest.raises(polynext.PolyNeXtError, match="'NCHW' only"):
        model.forward_intermediates(torch.empty(1, 3, 64, 64, device="meta"), output_fmt="NLC")
    with pytest.raises(polynext.PolyNeXtError, match="global_pool is 'median'"):
        model.reset_classifier(5, "median")


@pytest.mark.parametrize("network", NETWORKS)
def test_checkpointing_changes_no_gradient(network) -> None:
    model = small(network)
    images = torch.randn(2, 3, 64, 64)
    gradients = []
    for enable in (False, True):
        model.zero_grad()
        model.set_grad_checkpointing(enable)
        model(images).sum().backward()
        gradients.append(model.stem[0].weight.grad.clone())
    torch.testing.assert_close(*gradients)
