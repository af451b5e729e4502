"""The networks with activations that the paper's Table S5 compares with, for images of 32 and 64 pixels.

timm's ResNet-18 (He et al., 2016), Mixer-S (Tolstikhin et al., "MLP-Mixer", 2021) and ResMLP-S12 (Touvron et al.,
"ResMLP", 2021). The paper does not say how it adapts them to small images. Here ResNet-18 has a 3x3 stem of stride 1
without pooling, and the MLPs have 8 x 8 patches, whatever the image size: with their 16-pixel patches, an image of 32
pixels would have four.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from polynext.models.registry import default_cfg
from polynext.preprocessing import CIFAR10_MEAN, CIFAR10_STD

PATCHES = 8  # along each side of the image
SHARED = {"num_classes": 10, "crop_pct": 1.0, "mean": CIFAR10_MEAN, "std": CIFAR10_STD}

default_cfgs = generate_default_cfgs(
    {
        "resnet18_lowres": default_cfg(32, 4, first_conv="conv1", classifier="fc", **SHARED),
        **{
            name: default_cfg(32, PATCHES, first_conv="stem.proj", classifier="head", fixed_input_size=True, **SHARED)
            for name in ("mixer_s_lowres", "resmlp_12_lowres")
        },
    }
)


class SmallResNet(ResNet):
    """ResNet with a 3x3 stem of stride 1 and no pooling before the first stage."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        old: Any = self.get_submodule("conv1")
        placed: Any = {"device": old.weight.device, "dtype": old.weight.dtype}
        self.conv1 = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1, bias=False, **placed)
        self.maxpool = nn.Identity()


@register_model
def resnet18_lowres(pretrained: bool = False, **options: Any) -> nn.Module:
    """ResNet-18 for small images."""
    options = dict(block=BasicBlock, layers=(2, 2, 2, 2), **options)
    return build_model_with_cfg(SmallResNet, "resnet18_lowres", pretrained, **options)


@register_model
def mixer_s_lowres(pretrained: bool = False, img_size: int = 32, **options: Any) -> nn.Module:
    """Mixer-S with 64 patches."""
    return create_mlp("mixer_s_lowres", pretrained, img_size, num_blocks=8, embed_dim=512, **options)


@register_model
def resmlp_12_lowres(pretrained: bool = False, img_size: int = 32, **options: Any) -> nn.Module:
    """ResMLP-S12 with 64 patches."""
    blocks: dict[str, Any] = {"block_layer": ResBlock, "norm_layer": Affine, "mlp_ratio": 4}
    return create_mlp("resmlp_12_lowres", pretrained, img_size, num_blocks=12, embed_dim=384, **blocks, **options)


def create_mlp(name: str, pretrained: bool, img_size: int, **options: Any) -> nn.Module:
    options |= {"img_size": img_size, "patch_size": img_size // PATCHES}
    return build_model_with_cfg(MlpMixer, name, pretrained, **options)
