"""Circuits: the same function as the model, before and after every rewrite."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import polynext
from polynext.circuit.degree import NotPolynomialError, polynomial_degree
from polynext.circuit.graph import Circuit, Input, Linear, Product, Sum
from polynext.circuit.lowering import lower
from polynext.circuit.maps import Collect, Convolution, Dense, Gather, LinearMap, Scale, chain
from polynext.circuit.rewrites import (
    expand_sums,
    factor_sums,
    inverse,
    merge_linear_maps,
    normalise,
    rebase,
    split,
    structured,
)
from polynext.cli import main
from polynext.models import is_polynext
from tests.circuit.conftest import small_network, with_statistics


def same(circuit: Circuit, model: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        wanted = model.double()(images.double()).numpy()
    np.testing.assert_allclose(circuit(images.numpy()), wanted, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["cpolynext_nano_bn", "apolynext_nano_bn"])
def test_a_circuit_is_its_model(name: str) -> None:
    images = torch.randn(8, 1, 8, 8)
    model = with_statistics(polynext.create_model(name, in_chans=1, num_classes=10), images)
    circuit = lower(model)
    same(circuit, model, images[:3])
    assert circuit.degree() == polynomial_degree(model.float(), images)


@pytest.mark.slow
@pytest.mark.parametrize("name", polynext.list_models(fully_polynomial=True))
def test_every_fully_polynomial_model_becomes_a_circuit(name: str) -> None:
    channels, side, _ = timm.get_pretrained_cfg(name).input_size
    side = min(side, 64)  # attention over 224 pixels would take 20 GB
    model = polynext.create_model(name, num_classes=10, **({"img_size": side} if is_polynext(name) else {}))
    images = torch.randn(2, channels, side, side)
    model = with_statistics(model, images) if "lowres" in name or "micro" in name else model.eval()
    same(lower(model, images), model, images[:1])


def test_what_is_not_a_polynomial_is_named() -> None:
    with pytest.raises(NotPolynomialError, match="layer_norm"):
        lower(polynext.create_model("cpolynext_nano").eval())


class OwnNetwork(nn.Module):
    """Operations that circuits support beyond those of PolyNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, stride=2, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x = x**3 - 2 * x + F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)
        x = torch.cat([x[:, :2], x[:, 2:].flip(1).roll(1, 2)], dim=1)
        tokens = x.flatten(2).transpose(1, 2)
        return self.fc((tokens @ tokens.transpose(1, 2) / 7 + 1).square() @ tokens).mean(dim=1)


def test_own_networks_become_circuits() -> None:
    images = torch.randn(16, 2, 8, 8)
    model = with_statistics(OwnNetwork(), images)
    same(lower(model, images), model, images[:4])


