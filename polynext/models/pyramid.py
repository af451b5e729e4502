"""The frame that the prior polynomial networks share: stem, four stages of blocks, mean pool, linear classifier.

MONet (`monet.py`) and DTTN (`dttn.py`) define the blocks.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from timm.models import DefaultCfg, build_model_with_cfg, generate_default_cfgs
from torch import Tensor, nn

from polynext.models.backbone import Backbone
from polynext.models.blocks import FullyPolynomialBlocks
from polynext.models.registry import SUFFIXES, default_cfg, register
from polynext.nn import PooledClassifier, RunningNorm


class PyramidStage(nn.Module):
    """Blocks at one resolution, after a downsampling convolution from the second stage on. (B, C, H, W) in and out."""

    def __init__(self, downsampling: nn.Module, blocks: list[nn.Module]):
        super().__init__()
        self.downsampling = downsampling
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.downsampling(x))


class Pyramid(Backbone):
    """The network, with the interface of a timm model. Subclasses define `block` and `downsampling_kernel`.

    Args:
        depths: blocks of each stage.
        widths: channels of each stage.
        in_chans: image channels.
        num_classes: 0 for no classifier.
        global_pool: "avg", "max", or "" for a map of logits.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0 at the first.
        polynomial: norms with running statistics in place of LayerNorm, so that inference is a polynomial.
    """

    downsampling_kernel: int

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
        super().__init__(in_chans, num_classes, drop_rate)
        dd: Any = {"device": device, "dtype": dtype}
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
        self.stride = 4 * 2 ** (len(widths) - 1)
        self.norm = nn.Identity()
        self.num_layers = sum(hasattr(m, "degree") for m in self.stages.modules()) + 1 + (len(widths) - 1) + 1
        self.head: Any = PooledClassifier(self.num_features, num_classes, global_pool, drop_rate, **dd)

    def downsampling(self, width_in: int, width_out: int, **dd: Any) -> nn.Module:
        kernel = self.downsampling_kernel
        return nn.Conv2d(width_in, width_out, kernel, stride=2, padding=(kernel - 1) // 2, **dd)

    @abstractmethod
    def block(self, width: int, number: int, polynomial: bool, drop_path_rate: float, **dd: Any) -> nn.Module:
        """The block of this number in its stage: (B, C, H, W) to (B, C, H, W)."""

    def forward_features(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.stages(self.stem(x))

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check(x)
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            yield x

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.blocks\.(\d+)"
        return dict(stem=r"^stem", blocks=[(blocks, None), (r"^stages\.(\d+)\.downsampling", (0,))])


class RunningBatchNorm2d(nn.BatchNorm2d, RunningNorm):  # type: ignore[misc]  # mypy: momentum may be None in one
    """Batch norm that can be frozen, with a large initial variance: an untrained polynomial overflows in eval mode."""

    def __init__(self, channels: int, **dd: Any):
        super().__init__(channels, **dd)
        running_var: Any = self.running_var
        running_var.fill_(FullyPolynomialBlocks.initial_var)

    def _check_input_dim(self, input: Tensor) -> None:
        """Checks nothing: torch.fx cannot trace PyTorch's own check of the input in a subclass."""


def pyramid_cfgs(family: str, sizes: Iterable[str]) -> dict[str, DefaultCfg]:
    """timm's default configs of each size of a family, activation-free and fully polynomial."""
    names = [f"{family}_{size}{suffix}" for suffix in SUFFIXES.values() for size in sizes]
    return generate_default_cfgs(dict.fromkeys(names, default_cfg(first_conv="stem.0")))


def register_sizes(network: type[Pyramid], family: str, sizes: Mapping[str, Mapping[str, Any]]) -> None:
    """Registers each size of a network, activation-free and fully polynomial, with timm."""

    def build(name: str, pretrained: bool, **options: Any) -> nn.Module:
        size, polynomial = name.removeprefix(f"{family}_").removesuffix("_bn"), name.endswith("_bn")
        features = dict(out_indices=(0, 1, 2, 3), feature_cls="getter")
        options = {**sizes[size], "polynomial": polynomial, **options}
        return build_model_with_cfg(network, name, pretrained, feature_cfg=features, **options)

    for kind, suffix in SUFFIXES.items():
        for size, shape in sizes.items():
            stages = ", ".join(f"{depth} of width {width}" for depth, width in zip(*shape.values(), strict=True))
            doc = f"{network.__name__}-{size[0].upper()}, {kind}; blocks of each stage: {stages}."
            register(network.__module__, f"{family}_{size}{suffix}", kind, doc, build)
