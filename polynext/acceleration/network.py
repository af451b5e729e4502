"""Other forms of the network around the operators: batches in parts that caches hold, less memory, compiled stacks."""

import logging
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, get_args

import torch
from timm.models import checkpoint_seq
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polynext.acceleration.caches import cached_parts
from polynext.acceleration.forms import Form, apply_forms, restore
from polynext.acceleration.kernels import KERNELS, compiles_for_cpu
from polynext.acceleration.memory import Recomputable, add_branch, keep_products, recomputing, running_norms
from polynext.acceleration.operators import infers_on_cpu
from polynext.errors import PolyNeXtError
from polynext.models.network import Cell, Stack, Stage
from polynext.models.pyramid import PyramidStage

Memory = Literal["plain", "lean", "least"]


class FastStack(Form, Stack):
    """A stack whose scales carry stochastic depth: one for each image (B, 1, 1, 1), zero where a branch is left out.

    All stacks of a stage are then one function of data, and compiled once.
    """

    plain = Stack
    memory: Memory = "plain"
    state: ClassVar = ("memory",)

    def fast(self, x: Tensor, mixer_scale: Tensor, mlp_scale: Tensor) -> Tensor:
        if self.memory == "lean" and torch.compiler.is_compiling() and torch.is_grad_enabled():
            return keep_products(self.add_branches, x, mixer_scale, mlp_scale)
        return self.add_branches(x, mixer_scale, mlp_scale)

    def add_branches(self, x: Tensor, mixer_scale: Tensor, mlp_scale: Tensor) -> Tensor:
        x = torch.addcmul(x, mixer_scale, self.mixer(x))
        y = self.mlp(x)
        if compiles_for_cpu(x):
            torch.ops.polynext.add_scaled_to(x, mlp_scale, y)
            return y
        return torch.addcmul(x, mlp_scale, y)

    def dropped(self, scale: Tensor, images: int) -> Tensor:
        """A scale under stochastic depth: one for each image."""
        if self.training and not isinstance(self.drop_path, nn.Identity):
            return self.drop_path(scale.expand(images, -1 if scale.ndim else 1, 1, 1))
        return scale


class Entry(nn.Module):
    """`norm(skip(older, newer))`: a module for the sake of its `compile`, without weights of its own."""

    def forward(self, skip: nn.Module, norm: nn.Module, older: Tensor, newer: Tensor) -> Tensor:
        return norm(skip(older, newer))


class CompiledEntry:
    """How a cell, folded or not, combines its inputs: by a program of its own in compiled inference."""

    compiled = False

    def enter(self: Any, older: Tensor, newer: Tensor) -> Tensor:
        if self.compiled and not torch.is_grad_enabled():
            older = older.view_as(newer)  # in the first cell both are the stem's: to a compiler another program
            take_any_batch(older, newer)
            return self.entry(self.skip, self.norm, older, newer)
        return self.norm(self.skip(older, newer))


def take_any_batch(*inputs: Tensor) -> None:
    """Tells the compiler of stacks that the number of images may change: its program then holds for all of them."""
    for x in inputs:
        if not torch.compiler.is_compiling() and x.ndim == 4:
            torch._dynamo.maybe_mark_dynamic(x, 0)


class FastCell(CompiledEntry, Form, Cell):
    """A cell that may save memory in training, and whose stacks may be compiled."""

    plain = Cell
    memory: Memory = "plain"
    state: ClassVar = ("memory", "compiled", "entry")

    def fast(self, older: Tensor, newer: Tensor) -> Tensor:
        if self.memory == "plain" or not torch.is_grad_enabled():
            return self.through_stacks(older, newer)
        if self.memory == "least":
            return self.checkpointed(older, newer)
        if self.compiled or torch.compiler.is_compiling():  # stacks then save memory themselves
            return self.through_stacks(older, newer)
        return self.lean(older, newer)

    def through_stacks(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.enter(older, newer)
        scales = self.scale.factors()
        for stack in self.stacks:
            mixer_scale, mlp_scale = (stack.dropped(scales[index], len(x)) for index in stack.scale_indices)
            if self.compiled:
                take_any_batch(x, mixer_scale, mlp_scale)
            x = stack(x, mixer_scale, mlp_scale)
        return x

    def lean(self, older: Tensor, newer: Tensor) -> Tensor:
        """The same, keeping little besides the matrix products: see `memory.py`."""
        norms = running_norms(self)
        x = Recomputable(
            lambda older, newer: self.norm(self.skip(older, newer)),
            (older, newer),
            (*self.skip.parameters(), *self.norm.parameters()),
            norms,
        )
        scales = self.scale.factors()
        for stack in self.stacks:
            for branch, index in zip((stack.mixer, stack.mlp), stack.scale_indices, strict=True):
                drop = None
                if self.training and not isinstance(stack.drop_path, nn.Identity):
                    drop = stack.drop_path(older.new_ones(len(older), 1, 1, 1))
                x = add_branch(x, branch, scales[index], drop)
        return x.value()

    def checkpointed(self, older: Tensor, newer: Tensor) -> Tensor:
        """The same, keeping only the inputs."""
        if torch.compiler.is_compiling():
            return checkpoint(self.through_stacks, older, newer, use_reentrant=False)
        norms = running_norms(self)
        return checkpoint(
            self.through_stacks,
            older,
            newer,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), recomputing(norms)),
        )


