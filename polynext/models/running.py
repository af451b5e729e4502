"""In which ways a network may run: what is kept for a backward pass, what is compiled, what takes batches in parts."""

from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.utils.checkpoint import checkpoint

from polynext.nn.norm import recomputing

Memory = Literal["plain", "lean", "least"]


@torch.jit.unused
def runs_lean() -> bool:
    """Whether a backward pass may follow, of what PyTorch runs as it comes: no trace, no graph."""
    traced = torch.jit.is_tracing() or torch.compiler.is_compiling() or is_fx_symbolic_tracing()
    return torch.is_grad_enabled() and not traced


@torch.jit.unused
def compiles_training() -> bool:
    return torch.compiler.is_compiling() and torch.is_grad_enabled()


def compute_again(cell: nn.Module, older: Tensor, newer: Tensor) -> Tensor:
    """A cell of which only the inputs are kept."""
    if torch.compiler.is_compiling():
        return checkpoint(cell, older, newer, use_reentrant=False)
    return checkpoint(cell, older, newer, use_reentrant=False, context_fn=lambda: (nullcontext(), recomputing()))


@torch.jit.unused
def take_any_batch(*inputs: Tensor) -> None:
    """Tells the compiler of stacks that the number of images may change: its program then holds for all of them."""
    for x in inputs:
        if not torch.compiler.is_compiling() and x.ndim == 4:
            torch._dynamo.maybe_mark_dynamic(x, 0)


def wants_whole_batches(module: nn.Module) -> bool:
    """Whether it may learn statistics of batches, or somebody looks on by a hook."""
    watched = module._forward_hooks or module._forward_pre_hooks or nn.modules.module._has_any_global_hook()
    return bool(module.training or watched)
