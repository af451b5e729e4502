"""Normalisation: LayerNorm for the main models, norms with running statistics for the fully polynomial ones."""

from collections.abc import Callable, Iterable
from typing import Unpack

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn.placement import Placement

MOMENTUM = 0.1  # weight of a new batch in the running statistics

# Builds a norm from a number of channels, `device` and `dtype`.
NormMaker = Callable[..., nn.Module]


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of each position, with a weight and by default no bias.

    `y = gamma_c * (x - mean_c(x)) / sqrt(var_c(x) + eps)`, shapes (B, C, H, W) to (B, C, H, W).
    Divides by a function of its input, so it is not a polynomial.
    """

    def __init__(self, channels: int, eps: float = 1e-5, bias: bool = False, **dd: Unpack[Placement]):
        super().__init__(channels, eps=eps, bias=bias, **dd)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class RunningNorm(nn.Module):
    """Base of norms with running statistics, which training updates as `nn.BatchNorm2d` does.

    A frozen norm stays in eval mode while the rest of its network trains.
    """

    def __init__(self) -> None:
        super().__init__()
        self.momentum = MOMENTUM
        self.frozen = False

    def train(self, mode: bool = True) -> "RunningNorm":
        return super().train(mode and not self.frozen)


def with_running_statistics(model: nn.Module) -> list[RunningNorm]:
    """The norms whose statistics training updates."""
    norms = [module for module in model.modules() if isinstance(module, RunningNorm) and not module.frozen]
    if not norms:
        raise PolyNeXtError(f"{type(model).__name__} has no running statistics: use a `_bn` model.")
    return norms


def freeze_statistics(model: nn.Module) -> None:
    """Freezes the running statistics: from now on the network trains as the polynomial that it is at inference."""
    for norm in with_running_statistics(model):
        norm.frozen = True
        norm.eval()


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Sets the running statistics to their means over batches of images. Leaves the network in eval mode."""
    norms = with_running_statistics(model.eval())  # stochastic depth would change the statistics
    for norm in norms:
        norm.train()
    for i, images in enumerate(batches):
        for norm in norms:
            norm.momentum = 1 / (i + 1)
        model(images)
    for norm in norms:
        norm.momentum = MOMENTUM
        norm.eval()


class PositionNorm2d(RunningNorm):
    """The polynomial-compatible BatchNorm of the fully polynomial models (Section 4.6, Appendix C.5).

    It has one mean and variance for each position (h, w), over batch and channels, and a factorised affine map:

        y = (gamma_c * gamma_hw) * (x - mu_hw) / sqrt(var_hw + eps)  [+ beta_c + beta_hw if beta]

    Shapes (B, C, H, W) to (B, C, H, W). In eval mode mu and var are running estimates, so the norm is an affine map of
    degree 1. In a distributed run each process has its own statistics, as in the paper; `SyncPositionNorm2d` shares
    them.

    Args:
        channels: C.
        size: (H, W); other sizes are an error.
        eps: added to the variance.
        beta: add shifts; the published networks have none.
        initial_var: the running variance before the first batch.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        eps: float = 1e-5,
        beta: bool = False,
        initial_var: float = 1.0,
        **dd: Unpack[Placement],
    ):
        super().__init__()
        self.size = (size[0], size[1])
        self.eps = eps
        self.gamma_c = nn.Parameter(torch.ones(channels, **dd))
        self.gamma_hw = nn.Parameter(torch.ones(self.size, **dd))
        if beta:
            self.beta_c = nn.Parameter(torch.zeros(channels, **dd))
            self.beta_hw = nn.Parameter(torch.zeros(self.size, **dd))
        else:
            self.register_parameter("beta_c", None)
            self.register_parameter("beta_hw", None)
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(self.size, **dd))
        self.register_buffer("running_var", torch.full(self.size, initial_var, **dd))

    def affine(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """A and B of `y = A x + B`, both (C, H, W), as Appendix C.5 collapses the norm."""
        mean, var = mean.to(self.gamma_hw.dtype), var.to(self.gamma_hw.dtype)
        # (H, W, C): the memory order of channels-last feature maps
        weight = (self.gamma_hw * (var + self.eps).rsqrt()).unsqueeze(-1) * self.gamma_c
        bias = -weight * mean.unsqueeze(-1)
        if self.beta_c is not None and self.beta_hw is not None:
            bias = bias + self.beta_c + self.beta_hw.unsqueeze(-1)
        return weight.permute(2, 0, 1), bias.permute(2, 0, 1)

    def batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance (H, W) over batch and channels, in the dtype of the running statistics."""
        var, mean = torch.var_mean(x.to(self.running_mean.dtype), dim=(0, 1), correction=0)
        return mean, var

    def forward(self, x: Tensor) -> Tensor:
        check_size("PositionNorm2d", (x.shape[2], x.shape[3]), self.size)
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = self.batch_statistics(x)
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_(var.detach(), self.momentum)
        weight, bias = self.affine(mean, var)
        return torch.addcmul(bias, weight, x)

    def extra_repr(self) -> str:
        return f"{len(self.gamma_c)}, size={self.size}, beta={self.beta_c is not None}"


