"""Networks compiled stack by stack."""

import pytest
import timm
import torch

import polynext

# PyTorch's compiler looks at the gradients of its inputs, and is warned of it by PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


class Counted:
    """A compiler that counts its programs."""

    def __init__(self) -> None:
        self.programs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        self.programs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def forget_programs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_stacks_of_a_stage_are_one_program_for_any_batch() -> None:
    model = timm.create_model("cpolynext_lowres", img_size=16).eval()
    names, counted = [*model.state_dict()], Counted()
    x = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        expected = model(x)
        assert polynext.compile(model, backend=counted) is model
        for batch in (4, 3, 2, 4):
            torch.testing.assert_close(model(x[:batch]), expected[:batch])
    assert counted.programs == len(model.stages)
    assert [*model.state_dict()] == names


def test_training_over_epochs_compiles_once() -> None:
    model = timm.create_model("cpolynext_ablate_digits", drop_path_rate=0.2, drop_rate=0.5).train()
    counted = Counted()
    polynext.compile(model, backend=counted)
    for epoch in range(4):
        model.head.drop.p = 0.1 * epoch
        for batch in (8, 5):
            model(torch.randn(batch, 1, 8, 8)).sum().backward()
    assert counted.programs == 2  # the first cell is never left out: its scales are not one for each image


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_a_folded_network(name: str) -> None:
    model = timm.create_model(name).eval().fold()
    x = torch.randn(3, 1, 8, 8)
    expected = model(x)
    torch.testing.assert_close(polynext.compile(model, backend="aot_eager")(x), expected)


@pytest.mark.parametrize("memory", ["plain", "lean"])
def test_gradients(memory) -> None:
    model = timm.create_model("apolynext_nano").train()
    x = torch.randn(3, 1, 8, 8)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.set_memory(memory)
    polynext.compile(model, backend="aot_eager")(x).square().sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


def test_other_networks_are_compiled_whole() -> None:
    counted = Counted()
    model = polynext.compile(timm.create_model("test_vit").eval(), backend=counted)
    with torch.no_grad():
        model(torch.randn(1, 3, 160, 160))
    assert counted.programs == 1