class OnTheImage(nn.Module):
    """Operations with the image itself as an operand."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x + x * x).mean(dim=(2, 3)) + x.sum(dim=(1, 2, 3), keepdim=True).flatten(1)


def test_the_image_itself_can_be_an_operand() -> None:
    images = torch.randn(4, 2, 3, 3)
    same(lower(OnTheImage(), images), OnTheImage(), images)


IMAGES = np.random.default_rng(0).normal(size=(5, 1, 4, 4))
REWRITES = {
    "factored": factor_sums,
    "merged": lambda c: merge_linear_maps(factor_sums(c)),
    "expanded": lambda c: expand_sums(merge_linear_maps(c)),
    "materialised": lambda c: expand_sums(rebase(f := merge_linear_maps(c), materialised=shared(f, Sum))),
    "rebased": lambda c: expand_sums(rebase(f := merge_linear_maps(c), shared(f, Linear)[-1])),
    "split": lambda c: split(expand_sums(merge_linear_maps(c)), 16),
    "split unevenly": lambda c: split(expand_sums(merge_linear_maps(c)), 48),
    "normalised": lambda c: normalise(expand_sums(merge_linear_maps(c)), IMAGES, 3.0),
    "structured": lambda c: structured(expand_sums(c)),
}


def shared(circuit: Circuit, kind: type) -> list[Any]:
    """The values of a kind with several users; linear ones only if they can be inverted."""
    users = circuit.users()
    found = [n for n in circuit.order if isinstance(n, kind) and len(users[n]) > 1]
    return [n for n in found if kind is Sum or inverse(n.map) is not None]


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite_keeps_the_function(name: str) -> None:
    model = small_network(stacks=2)
    circuit = lower(model)
    rewritten = REWRITES[name](circuit)
    assert rewritten is not circuit
    same(rewritten, model, torch.randn(4, 1, 4, 4))
    assert rewritten.degree() == circuit.degree() == 32


def test_rewrites_save_levels() -> None:
    lowered = lower(small_network(stacks=2))
    merged = merge_linear_maps(lowered)
    expanded = expand_sums(merged)
    levels = [lowered.levels(), merged.levels(), expanded.levels(), expanded.levels(shared_rescale=True)]
    assert levels == sorted(levels, reverse=True) and len(set(levels)) == 4
    # The minimum: one level for each product with the linear map before it, and one for the classifier.
    assert levels[-1] == expanded.multiplicative_depth() + 1 == 6


def test_a_head_becomes_one_product() -> None:
    circuit = expand_sums(merge_linear_maps(factor_sums(lower(small_network()))))
    output = circuit.output
    assert isinstance(output, Linear) and isinstance(output.source, Product)


def test_normalised_values_are_near_the_target() -> None:
    images = np.random.default_rng(0).normal(size=(20, 1, 4, 4))
    circuit = normalise(expand_sums(merge_linear_maps(lower(small_network(stacks=2)))), images, 8.0)
    values = circuit.values(images)
    operands = [s for node in circuit.order if isinstance(node, Product) for s in node.sources]
    largest = [np.abs(values[o]).max() for o in operands]
    assert min(largest) >= 8 / 2**0.51 and max(largest) <= 8 * 2**0.51


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    groups, into, out = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    size = tuple(draw(st.integers(d * (k - 1) + 1, 7)) for k, d in zip(kernel, dilation, strict=True))
    weight = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(groups * out, into, *kernel))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    return Convolution(weight, (size[0], size[1]), stride, padding, dilation, groups)


@given(convolutions())
@settings(deadline=None, max_examples=60)
def test_a_convolution_is_pytorchs_and_its_matrix(c: Convolution) -> None:
    x = np.random.default_rng(0).normal(size=(2, c.n_in))
    maps = torch.from_numpy(x).reshape(2, -1, *c.size)
    wanted = F.conv2d(maps, torch.from_numpy(c.weight), None, c.stride, c.padding, c.dilation, c.groups)
    np.testing.assert_allclose(c(x), wanted.reshape(2, -1).numpy(), atol=1e-12)
    np.testing.assert_allclose((c.matrix() @ x.T).T, c(x), atol=1e-12)


@pytest.mark.parametrize(
    "linear",
    [
        Gather(np.array([3, -1, 0, 0, 2]), 4),
        Collect(np.array([0, 1, 0, 1]), 2, 0.5),
        Scale(np.array([1.0, -2.0, 0.0])),
        Dense(np.arange(6.0).reshape(2, 3), rows=2),
        chain([Gather(np.array([1, -1, 0]), 2), Gather(np.array([2, 2, 1]), 3), Scale(np.array([1.0, 2.0, 3.0]))]),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_map_is_its_matrix(linear: LinearMap) -> None:
    x = np.random.default_rng(0).normal(size=(3, linear.n_in))
    np.testing.assert_allclose(linear(x), (linear.matrix() @ x.T).T, atol=1e-12)


def test_an_inverse_undoes_its_map_and_a_bad_one_is_refused() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 4))
    mapping = Dense(weight, rows=3)
    found = inverse(mapping)
    assert found is not None
    backwards, condition = found
    assert condition >= 1
    x = np.random.default_rng(1).normal(size=(2, 12))
    np.testing.assert_allclose(backwards(mapping(x)), x, atol=1e-10)
    assert inverse(Dense(np.ones((4, 4)))) is None
    assert inverse(Dense(np.ones((3, 4)))) is None
    image = Input(shape=(4,))
    value = Linear(shape=(4,), map=Dense(np.ones((4, 4))), source=image)
    assert rebase(Circuit(image, value), value) is None


def test_the_command_shows_what_rewriting_saves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["circuit", "cpolynext_nano_bn"]) == 0
    shown = capsys.readouterr().out
    assert "degree 32 and multiplicative depth 5" in shown
    assert shown.strip().splitlines()[-1].split()[-1] == "6"
    assert main(["circuit", "cpolynext_nano"]) == 2
    assert "'cpolynext_nano' is not fully polynomial" in capsys.readouterr().err
