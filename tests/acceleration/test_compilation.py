"""Networks compiled stack by stack."""

import copy
import pickle
import signal
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import polynext
from polynext.data import DataConfig, Preprocessing
from polynext.models.network import Cell
from polynext.nn import PointwiseConv2d
from polynext.recipes import recipe
from polynext.training import EmaConfig, Interrupted, ModelConfig, ScheduleConfig, TrainingLoop, train
from polynext.training import loop as loop_module

# PyTorch's compiler looks at the gradients of its inputs, and is warned of it by PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


class Counted:
    """A compiler that counts its programs."""

    def __init__(self) -> None:
        self.programs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        self.programs += 1
        return graph.forward

    def boxed(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        """The same behind AOTAutograd, where forward and backward are programs of their own."""
        return make_boxed_func(self(graph, inputs))


@pytest.fixture(autouse=True)
def forget_programs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_stage_is_two_programs_for_any_batch() -> None:
    model = timm.create_model("cpolynext_lowres", img_size=16).eval()
    names, counted = [*model.state_dict()], Counted()
    x = torch.randn(20, 3, 16, 16)
    with torch.no_grad():
        expected = model(x)
        assert polynext.compile(model, backend=counted) is model
        for batch in (4, 3, 20, 2, 16):
            torch.testing.assert_close(model(x[:batch]), expected[:batch])
    assert counted.programs == 2 * len(model.stages)  # one for its stacks, one for the entries of its cells
    assert [*model.state_dict()] == names


def test_training_over_epochs_compiles_once() -> None:
    model = timm.create_model("cpolynext_ablate_digits", drop_path_rate=0.2, drop_rate=0.5).train()
    counted = Counted()
    polynext.compile(model, backend=counted)
    for epoch in range(4):
        model.head.drop.p = 0.1 * epoch
        for batch in (18, 3):  # on either side of 16, where PyTorch would choose another convolution
            model(torch.randn(batch, 1, 8, 8)).sum().backward()
    # Two for the first cell and two for the second: the first cell is never left out, so its scales are not one for
    # each image, and the stem's feature map, of one input channel, is not in the memory order of the others.
    assert counted.programs == 4


@pytest.mark.parametrize("name", ["cpolynext_nano", "test_convnext"])
def test_a_run_compiles_once_through_ramp_average_and_resume(name: str, tmp_path, monkeypatch) -> None:
    """Dropout that rises, averaged weights that begin, an interruption: programs are those of the first epoch."""
    counted = Counted()
    monkeypatch.setattr(
        loop_module, "compile", partial(polynext.compile, backend=aot_autograd(fw_compiler=counted.boxed))
    )
    colour = name == "test_convnext"
    preprocessing = Preprocessing(size=32, resize=32, mean=(0.5,) * 3, std=(0.5,) * 3) if colour else Preprocessing()
    config = replace(
        recipe("digits"),
        model=ModelConfig(name=name, dropout=0.5),
        data=DataConfig(limit=64, preprocessing=preprocessing),
        ema=EmaConfig(decay=0.9, start=0.5),
        batch_size=32,
        micro_batch=16,
        compile=True,
        schedule=ScheduleConfig(),
        epochs=1,
        evaluate_every=10,
    )
    train(config, tmp_path / "first", quiet=True)
    in_an_epoch = counted.programs
    assert in_an_epoch > 0
    counted.programs = 0
    torch._dynamo.reset()

    step = TrainingLoop.step

    def interrupted(self, batches) -> None:
        step(self, batches)
        self.stop.signal = signal.SIGTERM if self.progress.step == 7 else 0

    monkeypatch.setattr(TrainingLoop, "step", interrupted)
    with pytest.raises(Interrupted):
        train(replace(config, epochs=6), tmp_path / "run", quiet=True)
    monkeypatch.setattr(TrainingLoop, "step", step)
    before = counted.programs
    train(replace(config, epochs=6), tmp_path / "run", resume=True, quiet=True)
    assert 0 < before <= in_an_epoch
    assert counted.programs - before <= in_an_epoch  # as in a process of its own


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_a_folded_network(name: str) -> None:
    model = polynext.fold(timm.create_model(name).eval())
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
    polynext.save_memory(model, memory)
    polynext.compile(model, backend="aot_eager")(x).square().sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


@pytest.mark.parametrize("training", [False, True])
def test_matrices_are_stored_by_columns_for_inference_only(training: bool) -> None:
    model, x = timm.create_model("apolynext_nano").train(training), torch.randn(3, 1, 8, 8)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    polynext.compile(model, backend="aot_eager")
    assert all((m.weight.stride(0) == 1) is not training for m in model.modules() if isinstance(m, PointwiseConv2d))
    model(x).square().sum().backward()  # where it has come to this after all
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_compiled_network_has_weights_of_its_own(duplicate) -> None:
    model, x = (
        polynext.compile(timm.create_model("cpolynext_nano").eval(), backend="aot_eager"),
        torch.randn(3, 1, 8, 8),
    )
    with torch.no_grad():
        expected = model(x)
        copied = duplicate(model)
        torch.testing.assert_close(copied(x), expected)
        for cell in (module for module in copied.modules() if isinstance(module, Cell)):
            cell.norm.weight.zero_()
        assert not copied(x).allclose(expected)
        torch.testing.assert_close(model(x), expected)


def test_other_networks_are_compiled_whole() -> None:
    counted = Counted()
    model = polynext.compile(timm.create_model("test_vit").eval(), backend=counted)
    with torch.no_grad():
        model(torch.randn(1, 3, 160, 160))
    assert counted.programs == 1
