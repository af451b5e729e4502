"""What a model costs: parameters and multiply-accumulates."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_macs(model: nn.Module, input_size: tuple[int, int, int]) -> int:
    """Multiply-accumulates of all convolutions and matrix products for one image (the paper's FLOPs).

    Counted on a copy without memory, so that nothing is computed.
    """
    counter = FlopCounterMode(display=False)
    model = copy.deepcopy(model).to("meta").eval()
    with counter, torch.inference_mode():
        model(torch.empty(1, *input_size, device="meta"))
    return counter.get_total_flops() // 2
