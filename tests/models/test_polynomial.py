"""Fully polynomial networks: recognised by their graph, folded without a change of value."""

import math
from functools import partial

import pytest
import timm
import torch
from torch import nn

import polynext
from polynext.acceleration.folding import FoldedStack
from polynext.circuit.degree import NotPolynomialError, is_polynomial, polynomial_degree
from polynext.models import Blocks, FullyPolynomialBlocks
from polynext.models.substitutes import NewestInput
from polynext.nn import PositionNorm2d
from tests import golden
from tests.models.test_polynext import build, images

NANO = ["cpolynext_nano_bn", "apolynext_nano_bn"]


@pytest.mark.parametrize("name", ["cpolynext_nano_bn", "apolynext_nano_bn", "cpolynext_lowres_bn"])
def test_fully_polynomial_models_have_the_degree_they_state(name: str) -> None:
    model = build(name).eval()
    degree = polynomial_degree(model, images(name))
    assert math.log2(degree) == pytest.approx(model.log2_degree)
    assert polynomial_degree(polynext.fold(model), images(name)) == degree


@pytest.mark.slow
@pytest.mark.parametrize("name", polynext.list_models(fully_polynomial=True))
def test_every_fully_polynomial_model_is_one(name: str) -> None:
    assert is_polynomial(build(name).eval(), images(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", polynext.list_models(fully_polynomial=False))
def test_no_other_model_is_polynomial(name: str) -> None:
    first_norm = {
        "monet": r"stages\.0\.blocks\.0\.norm",
        "dttn": r"stages\.0\.blocks\.0\.norm",
        "caformer": "stem.norm",
    }
    where = first_norm.get(name.split("_")[0], r"stages\.0\.cells\.0\.norm")
    with pytest.raises(NotPolynomialError, match=rf"layer_norm .* in {where}"):
        polynomial_degree(build(name).eval(), images(name))


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano", "resnet18"])
def test_other_models_are_not(name: str) -> None:
    x = torch.zeros(2, 3, 32, 32) if name == "resnet18" else images(name)
    with pytest.raises(NotPolynomialError, match=r"^(layer_norm|relu)"):
        polynomial_degree(timm.create_model(name).eval(), x)


def test_batch_statistics_are_not_polynomial() -> None:
    with pytest.raises(NotPolynomialError):
        polynomial_degree(build("cpolynext_nano_bn").train())


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f
        self.w = nn.Parameter(torch.rand(4, 4))

    def forward(self, x):
        return self.f(x, self.w)


@pytest.mark.parametrize(
    ("f", "degree"),
    [
        (lambda x, w: x @ w.sigmoid().softmax(-1) / w.exp().sum(), 1),
        (lambda x, w: (x @ w) * x + 1, 2),
        (lambda x, w: (x @ x.mT) ** 3, 6),
        (lambda x, w: torch.addcmul(w, x, x).square(), 4),
        (lambda x, w: torch.cat([x, x * x]).flip(0)[2:].sum(), 2),
        (lambda x, w: w * 2 + torch.zeros_like(x), 0),
        (lambda x, w: torch.einsum("ij,jk,kl->il", x, w, x), 2),
        (lambda x, w: x[torch.arange(2)].half().float(), 1),
    ],
)
def test_degrees_are_counted(f, degree: int) -> None:
    assert polynomial_degree(Function(f), torch.rand(4, 4)) == degree


@pytest.mark.parametrize(
    ("f", "culprit"),
    [
        (lambda x, w: torch.relu(x @ w), "relu"),
        (lambda x, w: nn.functional.gelu(x), "gelu"),
        (lambda x, w: (x @ w).softmax(-1), "softmax"),
        (lambda x, w: w / x, "div"),
        (lambda x, w: x**0.5, "pow"),
        (lambda x, w: w**x, "pow"),
        (lambda x, w: x ** float("inf"), "pow"),
        (lambda x, w: x.abs(), "abs"),
        (lambda x, w: x.max(), "max"),
        (lambda x, w: (x > 0) * w, "gt"),
        (lambda x, w: w[x.long()[0]], "to|index"),
        (lambda x, w: torch.div(x, 2, rounding_mode="floor"), "div"),
        (lambda x, w: x.to(torch.int32).float(), "to"),
        (lambda x, w: w.gather(0, x.long()), "to|gather"),
    ],
)
def test_the_first_operation_that_is_not_polynomial_is_named(f, culprit: str) -> None:
    with pytest.raises(NotPolynomialError, match=culprit):
        polynomial_degree(Function(f), torch.rand(4, 4))
    assert not is_polynomial(Function(f), torch.rand(4, 4))


@pytest.mark.parametrize("name", ["cpolynext_t_bn", "apolynext_t_bn"])
def test_folding_keeps_the_published_networks_answers(name: str) -> None:
    model = timm.create_model(golden.NETWORKS[name][0]).eval()
    model.load_state_dict(polynext.from_published(golden.checkpoint(name)))
    folded = polynext.fold(model)
    with torch.no_grad():
        logits, expected = folded(golden.images(224)), model(golden.images(224))
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    assert not any(p.requires_grad for p in folded.parameters())


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano", *NANO])
def test_folding_a_trained_network(name: str) -> None:
    model = build(name).train()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    with torch.no_grad():
        for _ in range(50):  # statistics that belong to the weights
            model(images(name, batch=16))
    model.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        x = images(name)
        expected = model(x)
        folded = polynext.fold(model)(x)
    assert (folded - expected).abs().max() < 1e-5 * expected.abs().max()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("norm", [partial(PositionNorm2d, size=(8, 8), beta=True), nn.Identity])
def test_folding_other_norms(norm) -> None:
    class OtherNorm(Blocks):
        def norm(self, size):
            return norm

    model = timm.create_model("cpolynext_nano", blocks=OtherNorm()).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(polynext.fold(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_folded_network_names_the_sizes_that_do_not_go_together() -> None:
    folded = polynext.fold(build("cpolynext_nano_bn").eval())
    with pytest.raises(polynext.PolyNeXtError, match="got a 9x9 feature map but holds statistics for 8x8"):
        folded(torch.randn(1, 1, 9, 9))


def test_folding_where_only_the_newest_cell_is_an_input() -> None:
    class NewestOnly(FullyPolynomialBlocks):
        def skip(self, stage, **dd):
            return NewestInput()

    model = timm.create_model("cpolynext_nano", blocks=NewestOnly(), img_size=8).eval()
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(polynext.fold(model)(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cpolynext_lowres_bn", "apolynext_nano_bn"])
def test_no_stack_of_a_folded_network_holds_maps(name: str) -> None:
    """Norms are a number for each position and one for each channel, and not one for each of both."""
    stacks = [module for module in polynext.fold(timm.create_model(name)).modules() if isinstance(module, FoldedStack)]
    constants = [buffer for stack in stacks for buffer in stack.buffers() if buffer.ndim == 4]
    assert constants
    assert all(buffer.shape[1] == 1 or buffer.shape[2:] == (1, 1) for buffer in constants)


def test_a_module_that_names_no_image_size_needs_an_example() -> None:
    with pytest.raises(polynext.PolyNeXtError, match="give an example"):
        polynomial_degree(nn.Linear(2, 2))


def operations(model: nn.Module, x: torch.Tensor) -> set[str]:
    graph = torch.export.export(model, (x,)).graph
    return {n.target.overloadpacket.__name__ for n in graph.nodes if hasattr(n.target, "overloadpacket")}


@pytest.mark.parametrize("name", NANO)
def test_a_folded_graph_holds_additions_multiplications_and_linear_maps_only(name: str) -> None:
    arithmetic = {"add", "mul", "addcmul", "linear", "conv2d", "matmul", "mean", "sum"}
    moving = {"permute", "transpose", "flatten", "view", "reshape", "unflatten", "chunk", "flip", "slice", "select",
              "contiguous", "dropout", "expand", "unsqueeze", "squeeze", "alias", "_to_copy", "to"}  # fmt: skip
    assert operations(polynext.fold(build(name).eval()), images(name)) <= arithmetic | moving
