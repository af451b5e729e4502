"""The cost of a model: parameters and multiply-accumulates."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_macs(model: nn.Module, input_size: tuple[int, ...]) -> int:
    """Multiply-accumulates of all convolutions and matrix products for one input: what the paper calls FLOPs.

    Counted on a copy on the meta device, without computing anything.
    """
    if any(not p.is_meta for p in model.parameters()):
        model = copy.deepcopy(model).to("meta")
    training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.empty(1, *input_size, device="meta"))
    model.train(training)
    return counter.get_total_flops() // 2
