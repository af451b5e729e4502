"""ConvFormer for small images: the MetaFormer peers of the small PolyNeXt networks, at equal depth and size.

timm's ConvFormer (Yu et al., "MetaFormer Baselines for Vision", 2024) with a 3x3 stem.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.metaformer import LayerNorm2dNoBias, MetaFormer, SepConv
from torch import nn

from polynext.models.registry import default_cfg
from polynext.preprocessing import CIFAR10_MEAN, CIFAR10_STD

SHARED = {"num_classes": 10, "crop_pct": 1.0, "first_conv": "stem.conv", "classifier": "head.fc2"}

default_cfgs = generate_default_cfgs(
    {
        "convformer_ablate_digits": default_cfg(8, 8, input_size=(1, 8, 8), mean=(0.5,), std=(0.5,), **SHARED),
        "convformer_ablate_cifar10": default_cfg(32, 4, mean=CIFAR10_MEAN, std=CIFAR10_STD, **SHARED),
    }
)


class SmallConvFormer(MetaFormer):
    """ConvFormer with a 3x3 stem of any stride in place of the 7x7 one of stride 4."""

    def __init__(self, depths: tuple[int, ...], dims: tuple[int, ...], stem_stride: int = 1, **options: Any):
        super().__init__(
            depths=depths,
            dims=dims,
            token_mixers=[SepConv] * len(depths),
            norm_layers=[LayerNorm2dNoBias] * len(depths),
            res_scale_init_values=(None, None, 1.0, 1.0)[: len(depths)],
            **options,
        )
        old = self.stem.conv
        placed: Any = {"device": old.weight.device, "dtype": old.weight.dtype}
        self.stem.conv = nn.Conv2d(old.in_channels, old.out_channels, 3, stem_stride, padding=1, **placed)


def _create(name: str, pretrained: bool, **options: Any) -> nn.Module:
    return build_model_with_cfg(SmallConvFormer, name, pretrained, **options)


@register_model
def convformer_ablate_digits(pretrained: bool = False, **options: Any) -> nn.Module:
    """The peer of `cpolynext_ablate_digits`."""
    return _create("convformer_ablate_digits", pretrained, depths=(6,), dims=(9,), **options)


@register_model
def convformer_ablate_cifar10(pretrained: bool = False, **options: Any) -> nn.Module:
    """The peer of `cpolynext_ablate_cifar10`."""
    options = dict(depths=(3, 3, 3), dims=(16, 32, 61), stem_stride=2, **options)
    return _create("convformer_ablate_cifar10", pretrained, **options)
