"""Training in less memory: the same gradients."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import polynext  # noqa: F401  (registers the models)
from polynext.acceleration import memory as lean
from polynext.acceleration import restore, save_memory
from polynext.acceleration.memory import Recomputable, add_branch, identity
from polynext.errors import PolyNeXtError
from polynext.models import create_variant
from polynext.nn import PolyAttention, PolyConv, PolyMLP

SMALL = ["cpolynext_nano", "apolynext_nano", "cpolynext_nano_bn", "apolynext_nano_bn", "cpolynext_ablate_digits"]


@pytest.fixture(params=[0, 1000], ids=["products-kept", "products-again"])
def few_channels(request, monkeypatch) -> int:
    """Small networks in the form of wide stages, and in that of narrow ones."""
    monkeypatch.setattr(lean, "FEW_CHANNELS", request.param)
    return request.param


def images(model: nn.Module, batch: int = 3) -> Tensor:
    return torch.randn(batch, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, x: Tensor, autocast: bool = False) -> tuple[list[Tensor], int]:
    """The gradients of the parameters, and how many bytes besides them were kept to have them."""
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    torch.manual_seed(5)
    model.zero_grad()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = model(x)
    y.float().square().sum().backward()
    return [p.grad.clone() for p in model.parameters()], sum(kept.values())


def assert_near(found: list[Tensor], expected: list[Tensor], rtol: float) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * b.abs().max().item())


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", SMALL)
def test_a_lean_network_has_the_gradients_of_the_plain_one(name: str, autocast: bool, few_channels) -> None:
    model = timm.create_model(name, drop_path_rate=0.3).train()
    x = images(model, 32)
    plain, kept = gradients(model, x, autocast)
    statistics = [b.clone() for b in model.buffers()]
    for memory, share in (("lean", 0.45 if few_channels else 0.6), ("least", 0.4)):
        again = timm.create_model(name, drop_path_rate=0.3).train()
        again.load_state_dict(dict(model.named_parameters()), strict=False)
        save_memory(again, memory)
        found, kept_now = gradients(again, x, autocast)
        assert_near(found, plain, rtol=5e-2 if autocast else 1e-4)
        if not autocast:
            assert kept_now < share * kept
        for a, b in zip(again.buffers(), statistics, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2 if autocast else 1e-5, atol=1e-2 if autocast else 1e-6)
    save_memory(model, "plain")


@pytest.mark.parametrize("name", SMALL)
def test_exact_in_double_precision(name: str, few_channels) -> None:
    model = timm.create_model(name).double().train()
    x = images(model).double()
    plain, _ = gradients(model, x)
    save_memory(model, "lean")
    assert_near(gradients(model, x)[0], plain, rtol=1e-9)


@pytest.mark.parametrize("after", [None, nn.Identity, "default"])
@pytest.mark.parametrize("operator", [PolyConv, PolyMLP, PolyAttention])
def test_numerical_gradients(operator, after, few_channels) -> None:
    options = {} if after == "default" else {"norm": after or nn.Identity}
    if operator is PolyAttention:
        options |= {"heads": 2, "head_dim": 2, "p": 3}
    branch = operator(6, **options).double()
    parameters = dict(branch.named_parameters())
    drop = torch.tensor([2.0, 0.0]).double().view(2, 1, 1, 1) if after is None else None

    def function(x: Tensor, scale: Tensor, *values: Tensor) -> Tensor:
        return add_branch(Recomputable(identity, (x,)), branch, scale, drop).value()

    x = torch.randn(2, 6, 3, 3).double().requires_grad_()
    scale = torch.tensor(0.7).double().requires_grad_()
    assert torch.autograd.gradcheck(function, (x, scale, *parameters.values()))


def test_frozen_parts_have_no_gradient(few_channels) -> None:
    model = timm.create_model("cpolynext_nano").train()
    save_memory(model, "lean")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("w_o.weight"))
    model(images(model)).square().sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("variant", ["layerscale-one", "addition", "mlp-gelu", "no-flip", "single-input"])
def test_variants_can_be_lean(variant: str, few_channels) -> None:
    model = create_variant("cpolynext_ablate_digits", variant, in_chans=1).train()
    plain, _ = gradients(model, images(model))
    save_memory(model, "lean")
    assert_near(gradients(model, images(model))[0], plain, rtol=1e-4)


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano"])
def test_a_compiled_network_can_be_lean(name: str, few_channels) -> None:
    model = timm.create_model(name).train()
    x = images(model, 8)
    plain, kept = gradients(model, x)
    save_memory(model, "lean")
    found, kept_now = gradients(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
    assert_near(found, plain, rtol=1e-4)
    assert kept_now < (0.5 if few_channels else 0.7) * kept


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")
def test_a_lean_network_can_be_evaluated_traced_and_scripted() -> None:
    model = timm.create_model("cpolynext_nano").eval()
    x = images(model)
    expected = model(x)
    save_memory(model, "lean")
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(torch.jit.trace(model, x)(x), expected)
    with pytest.raises(PolyNeXtError, match="give it the plain network"):
        torch.jit.script(model)
    torch.testing.assert_close(torch.jit.script(restore(model))(x), expected)


def test_other_networks() -> None:
    model = timm.create_model("test_vit")
    save_memory(model, "least")
    assert model.grad_checkpointing
    save_memory(model, "plain")
    with pytest.raises(PolyNeXtError, match="VisionTransformer does not support memory 'lean'"):
        save_memory(model, "lean")
    with pytest.raises(PolyNeXtError, match="memory is 'none': choose plain, lean, least"):
        save_memory(model, "none")  # type: ignore[arg-type]


def share_of_a_batch(rank: int, name: str, folder: str) -> None:
    """One of two processes: the gradients of each form, from its half of the batch."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = timm.create_model(name).train()
    for memory in ("plain", "lean"):
        save_memory(model, memory)
        model.zero_grad()
        wrapped = DistributedDataParallel(model)
        wrapped(images(model, 8)[4 * rank : 4 * rank + 4]).square().sum().backward()
        torch.save([p.grad for p in model.parameters()], f"{folder}/{memory}{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_two_processes_agree(name: str, tmp_path) -> None:
    torch.multiprocessing.spawn(share_of_a_batch, (name, str(tmp_path)), nprocs=2)
    plain, *others = (torch.load(tmp_path / f"{memory}{rank}.pt") for memory in ("plain", "lean") for rank in (0, 1))
    for found in others:
        assert_near(found, plain, rtol=1e-4)
