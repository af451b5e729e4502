"""Folding: a copy of a network for inference, with its constants absorbed into the weights.

Sigmoid-Scale becomes part of the last linear map or norm of each branch, attention's scale part of the query kernels.
The fully polynomial norms are affine in eval mode:

    y = p (gamma_c x) + q gamma_c,    p = gamma_hw / sqrt(var + eps),    q = -p mu.

gamma_c becomes part of a neighbouring matrix. p and q have one number for each position, so they commute with a matrix
over channels, W (p x + q v) = p W x + q W v, and move to the residual connection. Additions, multiplications and linear
maps remain. LayerNorm stays, because it divides by statistics of its input.
"""

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polynext.acceleration.fast_module import FastModule, SavedContiguous, replace_implementations, restore
from polynext.acceleration.folded_pyramid import fold_pyramid
from polynext.acceleration.network import CompiledCell, accelerate, mark_dynamic_batch
from polynext.errors import PolyNeXtError
from polynext.models.network import Cell, PolyNeXt, Stack
from polynext.models.pyramid import Pyramid
from polynext.nn import (
    MultiInputSkip,
    PointwiseConv2d,
    PolyAttention,
    PolyConv,
    PolyMLP,
    PositionNorm2d,
    RowSumNorm,
)
from polynext.nn.norm import check_size


class ConstantAffine(SavedContiguous):
    """`y = A x + B` with constants A and B that broadcast with (C, H, W)."""

    def __init__(self, a: Tensor, b: Tensor):
        super().__init__()
        self.a, self.b = constant(a), constant(b)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.b, self.a, x)


class ConstantSkip(SavedContiguous):
    """`y = p (s0 x[t-2] + s1 x[t-1]) + q v`: a multi-input skip together with the affine norm after it."""

    def __init__(self, s0: Tensor, s1: Tensor, p: Tensor, q: Tensor, v: Tensor):
        super().__init__()
        self.s0, self.s1, self.p, self.q, self.v = (constant(t) for t in (s0, s1, p, q, v))
        self.size = (p.shape[1], p.shape[2])

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        check_size("the folded network", (newer.shape[2], newer.shape[3]), self.size)
        x = torch.addcmul(self.s0 * older, self.s1, newer)
        return torch.addcmul(x * self.p, self.q, self.v)


class ConstantRowFactor(nn.Module):
    """A row-sum norm in eval mode: each query's weighted sum times a constant of shape (H, W, heads, 1)."""

    def __init__(self, factor: Tensor):
        super().__init__()
        self.factor = nn.Buffer(factor)

    def forward(self, weighted: Tensor, row_sum: Tensor) -> Tensor:
        return weighted * self.factor


class Residual(nn.Module):
    """`x + z`, for a branch whose constants are all absorbed."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x + z


class ConstantResidual(SavedContiguous):
    """`x + p z + q v`, for a branch whose affine norm has moved here: z is the branch without it."""

    def __init__(self, p: Tensor, q: Tensor, v: Tensor):
        super().__init__()
        self.p, self.q, self.v = (constant(t) for t in (p, q, v))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.addcmul(torch.addcmul(x, self.p, z), self.q, self.v)


class FoldedStack(nn.Module):
    """A stack whose scales are part of its mixer and MLP."""

    def __init__(self, stack: Stack, add_mixer: nn.Module, add_mlp: nn.Module):
        super().__init__()
        self.mixer, self.add_mixer = stack.mixer, add_mixer
        self.mlp, self.add_mlp = stack.mlp, add_mlp

    def forward(self, x: Tensor) -> Tensor:
        x = self.add_mixer(x, self.mixer(x))
        return self.add_mlp(x, self.mlp(x))


class FoldedCell(nn.Module):
    """A cell of folded stacks, which have no scales."""

    def __init__(self, cell: Cell, stacks: list[FoldedStack]):
        super().__init__()
        self.skip, self.norm = cell.skip, cell.norm
        self.stacks = nn.ModuleList(stacks)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.norm(self.skip(older, newer))
        for stack in self.stacks:
            x = stack(x)
        return x


class FastFoldedCell(CompiledCell, FastModule, FoldedCell):
    """A folded cell whose stacks can be compiled."""

    plain = FoldedCell
    state: ClassVar = ("compiled", "normed_skip")

    def fast(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.combine(older, newer)
        for stack in self.stacks:
            if self.compiled:
                mark_dynamic_batch(x)
            x = stack(x)
        return x


def constant(value: Tensor) -> nn.Buffer:
    """A buffer that broadcasts with feature maps and has their memory order."""
    return nn.Buffer(value.detach().unsqueeze(0).contiguous(memory_format=torch.channels_last))


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode with its constants absorbed into the weights. It cannot be trained."""
    folded: Any = restore(copy.deepcopy(model))
    if isinstance(model, Pyramid):
        fold_pyramid(folded)
    elif isinstance(model, PolyNeXt):
        for stage in folded.stages:
            for i, cell in enumerate(stage.cells):
                stage.cells[i] = fold_cell(cell)
        fold_norms(folded)
    else:
        raise PolyNeXtError(
            f"a {type(model).__name__} cannot be folded: only PolyNeXt, MONet and DTTN can. Use it without `fold`."
        )
    replace_implementations(folded, [FastFoldedCell])
    return accelerate(folded.eval()).requires_grad_(False)


