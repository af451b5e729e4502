"""Depthwise convolutions on CPUs: PyTorch's gradients, faster."""

import pytest
import torch
from torch import nn

from polynext.acceleration import accelerate
from polynext.nn import DepthwiseConv2d

DOUBLE = torch.float64


@pytest.mark.parametrize("size", [(8, 8), (13, 16), (21, 20), (5, 9)])
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_gradients_of_wide_kernels_are_pytorchs(size, kernel: int, dilation: int) -> None:
    conv = accelerate(DepthwiseConv2d(6, 6, kernel, dilation=dilation, dtype=DOUBLE))
    x = torch.randn(2, 6, *size, dtype=DOUBLE, requires_grad=True)
    expected = nn.functional.conv2d(x, conv.weight, padding=conv.padding, dilation=dilation, groups=6)
    weights = torch.randn_like(expected)
    ours = conv(x)
    torch.testing.assert_close(ours, expected)
    for a, b in zip(
        torch.autograd.grad((ours * weights).sum(), (x, conv.weight)),
        torch.autograd.grad((expected * weights).sum(), (x, conv.weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_dilated_convolution_trains_under_autocast() -> None:
    conv = accelerate(DepthwiseConv2d(4, 4, 3, dilation=2))
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(torch.randn(2, 4, 8, 8))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert conv.weight.grad is not None and conv.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_strided_kernels_in_half_precision(dtype: torch.dtype) -> None:
    conv = accelerate(DepthwiseConv2d(6, 6, 3, stride=2, dtype=dtype))
    x = torch.randn(2, 6, 9, 8, dtype=dtype, requires_grad=True)
    y = conv(x)
    weights = torch.randn_like(y)
    exact = [t.detach().double().requires_grad_() for t in (x, conv.weight)]
    expected = nn.functional.conv2d(*exact, stride=2, padding=1, groups=6)
    ours = torch.autograd.grad((y * weights).sum(), (x, conv.weight))
    for a, b in zip(ours, torch.autograd.grad((expected * weights.double()).sum(), exact), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=0.02, atol=0.02)


# PyTorch's compiler looks at the gradients of its inputs, and is warned of it by PyTorch.
LEAVES = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@LEAVES
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 1, 1)])
def test_the_custom_depthwise_operation(kernel: int, stride: int, dilation: int, memory_format) -> None:
    conv = accelerate(DepthwiseConv2d(6, 6, kernel, dilation=dilation, stride=stride))
    x = torch.randn(2, 6, 9, 8).contiguous(memory_format=memory_format).requires_grad_()
    inputs = (x, conv.weight, stride, conv.padding[0], dilation)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.polynext.depthwise, inputs, test_utils=tests)
    torch.testing.assert_close(torch.ops.polynext.depthwise(*inputs), conv(x))
    inputs = (x, conv.weight, conv(x), *inputs[2:])
    inputs = tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in inputs)
    torch.library.opcheck(torch.ops.polynext.depthwise_gradients, inputs, test_utils=tests[:2])


@LEAVES
def test_compiled_convolutions_train_under_autocast() -> None:
    convs = nn.Sequential(DepthwiseConv2d(4, 4, 5, dilation=2), DepthwiseConv2d(4, 4, 3, stride=2))
    accelerate(convs)
    grads = []
    x = torch.randn(2, 4, 8, 8)
    for run in (convs, torch.compile(convs, backend="aot_eager")):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        grads.append([conv.weight.grad for conv in convs])
        convs.zero_grad()
    torch.testing.assert_close(grads[0], grads[1], rtol=0.02, atol=0.02)
