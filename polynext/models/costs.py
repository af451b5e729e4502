"""The cost of a model: parameters and multiply-accumulates."""

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_macs(model: nn.Module, input_size: tuple[int, ...]) -> int:
    """Multiply-accumulates of all convolutions and matrix products for one input, which the paper calls FLOPs.

    The model runs in eval mode with parameters on the meta device, so nothing is computed.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    on_meta = {name: tensor.detach().to("meta") for name, tensor in tensors}
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(model.eval(), on_meta, torch.empty(1, *input_size, device="meta"))
    for module, training in modes:
        module.training = training
    return counter.get_total_flops() // 2