class SyncPositionNorm2d(PositionNorm2d):
    """PositionNorm2d with statistics over the batches of all processes of a distributed run."""

    def batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        own_mean, own_var = super().batch_statistics(x)
        mean = average_over_processes(own_mean)
        return mean, average_over_processes(own_var + (own_mean - mean).square())


class RowSumNorm(RunningNorm):
    """Normalisation of polynomial attention in the fully polynomial models (Appendix C.5).

    Divides each query's weighted sum of values by a running estimate of its row sum:

        y_hi = gamma_hi * (sum_j A_hij v_j) / (R_hi + eps),    R_hi = E_b[sum_j A_bhij]

    Shapes: weighted sums (B, H, W, heads, d) and row sums (B, H, W, heads) to (B, H, W, heads, d). In eval mode R is a
    constant, so the degree is 1 in the weighted sums. `keys` is the number of keys of a query, H W by default.
    """

    def __init__(
        self, heads: int, size: tuple[int, int], keys: int | None = None, eps: float = 1e-6, **dd: Unpack[Placement]
    ):
        super().__init__()
        self.size = (size[0], size[1])
        self.eps = eps
        queries = self.size[0] * self.size[1]
        self.gamma = nn.Parameter(torch.ones(heads, queries, **dd))
        self.running_row_sum: Tensor
        # Attention weights are close to 1 at initialisation, so a row sums to about its number of keys.
        start = torch.full((heads, queries), float(keys or queries), **dd)
        self.register_buffer("running_row_sum", start)

    def batch_row_sum(self, row_sum: Tensor) -> Tensor:
        """Mean over the batch, (H, W, heads)."""
        return row_sum.mean(dim=0)

    def forward(self, weighted: Tensor, row_sum: Tensor) -> Tensor:
        check_size("RowSumNorm", (row_sum.shape[1], row_sum.shape[2]), self.size)
        mean = self.running_row_sum
        if self.training:
            mean = self.batch_row_sum(row_sum).flatten(0, 1).T
            self.running_row_sum.lerp_(mean.detach().to(self.running_row_sum.dtype), self.momentum)
        factor = self.gamma / (mean + self.eps)  # (heads, queries)
        return weighted * factor.T.reshape(self.size[0], self.size[1], -1, 1)

    def extra_repr(self) -> str:
        return f"heads={len(self.gamma)}, size={self.size}"


class SyncRowSumNorm(RowSumNorm):
    """RowSumNorm with statistics over the batches of all processes of a distributed run."""

    def batch_row_sum(self, row_sum: Tensor) -> Tensor:
        return average_over_processes(super().batch_row_sum(row_sum))


@torch.fx.wrap
def average_over_processes(value: Tensor) -> Tensor:
    """Differentiable mean over the processes of a distributed run; the value itself if there is one process."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return value
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(value) / dist.get_world_size()


@torch.fx.wrap
def check_size(owner: str, given: tuple[int, int], size: tuple[int, int]) -> None:
    if given != size:
        raise PolyNeXtError(
            f"{owner} got a {given[0]}x{given[1]} feature map but holds statistics for {size[0]}x{size[1]}: "
            "resize the images, or build and train the network with this img_size."
        )
