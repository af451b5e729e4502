"""Dropout with a rate that is data."""

import pytest
import timm
import torch
from torch import nn

import polynext  # noqa: F401  (registers the models)
from polynext.acceleration.dropout import RisingDropout
from polynext.config.network import let_dropout_rise


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_rising_dropout_is_dropout(rate: float) -> None:
    drop, x = RisingDropout(), torch.full((100_000,), 2.0)
    drop.p = rate
    y = drop.train()(x)
    assert (y == 0).double().mean().item() == pytest.approx(rate, abs=0.01)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 2 / (1 - rate) if rate < 1 else 0.0))
    assert torch.equal(drop.eval()(x), x)
    assert drop.state_dict() == {}


def test_a_rising_rate_is_one_program() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        graphs.append(graph)
        return graph.forward

    model = timm.create_model("cpolynext_nano", drop_rate=0.5).train()
    let_dropout_rise(model)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        for epoch in range(10):
            model.head.drop.p = 0.5 * epoch / 9
            compiled(x)
    assert len(graphs) == 1
    torch.manual_seed(0)
    model.head.drop.p = 0.0
    nothing_dropped = model(x)
    model.head.drop.p = 1.0
    with torch.no_grad():
        nn.init.ones_(model.head.fc.bias)
    assert torch.equal(model(x), torch.ones_like(nothing_dropped))
