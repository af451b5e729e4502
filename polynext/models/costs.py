"""What a model costs: parameters and multiply-accumulates."""

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_macs(model: nn.Module, input_size: tuple[int, int, int]) -> int:
    """Multiply-accumulates of all convolutions and matrix products for one image: what the paper calls FLOPs.

    Counted on a copy without memory, so that nothing is computed.
    """
    counter = MacCounter()
    if any(not p.is_meta for p in model.parameters()):
        model = copy.deepcopy(model).to("meta")
    training = model.training
    with torch.no_grad(), counter:
        model.eval()(torch.empty(1, *input_size, device="meta"))
    model.train(training)
    return counter.total


class MacCounter(TorchDispatchMode):
    """Adds up what torch's FLOP formulas say, several times faster than `FlopCounterMode`, which also tells where."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result) // 2
        return result
