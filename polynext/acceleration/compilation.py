"""Compiling a network of dozens of equal stacks: once for each kind of stack, not all of them as one program."""

from typing import Any

import torch
from torch import nn

from polynext.acceleration.kernels import store_by_columns
from polynext.acceleration.network import CompiledEntry, Entry, accelerate

# Programs at most: stages, times training and evaluation, precisions, and a batch of one image.
PROGRAMS = 64

# What PyTorch's compiler spends seconds on without use for us: test programs for the C++ compiler's instruction sets (a
# compiler that takes PyTorch's headers at all knows those of the processor) and line numbers.
UNUSED = {"cpp.vec_isa_ok": True, "aot_inductor.enable_line_tables": False}


def compile(model: nn.Module, **options: Any) -> nn.Module:
    """Compiles a network in place, by `torch.compile` with these options, and returns it.

    All stacks of a stage are one program, for any number of images, and for inference the inputs of its cells another:
    a fraction of the time that it takes to compile the whole network, and nothing is recompiled as epochs and batches
    change. Everything between the stacks runs in eager mode. Networks without our stacks are compiled whole. The state
    dict stays the same, and a wrapper for several processes goes around the result. In eval mode on a CPU matrices are
    stored by columns. For one program of everything there is `torch.compile(model, fullgraph=True)`.
    """
    accelerate(model)
    cells: list[Any] = [module for module in model.modules() if isinstance(module, CompiledEntry)]
    # Left to itself the compiler would take the next stage's size for a sign that sizes change.
    options = {"dynamic": False, "recompile_limit": PROGRAMS, **options} if cells else options
    if not {"backend", "mode", "options"} & options.keys():
        options["options"] = {key: UNUSED[key] for key in UNUSED.keys() & torch._inductor.list_options()}
    if cells and not model.training:
        store_by_columns(model)
    for cell in cells:
        cell.compiled = True
        cell.entry = Entry()
        for part in (cell.entry, *cell.stacks):
            part.compile(**options)
    if not cells:
        model.compile(**options)
    return model
