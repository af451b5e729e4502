"""Folding: the same results with constants absorbed into the weights."""

from functools import partial

import pytest
import timm
import torch
from torch import nn

import polynext
from polynext.acceleration.folding import FoldedStack
from polynext.models import Blocks, FullyPolynomialBlocks
from polynext.models.substitutes import NewestInput
from polynext.nn import LayerScale, PositionNorm2d
from tests import golden
from tests.models.test_polynext import build, images, randomise


class LayerScaled(Blocks):
    def scale(self, config, stage, **dd) -> nn.Module:
        return LayerScale(stage.width, len(config.scale_logits), start=0.1, **dd)


class LayerScaledPolynomial(LayerScaled, FullyPolynomialBlocks):
    """With the shift that the published norms do not have."""

    def norm(self, size):
        return partial(PositionNorm2d, size=size, beta=True, initial_var=self.initial_var)


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano"])
@pytest.mark.parametrize("blocks", [LayerScaled(), LayerScaledPolynomial()])
def test_folding_absorbs_a_scale_per_channel(name: str, blocks: Blocks) -> None:
    model = randomise(timm.create_model(name, blocks=blocks, img_size=8))
    x = images(name)
    with torch.no_grad():
        torch.testing.assert_close(polynext.fold(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_folding_a_branch_of_another_kind_is_refused() -> None:
    class Pooling(Blocks):
        def mixer(self, stage, size, **dd) -> nn.Module:
            return nn.AvgPool2d(3, stride=1, padding=1)

    with pytest.raises(polynext.PolyNeXtError, match="cannot absorb the scale of AvgPool2d"):
        polynext.fold(timm.create_model("cpolynext_nano", blocks=Pooling()))


NANO = ["cpolynext_nano_bn", "apolynext_nano_bn"]


@pytest.mark.parametrize("name", ["cpolynext_t_bn", "apolynext_t_bn"])
def test_folding_keeps_the_logits_of_published_networks(name: str) -> None:
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


def test_a_folded_network_names_the_sizes_that_do_not_match() -> None:
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


def operations(model: nn.Module, x: torch.Tensor) -> set[str]:
    graph = torch.export.export(model, (x,)).graph
    return {n.target.overloadpacket.__name__ for n in graph.nodes if hasattr(n.target, "overloadpacket")}


@pytest.mark.parametrize("name", NANO)
def test_a_folded_graph_holds_additions_multiplications_and_linear_maps_only(name: str) -> None:
    arithmetic = {"add", "mul", "addcmul", "linear", "conv2d", "matmul", "mean", "sum"}
    moving = {"permute", "transpose", "flatten", "view", "reshape", "unflatten", "chunk", "flip", "slice", "select",
              "contiguous", "dropout", "expand", "unsqueeze", "squeeze", "alias", "_to_copy", "to"}  # fmt: skip
    assert operations(polynext.fold(build(name).eval()), images(name)) <= arithmetic | moving
