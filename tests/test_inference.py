"""Inference on CPUs: the same results by other routines, and nothing of it where it does not belong."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from polynext.nn import PointwiseConv2d
from polynext.nn.inference import normed


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 20, 5, 7), (1, 20, 1, 1), (0, 20, 4, 4)])
def test_matrix_products_are_those_of_training(shape, memory_format) -> None:
    layer, x = PointwiseConv2d(20, 12), torch.randn(shape).contiguous(memory_format=memory_format)
    with torch.no_grad():
        found = layer(x)
    torch.testing.assert_close(found, layer(x).detach())
    torch.testing.assert_close(found, F.conv2d(x, layer.weight).detach())


def test_they_are_counted() -> None:
    layer, x = PointwiseConv2d(20, 12), torch.randn(2, 20, 3, 3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 2 * 9 * 20 * 12


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")  # torch.func's own
def test_derivatives_without_a_backward_pass() -> None:
    layer, x, v = PointwiseConv2d(6, 4), torch.randn(2, 6, 3, 3), torch.randn(2, 6, 3, 3)
    with torch.no_grad():
        expected = layer(v)
        torch.testing.assert_close(torch.func.jvp(layer, (x,), (v,))[1], expected)
        torch.testing.assert_close(torch.vmap(layer)(v[None])[0], expected)
        with forward_ad.dual_level():
            torch.testing.assert_close(forward_ad.unpack_dual(layer(forward_ad.make_dual(x, v))).tangent, expected)


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")
def test_traces_hold_operations_of_pytorch_only() -> None:
    layer, x = PointwiseConv2d(6, 4).eval(), torch.randn(2, 6, 3, 3)
    with torch.no_grad():
        assert "polynext::" not in str(torch.jit.trace(layer, x).inlined_graph)
        operations = {str(node.target) for node in torch.export.export(layer, (x,)).graph.nodes}
    assert not any("polynext" in name for name in operations)


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 30)])
def test_the_norm_written_out(bias) -> None:
    x, weight = 3 * torch.randn(2, 4, 5, 30) + 7, torch.rand(30)
    torch.testing.assert_close(normed(x, weight, bias, 1e-5), F.layer_norm(x, (30,), weight, bias, 1e-5))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 6, 5, 7), (1, 6, 1, 1)])
def test_what_a_compiler_is_spared(shape, memory_format) -> None:
    x, y = (torch.randn(shape).contiguous(memory_format=memory_format) for _ in range(2))
    scale = torch.rand(len(x), 1, 1, 1)
    product, added = torch.ops.polynext.product_with_flipped, torch.ops.polynext.add_scaled
    torch.testing.assert_close(product(x, y), x * y.flip(1))
    torch.testing.assert_close(added(x, scale, y), x + scale * y)
    for operation, inputs in ((product, (x, y)), (added, (x, scale, y))):
        torch.library.opcheck(operation, inputs, test_utils=("test_schema", "test_faketensor"))
