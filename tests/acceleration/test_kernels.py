"""Inference on CPUs: the same results by other routines, and nothing of it where it does not belong."""

import copy
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

import polynext
from polynext.acceleration import accelerate, cpu
from polynext.acceleration.cpu import cached_parts
from polynext.acceleration.kernels import elementary_layer_norm
from polynext.acceleration.network import FastStage
from polynext.nn import PointwiseConv2d, PolyConv


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 20, 5, 7), (1, 20, 1, 1), (0, 20, 4, 4)])
def test_matrix_products_are_those_of_training(shape, memory_format) -> None:
    layer, x = accelerate(PointwiseConv2d(20, 12)), torch.randn(shape).contiguous(memory_format=memory_format)
    with torch.no_grad():
        found = layer(x)
    torch.testing.assert_close(found, layer(x).detach())
    torch.testing.assert_close(found, F.conv2d(x, layer.weight).detach())


def test_a_matrix_stored_by_columns_is_the_same_matrix() -> None:
    layer, x = accelerate(PointwiseConv2d(20, 12)), torch.randn(2, 20, 4, 4)
    before, expected = layer.weight.detach().clone(), layer(x)
    layer.store_by_columns()
    for moved in (layer, copy.deepcopy(layer), copy.deepcopy(layer).to("cpu")):
        assert moved.weight.stride()[:2] == (1, 12)
        torch.testing.assert_close(moved.weight.detach(), before, rtol=0, atol=0)
        torch.testing.assert_close(moved(x), expected)
        with torch.no_grad():
            torch.testing.assert_close(moved(x), expected.detach())
    assert copy.deepcopy(layer).double().weight.stride()[:2] == (1, 12)
    torch.testing.assert_close(copy.deepcopy(layer).to(memory_format=torch.channels_last)(x), expected)
    layer.load_state_dict({"weight": 2 * before})
    torch.testing.assert_close(layer(x), 2 * expected)


@pytest.mark.parametrize("form", [polynext.accelerate, polynext.fold, partial(polynext.compile, backend="eager")])
def test_every_form_can_be_saved_and_loaded(form, tmp_path) -> None:
    model = form(timm.create_model("apolynext_nano_bn").eval())
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    again = form(timm.create_model("apolynext_nano_bn").eval())
    again.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x))


def test_flops_of_custom_operations_are_counted() -> None:
    layer, x = accelerate(PointwiseConv2d(20, 12)), torch.randn(2, 20, 3, 3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 2 * 9 * 20 * 12


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")  # torch.func's own
def test_derivatives_without_a_backward_pass() -> None:
    layer, x, v = accelerate(PointwiseConv2d(6, 4)), torch.randn(2, 6, 3, 3), torch.randn(2, 6, 3, 3)
    with torch.no_grad():
        expected = layer(v)
        torch.testing.assert_close(torch.func.jvp(layer, (x,), (v,))[1], expected)
        torch.testing.assert_close(torch.vmap(layer)(v[None])[0], expected)
        with forward_ad.dual_level():
            torch.testing.assert_close(forward_ad.unpack_dual(layer(forward_ad.make_dual(x, v))).tangent, expected)


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")
def test_traces_hold_operations_of_pytorch_only() -> None:
    layer, x = accelerate(PointwiseConv2d(6, 4).eval()), torch.randn(2, 6, 3, 3)
    with torch.no_grad():
        assert "polynext::" not in str(torch.jit.trace(layer, x).inlined_graph)
        operations = {str(node.target) for node in torch.export.export(layer, (x,)).graph.nodes}
    assert not any("polynext" in name for name in operations)


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 30)])
def test_the_elementary_layer_norm(bias) -> None:
    x, weight = 3 * torch.randn(2, 4, 5, 30) + 7, torch.rand(30)
    torch.testing.assert_close(elementary_layer_norm(x, weight, bias, 1e-5), F.layer_norm(x, (30,), weight, bias, 1e-5))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 6, 5, 7), (1, 6, 1, 1)])
def test_custom_operations_of_compiled_inference(shape, memory_format) -> None:
    x, y = (torch.randn(shape).contiguous(memory_format=memory_format) for _ in range(2))
    scale, mixer = torch.rand(len(x), 1, 1, 1), PolyConv(6)
    kernels = (mixer.k_coarse.weight.detach(), mixer.k_fine.weight.detach(), mixer.k.weight.detach())
    mixed, add = torch.ops.polynext.convolved_product, torch.ops.polynext.add_scaled_to
    torch.testing.assert_close(mixed(x, *kernels, 2, 1), mixer.mix(x).detach())
    for operation, inputs in ((mixed, (x, *kernels, 2, 1)), (add, (x, scale, y))):
        torch.library.opcheck(operation, inputs, test_utils=("test_schema", "test_faketensor"))
    expected = x + scale * y
    add(x, scale, y)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("name", ["cpolynext_lowres", "apolynext_nano_bn"])
def test_a_batch_split_into_parts(name: str, monkeypatch) -> None:
    model = accelerate(timm.create_model(name).eval())
    x = torch.randn(7, *model.pretrained_cfg["input_size"])
    whole = model(x), model.forward_intermediates(x)[1]  # gradients may be wanted: nothing is taken apart
    sizes, through_cells = [], FastStage.through_cells

    def observed(self, older, newer):
        sizes.append(len(newer))
        return through_cells(self, older, newer)

    monkeypatch.setattr(FastStage, "through_cells", observed)
    monkeypatch.setattr(cpu, "CACHE_BYTES", 1)
    with torch.no_grad():
        torch.testing.assert_close((model(x), model.forward_intermediates(x)[1]), whole, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((polynext.fold(model)(x)), whole[0], rtol=1e-4, atol=1e-4)
        assert set(sizes) == {1}
        assert model(x[:0]).shape == (0, model.num_classes)


def test_statistics_are_those_of_whole_batches(monkeypatch) -> None:
    model, x = accelerate(timm.create_model("cpolynext_nano_bn").train()), torch.randn(6, 1, 8, 8)
    before = copy.deepcopy(model)
    monkeypatch.setattr(cpu, "CACHE_BYTES", 1)
    with torch.no_grad():
        found = model(x)
    torch.testing.assert_close(found, before(x).detach())
    torch.testing.assert_close(model.state_dict(), before.state_dict())


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_see_whole_batches(everywhere: bool, monkeypatch) -> None:
    model, sizes = accelerate(timm.create_model("cpolynext_nano").eval()), set()
    mlp = model.stages[0].cells[0].stacks[0].mlp
    register = register_module_forward_hook if everywhere else mlp.register_forward_hook
    monkeypatch.setattr(cpu, "CACHE_BYTES", 1)
    handle = register(lambda module, inputs, output: sizes.add(len(output)) if module is mlp else None)
    with torch.no_grad():
        model(torch.randn(5, 1, 8, 8))
    handle.remove()
    assert sizes == {5}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_part_fills_the_caches(threads: int, monkeypatch) -> None:
    """No part is smaller than what fits, so that a compiled program of few images is not one of a single image."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu, "CACHE_BYTES", 2 * 100)  # two images
    for batch in range(1, 20):
        parts = cached_parts(batch, 100)
        sizes = [len(part) for part in torch.empty(batch, 1).tensor_split(max(1, parts))]
        assert batch < 2 * threads or min(sizes) >= 2 * threads
        assert max(sizes) < 4 * threads
