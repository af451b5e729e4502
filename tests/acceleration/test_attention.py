"""Accelerated attention: values, gradients and statistics of the plain form, in memory that grows with its tokens."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polynext.acceleration import accelerate, attention, cpu
from polynext.acceleration.attention import attend_block
from polynext.nn import PolyAttention

SIZE = (6, 5)
DOUBLE = torch.float64


@pytest.mark.parametrize("pattern", [{}, {"window": 2}, {"window": 4}, {"neighbourhood": 3, "dilation": 2}])
@pytest.mark.parametrize("p", [1, 3, 4])
def test_values_and_gradients_are_those_of_the_formula(p: int, pattern: dict[str, int]) -> None:
    plain = PolyAttention(16, heads=2, head_dim=8, p=p, dtype=DOUBLE, **pattern)
    fast = accelerate(PolyAttention(16, heads=2, head_dim=8, p=p, dtype=DOUBLE, **pattern))
    fast.load_state_dict(plain.state_dict())
    x = torch.randn(2, 16, *SIZE, dtype=DOUBLE)
    for module in (plain, fast):
        module(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in fast.parameters()], [p.grad for p in plain.parameters()])
    with torch.no_grad():
        torch.testing.assert_close(fast.float()(x.float()), plain.float()(x.float()))


@pytest.mark.parametrize("normalisation", ["l1", "row_sum"])
def test_blocks_of_queries_are_exact_in_values_gradients_and_statistics(monkeypatch, normalisation) -> None:
    def run(accelerated: bool) -> list[Tensor]:
        torch.manual_seed(1)
        size = SIZE if normalisation == "row_sum" else None
        module = PolyAttention(8, p=3, normalisation=normalisation, size=size, dtype=DOUBLE).train()
        if accelerated:
            accelerate(module)
        x = torch.randn(2, 8, *SIZE, dtype=DOUBLE, requires_grad=True)
        y = module(x)
        y.square().sum().backward()
        grads = [p.grad for p in module.parameters()]
        return [y, x.grad, *grads, *module.buffers()]

    plain = run(accelerated=False)
    torch.testing.assert_close(run(accelerated=True), plain)
    monkeypatch.setattr(attention, "BLOCK_ABOVE", 1)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 7)
    torch.testing.assert_close(run(accelerated=True), plain)


def largest_tensor(f) -> int:
    """Elements of the largest tensor that any operation makes while f runs, saved for backward or not."""

    class Watch(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else [result]:
                if isinstance(t, Tensor):
                    self.largest = max(self.largest, t.numel())
            return result

    with Watch() as watch:
        f()
    return watch.largest


@pytest.mark.parametrize("train", [False, True])
def test_attention_memory_grows_linearly(train: bool) -> None:
    module = accelerate(PolyAttention(8, heads=1, head_dim=4))

    def step(side: int) -> None:
        x = torch.randn(1, 8, side, side)
        if train:
            saved = 0

            def pack(t: Tensor) -> Tensor:
                nonlocal saved
                saved += t.numel()
                return t

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                y = module(x)
            assert saved < 200 * side * side  # nothing quadratic is kept for the backward pass
            y.sum().backward()
        else:
            with torch.no_grad():
                module(x)

    small, large = (largest_tensor(lambda s=s: step(s)) for s in (48, 96))
    assert large <= 4.1 * small  # four times the tokens; sixteen times if it were quadratic


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("magnitudes", [False, True])
def test_attention_split_into_parts(p: int, magnitudes: bool, monkeypatch) -> None:
    q, k, v = torch.randn(3, 5, 2, 7, 4).unbind()
    kept = [t.clone().requires_grad_() for t in (q, k, v)]
    monkeypatch.setattr(cpu, "CACHE_BYTES", 1)
    with torch.no_grad():
        found = attend_block(q, k, v, p, magnitudes)
    torch.testing.assert_close(found, tuple(t.detach() for t in attend_block(*kept, p, magnitudes)))
