"""Scripted and traced models: the functions that the eager ones are."""

import copy
import io

import pytest
import torch
from timm.models import get_notrace_functions, get_notrace_modules
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

import polynext
from polynext.acceleration import restore
from polynext.models import DTTN, MONet
from polynext.models.backbone import check_image
from polynext.nn import PolyAttention
from polynext.nn.norm import check_size
from tests.models.test_dropin import small_caformer
from tests.models.test_polynext import NAMES, build, images, randomise

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning"),
    # A fully polynomial network compares the size of its maps with that of its statistics; a trace is for that size.
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

NANO = [name for name in NAMES if "nano" in name]
SMALL = [*NANO, "cpolynext_micro", "cpolynext_micro_bn"]
LARGER = [name for name in polynext.list_models() if name not in SMALL]


def assert_same_function(model: nn.Module, x: torch.Tensor) -> None:
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            expected = model(x)
            for compiled in (scripted, traced):
                for _ in range(2):  # from its second run on, TorchScript optimises by what it saw in the first
                    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model(name: str) -> None:
    assert_same_function(randomise(build(name)), images(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_every_model(name: str) -> None:
    assert_same_function(build(name).eval(), images(name))


@pytest.mark.parametrize("name", NANO)
def test_a_folded_model(name: str) -> None:
    assert_same_function(restore(polynext.fold(randomise(build(name)))), images(name))


@pytest.mark.parametrize("network", [MONet, DTTN])
@pytest.mark.parametrize("polynomial", [False, True])
def test_a_prior_network(network, polynomial: bool) -> None:
    model = network(depths=(2, 1), widths=(32, 64), num_classes=3, polynomial=polynomial).eval()
    assert_same_function(model, torch.randn(2, 3, 32, 32))


def test_a_metaformer_with_polynomial_mixers() -> None:
    model, _ = polynext.replace_mixers(small_caformer())
    assert_same_function(model.eval(), torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize("normalisation", ["l1", "row_sum", "softmax"])
@pytest.mark.parametrize("window", [None, 2, 4])
def test_scripted_attention(normalisation, window: int | None) -> None:
    size = (6, 5) if normalisation == "row_sum" else None
    attention = PolyAttention(8, p=3, normalisation=normalisation, size=size, window=window).eval()
    x = torch.randn(2, 8, 6, 5)
    torch.testing.assert_close(torch.jit.script(attention)(x), attention(x))


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano"])
def test_a_trace_and_a_file_take_any_batch_and_image_size(name: str) -> None:
    model = randomise(build(name))
    for compiled in (torch.jit.script(model), torch.jit.trace(model, images(name))):
        file = io.BytesIO()
        torch.jit.save(compiled, file)
        file.seek(0)
        x = torch.randn(3, 1, 13, 10)
        torch.testing.assert_close(torch.jit.load(file)(x), model(x))


@pytest.mark.parametrize("name", NANO)
def test_gradients_of_a_scripted_model(name: str) -> None:
    model = randomise(build(name))
    x = images(name)
    expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    scripted = torch.jit.script(model)
    gradients = torch.autograd.grad(scripted(x).square().sum(), [*scripted.parameters()])
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("name", NANO)
def test_an_fx_graph_can_be_scripted(name: str) -> None:
    model, x = randomise(build(name)), images(name)
    options = dict(leaf_modules=get_notrace_modules(), autowrap_functions=get_notrace_functions())
    _, nodes = get_graph_node_names(model, tracer_kwargs=options, suppress_diff_warning=True)
    graph = create_feature_extractor(model, nodes[-1:], tracer_kwargs=options, suppress_diff_warning=True)
    (logits,) = torch.jit.script(graph)(x).values()
    torch.testing.assert_close(logits, model(x))


def test_scripted_checks_name_the_mistake() -> None:
    check = torch.jit.script(check_image)
    with pytest.raises(torch.jit.Error, match=r"takes \(batch, 1, height, width\) but got \(1, 3, 8, 8\)"):
        check(torch.randn(1, 3, 8, 8), 1, 2)
    with pytest.raises(torch.jit.Error, match="reduces images by 2 but got 1x8 pixels"):
        check(torch.randn(1, 1, 1, 8), 1, 2)
    with pytest.raises(torch.jit.Error, match="PositionNorm2d got a 9x9 feature map but holds statistics for 8x8"):
        torch.jit.script(check_size)("PositionNorm2d", (9, 9), (8, 8))


def test_a_scripted_model_learns_statistics() -> None:
    model, x = build("cpolynext_nano_bn").train(), torch.randn(4, 1, 8, 8)
    scripted = torch.jit.script(copy.deepcopy(model))
    torch.testing.assert_close(scripted(x), model(x))
    torch.testing.assert_close(dict(scripted.named_buffers()), dict(model.named_buffers()))
    assert (model.norm.running_mean != 0).any()


@pytest.mark.parametrize("name", NANO)
def test_a_scripted_model_can_be_moved(name: str) -> None:
    model, x = build(name).eval(), images(name)
    scripted = torch.jit.script(model).to(torch.float64).to(device="cpu", memory_format=torch.channels_last)
    torch.testing.assert_close(scripted(x.double()), model.double()(x.double()))