class FastStage(Form, Stage):
    """In inference on a CPU a few images at a time: as many as the processor's caches hold the maps of."""

    plain = Stage

    def fast(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        if not infers_on_cpu(newer) or torch.compiler.is_compiling():
            return super().fast(older, newer)
        if self.downsampling is not None:
            older, newer = self.downsampling(older, newer)
        parts = cached_parts(len(newer), newer.shape[1:].numel() * newer.element_size())
        if parts < 2 or any(wants_whole_batches(module) for module in self.cells.modules()):
            return self.through_cells(older, newer)
        done = map(self.through_cells, older.tensor_split(parts), newer.tensor_split(parts))
        older, newer = (torch.cat(maps) for maps in zip(*done, strict=True))
        return older, newer

    def through_cells(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        for cell in self.cells:
            older, newer = newer, cell(older, newer)
        return older, newer


def wants_whole_batches(module: nn.Module) -> bool:
    """Whether it may compute statistics of batches, or has hooks."""
    watched = module._forward_hooks or module._forward_pre_hooks or nn.modules.module._has_any_global_hook()
    return bool(module.training or watched)


class CheckpointedPyramidStage(Form, PyramidStage):
    """A stage of MONet or DTTN of which training keeps the inputs of blocks only."""

    plain = PyramidStage

    def fast(self, x: Tensor) -> Tensor:
        return checkpoint_seq(self.blocks, self.downsampling(x))


NETWORK = (FastStack, FastCell, FastStage)


def accelerate(model: nn.Module) -> nn.Module:
    """Gives a network the forms that are fastest on a CPU, in place, and returns it.

    Results, gradients and the state dict stay the same. Training is several times as fast there, because PyTorch's own
    gradients of dilated depthwise convolutions are slow, and attention keeps no N x N weights for the backward pass, on
    any device. Works on any network that has our modules in it, and `restore` takes it back.
    """
    apply_forms(model, (*KERNELS, *NETWORK))
    return model


def save_memory(model: nn.Module, memory: Memory = "lean") -> nn.Module:
    """Sets what training keeps for the backward pass, in place, and returns the network, which is accelerated too.

    "plain" is whatever PyTorch keeps. "lean" keeps little besides the matrix products and recomputes the rest: a third
    of the memory, for a few percent more time. "least" keeps the outputs of cells and recomputes each cell. Networks
    without our cells can be "plain", or "least" if timm can recompute their blocks.
    """
    if memory not in get_args(Memory):
        raise PolyNeXtError(f"memory={memory!r} was given: choose {', '.join(get_args(Memory))}.")
    accelerate(model)
    parts = [module for module in model.modules() if isinstance(module, FastCell | FastStack)]
    for part in parts:
        part.memory = memory
    if parts:
        if memory == "lean":
            expect_recomputation()
        return model
    if any(isinstance(module, PyramidStage) for module in model.modules()) and memory != "lean":
        if memory == "least":
            apply_forms(model, [CheckpointedPyramidStage])
        else:
            restore(model)
        return model
    checkpointing: Any = getattr(model, "set_grad_checkpointing", None)
    if memory == "lean" or (memory == "least" and checkpointing is None):
        raise PolyNeXtError(f"{type(model).__name__} has no form of memory {memory!r}: choose 'plain'.")
    if checkpointing is not None:
        checkpointing(memory == "least")
    return model


def expect_recomputation() -> None:
    """Silences the compiler's warning that what it recomputes should change nothing in place: nothing of ours does."""
    logger = logging.getLogger("torch._higher_order_ops.wrap")
    if quiet_about_context not in logger.filters:
        logger.addFilter(quiet_about_context)


def quiet_about_context(record: logging.LogRecord) -> bool:
    return "context_fn" not in record.getMessage()
