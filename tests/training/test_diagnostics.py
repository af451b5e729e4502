"""Diagnostics measure how the branches of an operator learn."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polynext.acceleration import save_memory
from polynext.models import create_model, create_variant
from polynext.models.network import Cell
from polynext.training.diagnostics import DEAD_SHARE, Diagnostics


def watched(variant: str) -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    create = partial(create_variant, variant=variant, in_chans=1) if variant else create_model
    model = create("cpolynext_nano", num_classes=3)
    with Diagnostics(model.train()).watching() as records:
        model(torch.randn(8, 1, 8, 8)).logsumexp(dim=1).sum().backward()
    return model, records["stages.0.cells.0"]


@pytest.mark.parametrize("variant", ["", "no-flip"])
def test_branches_of_a_product_learn_through_their_siblings(variant: str) -> None:
    _, record = watched(variant)
    assert len(record["branches"]) == 4  # two PolyConv, two PolyMLP
    for branch in record["branches"]:
        assert branch["dead_a"] == branch["dead_b"] == branch["dead_both"] == 0
        assert branch["coupling"] == pytest.approx(1, abs=1e-3)


def test_added_branches_are_not_coupled() -> None:
    _, record = watched("addition")
    assert all(branch["coupling"] == 0 for branch in record["branches"])


def test_gelu_after_the_product_blocks_both_branches_at_once() -> None:
    model, record = watched("gelu-after-product")
    for branch in record["branches"]:
        assert branch["dead_a"] == branch["dead_b"] == branch["dead_both"] > 0
    # The first operator again, from its formula.
    cell: Cell = model.stages[0].cells[0]
    torch.manual_seed(0)
    create_variant("cpolynext_nano", "gelu-after-product", num_classes=3, in_chans=1)
    x = model.stem(torch.randn(8, 1, 8, 8))
    mixer = cell.stacks[0].mixer
    h = mixer.w_in(cell.norm(cell.skip(x, x)))
    product = (mixer.k_coarse(h) * mixer.k_fine(h).flip(1)).detach().requires_grad_()
    F.gelu(product).sum().backward()
    expected = (product.grad.abs() < DEAD_SHARE).float().mean().item()
    assert record["branches"][0]["dead_a"] == pytest.approx(expected, abs=1e-3)


def test_gelu_on_one_branch_blocks_the_other_one_too() -> None:
    _, record = watched("gelu-one-branch")
    for branch in record["branches"]:
        assert 0 < branch["dead_both"] <= min(branch["dead_a"], branch["dead_b"])


def test_every_stack_has_its_largest_activation_and_gradient() -> None:
    _, record = watched("")
    for key in ("stack_activations", "stack_gradients"):
        assert len(record[key]) == 2 and min(record[key]) > 0
    assert max(record["stack_activations"]) >= record["activation"]


def test_memory_saving_training_has_the_same_branches() -> None:
    records = []
    for memory in ("plain", "lean"):
        torch.manual_seed(0)
        model = save_memory(create_model("cpolynext_nano", num_classes=3).train(), memory)
        with Diagnostics(model).watching() as record:
            model(torch.randn(8, 1, 8, 8)).logsumexp(dim=1).sum().backward()
        records.append(record["stages.0.cells.0"])
    plain, lean = records
    assert len(plain["branches"]) == 4 and lean["gradient"] > 0
    for one, other in zip(plain["branches"], lean["branches"], strict=True):
        assert other == pytest.approx(one, abs=1e-5)
