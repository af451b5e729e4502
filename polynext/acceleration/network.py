"""Fast implementations of stacks, cells and stages: batches split to fit the caches, less memory, compiled stacks."""

import logging
from contextlib import nullcontext
from typing import Any, ClassVar, get_args

import torch
from timm.models import checkpoint_seq
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polynext.acceleration.cpu import cached_parts, is_compiled_cpu_inference, is_cpu_inference
from polynext.acceleration.fast_module import FastModule, replace_implementations, restore
from polynext.acceleration.kernels import OPERATORS
from polynext.acceleration.memory import Recomputable, add_branch, keep_products, recomputing, running_norms
from polynext.errors import PolyNeXtError
from polynext.models.network import Cell, Stack, Stage
from polynext.models.pyramid import PyramidStage
from polynext.schema import Memory


class FastStack(FastModule, Stack):
    """A stack whose scales include stochastic depth: one for each image (B, 1, 1, 1), zero for a dropped branch.

    All stacks of a stage are then the same function and are compiled once.
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
        if is_compiled_cpu_inference(x):
            torch.ops.polynext.add_scaled_to(x, mlp_scale, y)
            return y
        return torch.addcmul(x, mlp_scale, y)

    def with_drop_path(self, scale: Tensor, images: int) -> Tensor:
        """A scale times stochastic depth's factor of each image."""
        if self.training and not isinstance(self.drop_path, nn.Identity):
            return self.drop_path(scale.expand(images, -1 if scale.ndim else 1, 1, 1))
        return scale


class NormedSkip(nn.Module):
    """`norm(skip(older, newer))` as a module without weights, because `nn.Module.compile` needs one."""

    def forward(self, skip: nn.Module, norm: nn.Module, older: Tensor, newer: Tensor) -> Tensor:
        return norm(skip(older, newer))


class CompiledCell:
    """The inputs of a compiled cell, folded or not: its skip and norm are one program."""

    compiled = False

    def combine(self: Any, older: Tensor, newer: Tensor) -> Tensor:
        if self.compiled:
            older = older.view_as(newer)  # equal inputs, as in the first cell, would be another program
            mark_dynamic_batch(older, newer)
            return self.normed_skip(self.skip, self.norm, older, newer)
        return self.norm(self.skip(older, newer))


def mark_dynamic_batch(*inputs: Tensor) -> None:
    """Asks the compiler for a program that takes any number of images."""
    for x in inputs:
        if not torch.compiler.is_compiling() and x.ndim == 4:
            torch._dynamo.maybe_mark_dynamic(x, 0)


class FastCell(CompiledCell, FastModule, Cell):
    """A cell that can save memory in training, and whose stacks can be compiled."""

    plain = Cell
    memory: Memory = "plain"
    state: ClassVar = ("memory", "compiled", "normed_skip")

    def fast(self, older: Tensor, newer: Tensor) -> Tensor:
        if self.memory == "plain" or not torch.is_grad_enabled():
            return self.through_stacks(older, newer)
        if self.memory == "least":
            return self.checkpointed(older, newer)
        if self.compiled or torch.compiler.is_compiling():  # the stacks save memory
            return self.through_stacks(older, newer)
        return self.lean(older, newer)

    def through_stacks(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.combine(older, newer)
        scales = self.scale.factors()
        for stack in self.stacks:
            mixer_scale, mlp_scale = (stack.with_drop_path(scales[index], len(x)) for index in stack.scale_indices)
            if self.compiled:
                mark_dynamic_batch(x, mixer_scale, mlp_scale)
            x = stack(x, mixer_scale, mlp_scale)
        return x

    def lean(self, older: Tensor, newer: Tensor) -> Tensor:
        """The same, but keeps little besides the matrix products for the backward pass (see `memory.py`)."""
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
        """The same, but keeps only the inputs for the backward pass."""
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


class FastStage(FastModule, Stage):
    """Inference on a CPU processes as many images at a time as the caches hold the feature maps of."""

    plain = Stage

    def fast(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        if not is_cpu_inference(newer) or torch.compiler.is_compiling():
            return super().fast(older, newer)
        if self.downsampling is not None:
            older, newer = self.downsampling(older, newer)
        parts = cached_parts(len(newer), newer.shape[1:].numel() * newer.element_size())
        if parts < 2 or any(needs_whole_batch(module) for module in self.cells.modules()):
            return self.through_cells(older, newer)
        done = map(self.through_cells, older.tensor_split(parts), newer.tensor_split(parts))
        older, newer = (torch.cat(maps) for maps in zip(*done, strict=True))
        return older, newer

    def through_cells(self, older: Tensor, newer: Tensor) -> tuple[Tensor, Tensor]:
        for cell in self.cells:
            older, newer = newer, cell(older, newer)
        return older, newer


def needs_whole_batch(module: nn.Module) -> bool:
    """True in train mode, where norms compute batch statistics, and for modules with hooks."""
    hooked = module._forward_hooks or module._forward_pre_hooks or nn.modules.module._has_any_global_hook()
    return bool(module.training or hooked)


class CheckpointedPyramidStage(FastModule, PyramidStage):
    """A stage of MONet or DTTN that keeps only the inputs of its blocks for the backward pass."""

    plain = PyramidStage

    def fast(self, x: Tensor) -> Tensor:
        return checkpoint_seq(self.blocks, self.downsampling(x))


def accelerate(model: nn.Module) -> nn.Module:
    """Replaces the implementation of a network's modules by faster ones, in place, and returns the network.

    Results, gradients and the state dict stay the same. Training on a CPU is several times as fast, because PyTorch's
    own gradients of dilated depthwise convolutions are slow. On any device, attention keeps no N x N weights for the
    backward pass. Works on any network that contains modules of `polynext.nn`. `restore` undoes it.
    """
    replace_implementations(model, (*OPERATORS, FastStack, FastCell, FastStage))
    return model


def save_memory(model: nn.Module, memory: Memory = "lean") -> nn.Module:
    """Sets what training keeps for the backward pass, in place, and returns the network. Also accelerates it.

    Args:
        model: the network. "lean" is for PolyNeXt; other networks support "plain", and "least" if timm can checkpoint
            their blocks.
        memory: "plain" keeps what PyTorch keeps. "lean" keeps little besides the matrix products and recomputes the
            rest: a third of the memory, for 10 to 15% more time on a CPU. "least" keeps the outputs of cells and
            recomputes each cell.
    """
    if memory not in get_args(Memory):
        raise PolyNeXtError(f"memory is {memory!r}: choose {', '.join(get_args(Memory))}.")
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
            replace_implementations(model, [CheckpointedPyramidStage])
        else:
            restore(model)
        return model
    checkpointing: Any = getattr(model, "set_grad_checkpointing", None)
    if memory == "lean" or (memory == "least" and checkpointing is None):
        raise PolyNeXtError(f"{type(model).__name__} does not support memory {memory!r}: choose 'plain'.")
    if checkpointing is not None:
        checkpointing(memory == "least")
    return model


def expect_recomputation() -> None:
    """Silences the compiler's warning that recomputed code must not work in place: this code does not."""
    logging.getLogger("torch._higher_order_ops.wrap").addFilter(drop_context_warning)


def drop_context_warning(record: logging.LogRecord) -> bool:
    return "context_fn" not in record.getMessage()
