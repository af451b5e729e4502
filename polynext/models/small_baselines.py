"""Networks with activations to compare with, built from timm's for small images.

The paper's Table S5 compares with ResNet-18 (He et al., 2016), Mixer-S (Tolstikhin et al., "MLP-Mixer", 2021) and
ResMLP-S12 (Touvron et al., "ResMLP", 2021) at 32 and 64 pixels. It does not say how it adapts them. Here ResNet-18 has
a 3x3 stem of stride 1 without pooling, and the MLPs have 8 x 8 patches, whatever the image size: with their 16-pixel
patches, an image of 32 pixels would have four. ConvFormer (Yu et al., "MetaFormer Baselines for Vision", 2024) with a
3x3 stem is the peer of the small PolyNeXt networks, at equal depth and size.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.metaformer import LayerNorm2dNoBias, MetaFormer, SepConv
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from polynext.models.registry import default_cfg
from polynext.preprocessing import CIFAR10_MEAN, CIFAR10_STD

PATCHES = 8  # along each side of the image
SHARED: dict[str, Any] = {"num_classes": 10, "crop_pct": 1.0}
CIFAR10: dict[str, Any] = {**SHARED, "mean": CIFAR10_MEAN, "std": CIFAR10_STD}
CONVFORMER = {"first_conv": "stem.conv", "classifier": "head.fc2"}
MLP = {"first_conv": "stem.proj", "classifier": "head", "fixed_input_size": True}

default_cfgs = generate_default_cfgs(
    {
        "resnet18_lowres": default_cfg(32, 4, first_conv="conv1", classifier="fc", **CIFAR10),
        "mixer_s_lowres": default_cfg(32, PATCHES, **MLP, **CIFAR10),
        "resmlp_12_lowres": default_cfg(32, PATCHES, **MLP, **CIFAR10),
        "convformer_ablate_cifar10": default_cfg(32, 4, **CONVFORMER, **CIFAR10),
        "convformer_ablate_digits": default_cfg(
            8, 8, input_size=(1, 8, 8), mean=(0.5,), std=(0.5,), **CONVFORMER, **SHARED
        ),
    }
)


def small_stem(old: nn.Conv2d, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """A 3x3 convolution in place of a network's first one."""
    placed: Any = {"device": old.weight.device, "dtype": old.weight.dtype}
    return nn.Conv2d(old.in_channels, old.out_channels, 3, stride, padding=1, bias=bias, **placed)


class SmallResNet(ResNet):
    """ResNet with a 3x3 stem of stride 1 and no pooling before the first stage."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        first: Any = self.get_submodule("conv1")
        self.conv1 = small_stem(first, bias=False)
        self.maxpool = nn.Identity()


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
        self.stem.conv = small_stem(self.stem.conv, stem_stride)


@register_model
def resnet18_lowres(pretrained: bool = False, **options: Any) -> nn.Module:
    """ResNet-18 for small images."""
    options = dict(block=BasicBlock, layers=(2, 2, 2, 2), **options)
    return build_model_with_cfg(SmallResNet, "resnet18_lowres", pretrained, **options)


@register_model
def mixer_s_lowres(pretrained: bool = False, **options: Any) -> nn.Module:
    """Mixer-S with 64 patches."""
    return create_mlp("mixer_s_lowres", pretrained, num_blocks=8, embed_dim=512, **options)


@register_model
def resmlp_12_lowres(pretrained: bool = False, **options: Any) -> nn.Module:
    """ResMLP-S12 with 64 patches."""
    blocks: dict[str, Any] = {"block_layer": ResBlock, "norm_layer": Affine, "mlp_ratio": 4}
    return create_mlp("resmlp_12_lowres", pretrained, num_blocks=12, embed_dim=384, **blocks, **options)


def create_mlp(name: str, pretrained: bool, img_size: int = 32, **options: Any) -> nn.Module:
    options |= {"img_size": img_size, "patch_size": img_size // PATCHES}
    return build_model_with_cfg(MlpMixer, name, pretrained, **options)


@register_model
def convformer_ablate_digits(pretrained: bool = False, **options: Any) -> nn.Module:
    """The peer of `cpolynext_ablate_digits`."""
    options = dict(depths=(6,), dims=(9,), **options)
    return build_model_with_cfg(SmallConvFormer, "convformer_ablate_digits", pretrained, **options)


@register_model
def convformer_ablate_cifar10(pretrained: bool = False, **options: Any) -> nn.Module:
    """The peer of `cpolynext_ablate_cifar10`."""
    options = dict(depths=(3, 3, 3), dims=(16, 32, 61), stem_stride=2, **options)
    return build_model_with_cfg(SmallConvFormer, "convformer_ablate_cifar10", pretrained, **options)