def fold_cell(cell: Cell) -> FoldedCell:
    if isinstance(cell.norm, PositionNorm2d) and isinstance(cell.skip, MultiInputSkip):
        gamma, *rest = factors(cell.norm)
        cell.skip = ConstantSkip(gamma * as_map(cell.skip.s0), gamma * as_map(cell.skip.s1), *rest)
        cell.norm = nn.Identity()
    scales = cell.scale.scales()
    return FoldedCell(
        cell,
        [
            FoldedStack(stack, fold_branch(stack.mixer, scales[mixer]), fold_branch(stack.mlp, scales[mlp]))
            for stack in cell.stacks
            for mixer, mlp in [stack.scale_indices]
        ],
    )


def fold_branch(branch: Any, scale: Tensor) -> nn.Module:
    """Absorbs a branch's scale, one number or one per channel, and its affine norm. Returns the residual addition."""
    scale = as_map(scale.reshape(-1))
    if isinstance(branch, PolyConv):
        return fold_conv(branch, scale)
    if isinstance(branch, PolyMLP):
        scale_outputs(branch.w_o, scale)
        return fold_norm_before(branch, "norm", branch.w_o)
    if isinstance(branch, PolyAttention):
        absorb_head_scale(branch)
        fold_norm_first(branch)
        scale_outputs(branch.w_out, scale)
        return fold_norm_before(branch, "out_norm", branch.w_out)
    raise PolyNeXtError(
        f"fold cannot absorb the scale of {type(branch).__name__}: give a network of PolyConv, PolyMLP and "
        "PolyAttention."
    )


def fold_conv(branch: PolyConv, scale: Tensor) -> nn.Module:
    """PolyConv ends with its norm, which absorbs the scale."""
    if isinstance(branch.norm, PositionNorm2d):
        gamma, p, q, v = factors(branch.norm)
        scale_outputs(branch.w_out, scale * gamma)
        branch.norm = nn.Identity()
        return ConstantResidual(p, q, scale * v)
    last = list(branch.norm.parameters())
    for parameter in last:
        parameter.mul_(scale.flatten())
    if not last:
        scale_outputs(branch.w_out, scale)
    return Residual()


def fold_norm_before(branch: nn.Module, name: str, matrix: PointwiseConv2d) -> nn.Module:
    """Absorbs an affine norm before the branch's last matrix."""
    norm = getattr(branch, name)
    if not isinstance(norm, PositionNorm2d):
        return Residual()
    gamma, p, q, v = factors(norm)
    if len(q) == 1:
        v = matrix(v.unsqueeze(0))[0]
    else:
        q = matrix((q * v).unsqueeze(0))[0]
    matrix.weight.mul_(gamma)
    setattr(branch, name, nn.Identity())
    return ConstantResidual(p, q, v)


def fold_norm_first(attention: PolyAttention) -> None:
    """Absorbs the gamma of attention's pre-norm into the matrix after it, unless the norm has a beta."""
    norm = attention.norm
    if isinstance(norm, PositionNorm2d) and norm.beta_c is None:
        gamma, p, q, _ = factors(norm)
        attention.w_qkv.weight.mul_(gamma)
        attention.norm = ConstantAffine(p, q)


def factors(norm: PositionNorm2d) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gamma (C, 1, 1), p (1, H, W), q and v of `y = p (gamma x) + q v` in eval mode.

    q is (1, H, W) and v is gamma. With a beta, q is a map (C, H, W) and v is 1.
    """
    gamma = as_map(norm.gamma_c)
    p = (norm.gamma_hw * (norm.running_var + norm.eps).rsqrt()).unsqueeze(0)
    if norm.beta_c is None:
        return gamma, p, -p * norm.running_mean, gamma
    return gamma, p, norm.affine(norm.running_mean, norm.running_var)[1], torch.ones_like(gamma[:1])


def as_map(channels: Tensor) -> Tensor:
    return channels.view(-1, 1, 1)


def scale_outputs(matrix: PointwiseConv2d, scale: Tensor) -> None:
    matrix.weight.mul_(scale.unsqueeze(-1))


def absorb_head_scale(attention: Any) -> None:
    kernels, scales = attention.k_q.weight, attention.scale.scales()
    kernels.mul_(scales.repeat_interleave(len(kernels) // len(scales))[:, None, None, None])
    attention.scale = nn.Identity()


def fold_norms(module: nn.Module) -> None:
    """Replaces the remaining affine norms by constants."""
    for name, child in module.named_children():
        if isinstance(child, PositionNorm2d):
            setattr(module, name, ConstantAffine(*child.affine(child.running_mean, child.running_var)))
        elif isinstance(child, RowSumNorm):
            factor = child.gamma / (child.running_row_sum + child.eps)
            setattr(module, name, ConstantRowFactor(factor.T.reshape(*child.size, -1, 1)))
        else:
            fold_norms(child)
