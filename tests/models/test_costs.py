"""Counts of parameters and multiply-accumulates."""

import copy

import pytest
import torch
from torch import nn

import polynext
from polynext.models import create_variant
from polynext.models.costs import count_macs, count_parameters


def test_a_convolution() -> None:
    conv = nn.Conv2d(3, 5, 3, padding=1, bias=False)
    assert count_parameters(conv) == 3 * 5 * 9
    assert count_macs(conv, (3, 8, 8)) == 3 * 5 * 9 * 8 * 8


@pytest.mark.parametrize("variant", ["learnable-scale", "layerscale-one", "single-input"])
def test_accelerated_variants_are_counted_and_stay_as_they_are(variant: str) -> None:
    model = create_variant("cpolynext_nano", variant, in_chans=1).train()
    plain = count_macs(model, (1, 8, 8))
    before = copy.deepcopy(model.state_dict())
    assert count_macs(polynext.accelerate(model), (1, 8, 8)) == plain > 0
    torch.testing.assert_close(model.state_dict(), before)
    assert model.training and all(p.requires_grad for p in model.parameters())
