"""An inference form of a network, with its constants absorbed into the weights.

Sigmoid-Scale becomes part of the last linear map or norm of each branch, attention's scale of the query kernels. The
fully polynomial norms are affine in eval mode,

    y = p (gamma_c x) + q gamma_c,    p = gamma_hw / sqrt(var + eps),    q = -p mu,

and fall apart: gamma becomes part of a matrix beside the norm; p and q, which have one number for each position, wait
for the residual connection, for W (p x + q v) = p W x + q W v. What remains is additions, multiplications and linear
maps. Norms that divide by their input's own statistics stay.
"""

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polynext.acceleration.folded_pyramid import fold_pyramid
from polynext.acceleration.forms import Form, SavedContiguous, apply_forms, restore
from polynext.acceleration.network import CompiledEntry, accelerate, take_any_batch
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
    """`y = A x + B` with constants A and B that go with (C, H, W)."""

    def __init__(self, a: Tensor, b: Tensor):
        super().__init__()
        self.a, self.b = constant(a), constant(b)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.b, self.a, x)


class ConstantSkip(SavedContiguous):
    """`y = p (s0 x[t-2] + s1 x[t-1]) + q v`: a multi-input skip and the affine norm after it in one."""

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
    """`x + z`, for a branch that has no constants left."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x + z


class ConstantResidual(SavedContiguous):
    """`x + p z + q v`, for a branch whose affine norm comes here: z is the branch without it."""

    def __init__(self, p: Tensor, q: Tensor, v: Tensor):
        super().__init__()
        self.p, self.q, self.v = (constant(t) for t in (p, q, v))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.addcmul(torch.addcmul(x, self.p, z), self.q, self.v)


class FoldedStack(nn.Module):
    """A mixer and an MLP, whose scales are part of them."""

    def __init__(self, stack: Stack, add_mixer: nn.Module, add_mlp: nn.Module):
        super().__init__()
        self.mixer, self.add_mixer = stack.mixer, add_mixer
        self.mlp, self.add_mlp = stack.mlp, add_mlp

    def forward(self, x: Tensor) -> Tensor:
        x = self.add_mixer(x, self.mixer(x))
        return self.add_mlp(x, self.mlp(x))


class FoldedCell(nn.Module):
    """A cell without scales."""

    def __init__(self, cell: Cell, stacks: list[FoldedStack]):
        super().__init__()
        self.skip, self.norm = cell.skip, cell.norm
        self.stacks = nn.ModuleList(stacks)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.norm(self.skip(older, newer))
        for stack in self.stacks:
            x = stack(x)
        return x


class FastFoldedCell(CompiledEntry, Form, FoldedCell):
    """A folded cell whose stacks may be compiled."""

    plain = FoldedCell
    state: ClassVar = ("compiled", "entry")

    def fast(self, older: Tensor, newer: Tensor) -> Tensor:
        x = self.enter(older, newer)
        for stack in self.stacks:
            if self.compiled:
                take_any_batch(x)
            x = stack(x)
        return x


def constant(value: Tensor) -> nn.Buffer:
    """(C, H, W), or what goes with it, in the memory order of the feature maps it meets."""
    return nn.Buffer(value.detach().unsqueeze(0).contiguous(memory_format=torch.channels_last))


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """An equal copy of the model in eval mode with its constants absorbed, accelerated. It cannot be trained."""
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
            f"a {type(model).__name__} cannot be folded: only PolyNeXt, MONet and DTTN can, leave `fold` out."
        )
    apply_forms(folded, [FastFoldedCell])
    return accelerate(folded.eval()).requires_grad_(False)


def fold_cell(cell: Cell) -> FoldedCell:
    if isinstance(cell.norm, PositionNorm2d) and isinstance(cell.skip, MultiInputSkip):
        gamma, *rest = factors(cell.norm)
        cell.skip = ConstantSkip(gamma * as_map(cell.skip.s0), gamma * as_map(cell.skip.s1), *rest)
        cell.norm = nn.Identity()
    scales = cell.scale.scales()
    stacks: list[FoldedStack] = []
    for stack in cell.stacks:
        branches = zip((stack.mixer, stack.mlp), stack.scale_indices, strict=True)
        stacks.append(FoldedStack(stack, *(fold_branch(branch, scales[index]) for branch, index in branches)))
    return FoldedCell(cell, stacks)


def fold_branch(branch: Any, scale: Tensor) -> nn.Module:
    """Absorbs a branch's scale, one number or one per channel, and its affine norm. Returns what adds it."""
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
        f"fold() cannot absorb the scale of {type(branch).__name__}, which it does not know: "
        "give a network of PolyConv, PolyMLP and PolyAttention."
    )


def fold_conv(branch: PolyConv, scale: Tensor) -> nn.Module:
    """PolyConv ends with its norm."""
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
    """A norm in front of the branch's last matrix."""
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
    """The norm that attention begins with: without a beta, its gamma is a part of the matrix that follows."""
    norm = attention.norm
    if isinstance(norm, PositionNorm2d) and norm.beta_c is None:
        gamma, p, q, _ = factors(norm)
        attention.w_qkv.weight.mul_(gamma)
        attention.norm = ConstantAffine(p, q)


def factors(norm: PositionNorm2d) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gamma (C, 1, 1), p (1, H, W), q and v of `y = p (gamma x) + q v` in eval mode.

    q is (1, H, W) and v is gamma, unless the norm has a beta: then q is a whole map (C, H, W) and v is one.
    """
    gamma = as_map(norm.gamma_c)
    p = (norm.gamma_hw * (norm.running_var + norm.eps).rsqrt()).unsqueeze(0)
    if norm.beta_c is None:
        return gamma, p, -p * norm.running_mean, gamma
    return gamma, p, constants(norm)[1], torch.ones_like(gamma[:1])


def constants(norm: PositionNorm2d) -> tuple[Tensor, Tensor]:
    """A and B of `y = A x + B` in eval mode."""
    return norm.affine(norm.running_mean, norm.running_var)


def as_map(channels: Tensor) -> Tensor:
    return channels.view(-1, 1, 1)


def scale_outputs(matrix: PointwiseConv2d, scale: Tensor) -> None:
    matrix.weight.mul_(scale.unsqueeze(-1))


def absorb_head_scale(attention: Any) -> None:
    kernels, scales = attention.k_q.weight, attention.scale.scales()
    kernels.mul_(scales.repeat_interleave(len(kernels) // len(scales))[:, None, None, None])
    attention.scale = nn.Identity()


def fold_norms(module: nn.Module) -> None:
    """The norms that no branch ends with."""
    for name, child in module.named_children():
        if isinstance(child, PositionNorm2d):
            setattr(module, name, ConstantAffine(*constants(child)))
        elif isinstance(child, RowSumNorm):
            factor = child.gamma / (child.running_row_sum + child.eps)
            setattr(module, name, ConstantRowFactor(factor.T.reshape(*child.size, -1, 1)))
        else:
            fold_norms(child)
