"""Compilation of a network with dozens of equal stacks: one program for each kind of stack, not one for all."""

from typing import Any

import torch
from torch import nn

from polynext.acceleration.kernels import store_by_columns
from polynext.acceleration.network import CompiledCell, NormedSkip, accelerate

# Limit on programs: stages, times training and evaluation, precisions, and batches of one image.
PROGRAMS = 64

# Skip steps of PyTorch's compiler that take seconds: testing the C++ compiler for instruction sets, and line tables.
SKIPPED_STEPS = {"cpp.vec_isa_ok": True, "aot_inductor.enable_line_tables": False}


def compile(model: nn.Module, **options: Any) -> nn.Module:
    """Compiles a network in place by `torch.compile` with these options, and returns it.

    All stacks of a stage share one program for any batch size, and its cells' skips and norms share another.
    This takes a fraction of the time that `torch.compile(model)` takes, and epochs and batch sizes cause no
    recompilation. The rest runs in eager mode. Networks without PolyNeXt's stacks are compiled whole. The state dict
    does not change; wrap the result for distributed training. In eval mode on a CPU, matrices are stored by columns.
    For a single program use `torch.compile(model, fullgraph=True)`.
    """
    accelerate(model)
    cells: list[Any] = [module for module in model.modules() if isinstance(module, CompiledCell)]
    # By default the compiler takes the other size of the next stage as a sign that sizes are dynamic.
    options = {"dynamic": False, "recompile_limit": PROGRAMS, **options} if cells else options
    if not {"backend", "mode", "options"} & options.keys():
        options["options"] = {key: SKIPPED_STEPS[key] for key in SKIPPED_STEPS.keys() & torch._inductor.list_options()}
    if cells and not model.training:
        store_by_columns(model)
    for cell in cells:
        cell.compiled = True
        cell.normed_skip = NormedSkip()
        for part in (cell.normed_skip, *cell.stacks):
            part.compile(**options)
    if not cells:
        model.compile(**options)
    return model
