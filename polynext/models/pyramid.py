"""The frame that the prior polynomial networks share: stem, four stages of blocks, mean pool, linear classifier.

MONet (`monet.py`) and DTTN (`dttn.py`) are their blocks in it, with the interface of a timm model.
"""

import copy
import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, checkpoint_seq
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.network import FullyPolynomialBlocks


class PyramidStage(nn.Module):
    """Blocks at one resolution, after a halving convolution from the second stage on. (B, C, H, W) in and out."""

    def __init__(self, downsampling: nn.Module, blocks: list[nn.Module]):
        super().__init__()
        self.downsampling = downsampling
        self.blocks = nn.Sequential(*blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsampling(x)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return checkpoint_seq(self.blocks, x)
        return self.blocks(x)


class PooledClassifier(nn.Module):
    """`W mean(x) + bias`: (B, C, H, W) to (B, classes); without pooling (B, classes, H, W)."""

    def __init__(self, channels: int, num_classes: int, pool: str, drop_rate: float, **dd: Any):
        super().__init__()
        self.channels = channels
        self.drop = nn.Dropout(drop_rate)
        self.reset(num_classes, pool, **dd)

    def reset(self, num_classes: int, pool: str | None = None, **dd: Any) -> None:
        if pool is not None:
            if pool not in ("avg", ""):
                raise PolyNeXtError(f"the network got global_pool={pool!r}: choose 'avg', or '' for no pooling.")
            self.pool = pool
        self.fc: nn.Module = nn.Linear(self.channels, num_classes, **dd) if num_classes > 0 else nn.Identity()

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x.mean(dim=(2, 3)) if self.pool else x.permute(0, 2, 3, 1)
        x = self.drop(x)
        x = x if pre_logits else self.fc(x)
        return x if self.pool else x.permute(0, 3, 1, 2)


class Pyramid(nn.Module, ABC):
    """The network, with the interface of a timm model. Subclasses give it its blocks.

    Args:
        depths: blocks of each stage.
        widths: channels of each stage.
        in_chans: image channels.
        num_classes: 0 for no classifier.
        global_pool: "avg", or "" for a map of logits.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0 at the first.
        polynomial: norms with running statistics in place of LayerNorm, so that inference is a polynomial.
    """

    halving_kernel: int  # of the convolutions between stages

    def __init__(
        self,
        depths: tuple[int, ...],
        widths: tuple[int, ...],
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        polynomial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        dd: Any = {"device": device, "dtype": dtype}
        self.in_chans, self.num_classes, self.drop_rate = in_chans, num_classes, drop_rate
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, widths[0], 2, 2, **dd), nn.Conv2d(widths[0], widths[0], 2, 2, **dd)
        )
        last_block = max(1, sum(depths) - 1)
        rates = iter([drop_path_rate * i / last_block for i in range(sum(depths))])
        stages = []
        for i, width in enumerate(widths):
            downsampling = nn.Identity() if i == 0 else self.downsampling(widths[i - 1], width, **dd)
            blocks = [self.block(width, number, polynomial, next(rates), **dd) for number in range(depths[i])]
            stages.append(PyramidStage(downsampling, blocks))
        self.stages = nn.Sequential(*stages)
        self.feature_info = [dict(num_chs=w, reduction=4 * 2**i, module=f"stages.{i}") for i, w in enumerate(widths)]
        self.num_features = self.head_hidden_size = widths[-1]
        self.head: Any = PooledClassifier(self.num_features, num_classes, global_pool, drop_rate, **dd)

    def downsampling(self, width_in: int, width_out: int, **dd: Any) -> nn.Module:
        kernel = self.halving_kernel
        return nn.Conv2d(width_in, width_out, kernel, stride=2, padding=(kernel - 1) // 2, **dd)

    @abstractmethod
    def block(self, width: int, number: int, polynomial: bool, drop_path_rate: float, **dd: Any) -> nn.Module:
        """The block of this number in its stage: (B, C, H, W) to (B, C, H, W)."""

    @property
    @torch.jit.unused
    def num_layers(self) -> int:
        """Layers as PolyNeXt counts them: whatever multiplies, the stem, the downsamplings, the classifier."""
        return sum(hasattr(m, "degree") for m in self.modules()) + 1 + (len(self.stages) - 1) + 1

    @property
    @torch.jit.unused
    def log2_degree(self) -> float:
        """Base-2 logarithm of the polynomial degree in the image, norms aside."""
        degrees: list[Any] = [m.degree for m in self.modules() if hasattr(m, "degree")]
        return sum(map(math.log2, degrees))

    @torch.no_grad()
    def fold(self) -> "Pyramid":
        """A copy for inference with norms of running statistics absorbed into the linear maps beside them."""
        folded = copy.deepcopy(self).eval()
        for stage in folded.stages.children():
            for block in stage.blocks.children():  # type: ignore[union-attr]
                block.absorb()  # type: ignore[operator]
        return folded.requires_grad_(False)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stages(self.stem(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The outputs of the stages in `indices`; there is no final norm to apply, and "NCHW" is all there is."""
        if output_fmt != "NCHW":
            raise PolyNeXtError(f"forward_intermediates got output_fmt={output_fmt!r}: the network gives 'NCHW' only.")
        wanted, last = feature_take_indices(len(self.stages), indices)
        x = self.stem(x)
        found = []
        for i, stage in enumerate(self.stages):
            if stop_early and i > last:
                break
            x = stage(x)
            if i in wanted:
                found.append(x)
        return found if intermediates_only else (x, found)

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new, untrained classifier; optionally another pooling."""
        self.num_classes = num_classes
        weight = next(self.stages.parameters())
        self.head.reset(num_classes, global_pool, device=weight.device, dtype=weight.dtype)

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages.children():
            stage.grad_checkpointing = enable  # type: ignore[assignment]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.blocks\.(\d+)"
        return dict(stem=r"^stem", blocks=[(blocks, None), (r"^stages\.(\d+)\.downsampling", (0,))])


class QuietBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that divides by much before it has seen a batch, as ours do (`FullyPolynomialBlocks.initial_var`): an
    untrained polynomial would overflow in eval mode.
    """

    def reset_running_stats(self) -> None:
        super().reset_running_stats()
        running_var: Any = self.running_var
        running_var.fill_(FullyPolynomialBlocks.initial_var)


def affine_of(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Factor and shift of each channel, in eval mode."""
    running_var: Any = norm.running_var
    factor = norm.weight * (running_var + norm.eps).rsqrt()
    return factor, norm.bias - norm.running_mean * factor


def scale_and_shift(layer: nn.Conv2d | nn.Linear, factor: Tensor, shift: Tensor | float = 0.0) -> None:
    """Changes a layer so that its output, channel by channel, is `factor * output + shift`."""
    assert layer.bias is not None
    layer.weight.mul_(factor.reshape(-1, *[1] * (layer.weight.ndim - 1)))
    layer.bias.mul_(factor).add_(shift)


CFG = {
    "input_size": (3, 224, 224),
    "pool_size": (7, 7),
    "num_classes": 1000,
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "stem.0",
    "classifier": "head.fc",
    "license": "apache-2.0",
}


def create(network: type[Pyramid], name: str, pretrained: bool, **options: Any) -> Pyramid:
    """What a registered function returns."""
    features = dict(out_indices=(0, 1, 2, 3), feature_cls="getter")
    return build_model_with_cfg(network, name, pretrained, feature_cfg=features, **options)
