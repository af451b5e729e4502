"""Four optimiser steps of the authors' code, step by step the same in ours."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import polynext
from polynext.acceleration import accelerate, save_memory
from polynext.models.checkpoints import rename_published
from polynext.recipes import recipe
from polynext.training.optimizer import build_optimizer
from tests import golden

FORMS = {"plain": lambda model: model, "accelerated": accelerate, "lean": save_memory}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("published", ["cpolynext_t", "apolynext_s"])
def test_losses_gradients_and_weights_equal_the_authors(published: str, form: str) -> None:
    name, _ = golden.NETWORKS[published]
    expected = golden.steps(published)
    config = recipe(name).optimizer
    assert (config.name, config.lr, config.weight_decay, config.eps) == tuple(
        expected[key] for key in ("optimizer", "lr", "weight_decay", "eps")
    )
    model = FORMS[form](polynext.create_model(name).train())
    model.load_state_dict(rename_published(golden.checkpoint(published)))
    optimizer = build_optimizer(model, config)
    for i, size in enumerate(expected["sizes"]):
        loss = cross_entropy(
            model(golden.images(size, 4)), torch.from_numpy(expected["labels"][i]), label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        limit = config.clip_grad if config.name == "adamw" else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        close = 1e-4 if i < 2 else 1e-2  # the steps amplify rounding
        assert loss.item() == pytest.approx(expected["losses"][i], rel=close)
        assert norm.item() == pytest.approx(expected["grad_norms"][i], rel=10 * close)
    weights = model.state_dict()
    for key, ours in (
        ("stem.weight", "stem.weight"),
        ("cells.0.skip_weight", "stages.0.cells.0.scale.logits"),
        ("head.3.weight", "head.fc.weight"),
    ):
        after = torch.from_numpy(expected[f"after.{key}"])
        torch.testing.assert_close(weights[ours].flatten()[: len(after)], after, rtol=1e-2, atol=2e-3)
