"""The polynomial degree of networks and functions, read from their graphs."""

import math

import pytest
import timm
import torch
from torch import nn

import polynext
from polynext.circuit.degree import NotPolynomialError, is_polynomial, polynomial_degree
from tests.models.test_polynext import build, images


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
def test_other_models_are_not_polynomial(name: str) -> None:
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


def test_a_module_that_names_no_image_size_needs_an_example() -> None:
    with pytest.raises(polynext.PolyNeXtError, match="give an example"):
        polynomial_degree(nn.Linear(2, 2))
