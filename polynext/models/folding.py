"""An inference form of a network, with its constants absorbed into the weights.

Sigmoid-Scale becomes part of the last linear map or norm of each branch, attention's scale of the
query kernels. In the fully polynomial networks, whose norms are affine in eval mode, the norms become two maps of
constants, and the skip scales join those of the norm they feed: what remains is additions, multiplications and linear
maps. Norms that divide by their input's own statistics stay.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import Cell, PolyNeXt, Stack, take_any_batch
from polynext.nn import PolyAttention, PolyConv, PolyMLP, PositionNorm2d, RowSumNorm


class ConstantAffine(nn.Module):
    """`y = A x + B` with constants A and B of shape (C, H, W)."""

    def __init__(self, a: Tensor, b: Tensor):
        super().__init__()
        self.a, self.b = channels_last_constant(a), channels_last_constant(b)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.b, self.a, x)


class ConstantSkip(nn.Module):
    """`y = A0 x[t-2] + A1 x[t-1] + B`: a multi-input skip and the affine norm after it in one."""

    def __init__(self, a0: Tensor, a1: Tensor, b: Tensor):
        super().__init__()
        self.a0, self.a1, self.b = (channels_last_constant(t) for t in (a0, a1, b))

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return torch.addcmul(torch.addcmul(self.b, self.a0, older), self.a1, newer)


class ConstantRowFactor(nn.Module):
    """A row-sum norm in eval mode: each query's weighted sum times a constant of shape (H, W, heads, 1)."""

    def __init__(self, factor: Tensor):
        super().__init__()
        self.factor = nn.Buffer(factor)

    def forward(self, weighted: Tensor, row_sum: Tensor) -> Tensor:
        return weighted * self.factor


class FoldedStack(nn.Module):
    """`x = x + mixer(x); y = x + mlp(x)`, where the scales are part of the branches."""

    def __init__(self, stack: Stack):
        super().__init__()
        self.mixer, self.mlp = stack.mixer, stack.mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(x)
        return x + self.mlp(x)


class FoldedCell(nn.Module):
    """A cell without scales."""

    def __init__(self, cell: Cell):
        super().__init__()
        self.skip, self.norm = cell.skip, cell.norm
        self.stacks = nn.ModuleList(FoldedStack(stack) for stack in cell.stacks)
        self.compiled = False

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.norm(self.skip(older, newer))
        for stack in self.stacks:
            if self.compiled and not torch.jit.is_scripting():
                take_any_batch(x)
            x = stack(x)
        return x


def channels_last_constant(value: Tensor) -> nn.Buffer:
    """(C, H, W) in the memory order of the feature maps it meets."""
    return nn.Buffer(value.detach().unsqueeze(0).contiguous(memory_format=torch.channels_last))


@torch.no_grad()
def fold(model: PolyNeXt) -> PolyNeXt:
    """A copy of the model in eval mode, equal to it, with its constants absorbed. The copy cannot be trained."""
    folded = copy.deepcopy(model)
    for stage in folded.stages:
        cells: Any = stage.cells
        for i, cell in enumerate(cells):
            absorb_scales(cell)
            if isinstance(cell.norm, PositionNorm2d):
                fold_skip(cell)
            cells[i] = FoldedCell(cell)
    fold_norms(folded)
    return folded.eval().requires_grad_(False)


def absorb_scales(cell: Cell) -> None:
    scales = cell.scale.scales()
    stacks: Any = cell.stacks
    for stack in stacks:
        for branch, index in zip((stack.mixer, stack.mlp), stack.scale_indices, strict=True):
            scale_output(branch, scales[index])
        if isinstance(stack.mixer, PolyAttention):
            absorb_head_scale(stack.mixer)


def absorb_head_scale(attention: Any) -> None:
    kernels, scales = attention.k_q.weight, attention.scale.scales()
    kernels.mul_(scales.repeat_interleave(len(kernels) // len(scales))[:, None, None, None])
    attention.scale = nn.Identity()


def scale_output(branch: Any, scale: Tensor) -> None:
    """Multiplies a branch's output, by one number or one per channel, by changing what comes last in it."""
    if not isinstance(branch, PolyConv | PolyMLP | PolyAttention):
        raise PolyNeXtError(
            f"fold() cannot absorb the scale of {type(branch).__name__}, which it does not know: "
            "give a network of PolyConv, PolyMLP and PolyAttention."
        )
    if isinstance(branch, PolyConv) and isinstance(branch.norm, PositionNorm2d):
        branch.norm = ConstantAffine(*(scale.view(-1, 1, 1) * t for t in constants(branch.norm)))
        return
    last: list[Tensor] = list(branch.norm.parameters()) if isinstance(branch, PolyConv) else []
    if not last:
        last = [branch.w_o.weight if isinstance(branch, PolyMLP) else branch.w_out.weight]
    for parameter in last:
        parameter.mul_(scale.view(-1, *[1] * (parameter.ndim - 1)))


def constants(norm: PositionNorm2d) -> tuple[Tensor, Tensor]:
    """A and B of `y = A x + B` in eval mode."""
    return norm.affine(norm.running_mean, norm.running_var)


def fold_skip(cell: Cell) -> None:
    a, b = constants(cell.norm)
    cell.skip = ConstantSkip(a * cell.skip.s0[:, None, None], a * cell.skip.s1[:, None, None], b)
    cell.norm = nn.Identity()


def fold_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, PositionNorm2d):
            setattr(module, name, ConstantAffine(*constants(child)))
        elif isinstance(child, RowSumNorm):
            factor = child.gamma / (child.running_row_sum + child.eps)
            setattr(module, name, ConstantRowFactor(factor.T.reshape(*child.size, -1, 1)))
        else:
            fold_norms(child)
