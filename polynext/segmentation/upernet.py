"""UPerNet: a pyramid pooling module on the coarsest features, and a feature pyramid down to the finest.

    features: of the backbone's last four stages (1/4, 1/8, 1/16, 1/32), each with a LayerNorm
    coarsest: pooled to 1x1, 2x2, 3x3 and 6x6, resized back, concatenated, 3x3 convolution
    others:   1x1 convolution, plus the coarser level resized, 3x3 convolution
    all:      resized to 1/4, concatenated, classified

An auxiliary head on the second to last stage is used in training only.
"""

from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import Format, LayerNorm2d
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models import check_model

LEVELS = 4
POOL_SCALES = (1, 2, 3, 6)


class ConvNormAct(nn.Sequential):
    """Convolution, batch norm, ReLU: the decoder is the usual one and not activation-free."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, **dd: Any):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, bias=False, **dd)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm = nn.BatchNorm2d(channels_out, **dd)
        self.act = nn.ReLU(inplace=True)


class Classifier(nn.Conv2d):
    """A 1x1 convolution that starts from N(0, 0.01)."""

    def __init__(self, channels: int, classes: int, **dd: Any):
        super().__init__(channels, classes, 1, **dd)
        nn.init.normal_(self.weight, std=0.01)
        nn.init.constant_(self.get_parameter("bias"), 0.0)


class UPerHead(nn.Module):
    """Features of all levels, finest first, to logits at the finest level's size."""

    def __init__(self, widths: list[int], classes: int, width: int = 512, dropout: float = 0.1, **dd: Any):
        super().__init__()
        self.pyramid = nn.ModuleList(ConvNormAct(widths[-1], width, **dd) for _ in POOL_SCALES)
        self.bottleneck = ConvNormAct(widths[-1] + len(POOL_SCALES) * width, width, 3, **dd)
        self.lateral = nn.ModuleList(ConvNormAct(w, width, **dd) for w in widths[:-1])
        self.smooth = nn.ModuleList(ConvNormAct(width, width, 3, **dd) for _ in widths[:-1])
        self.merge = ConvNormAct(len(widths) * width, width, 3, **dd)
        self.drop = nn.Dropout2d(dropout)
        self.classifier = Classifier(width, classes, **dd)

    def forward(self, features: list[Tensor]) -> Tensor:
        levels = [lateral(feature) for lateral, feature in zip(self.lateral, features[:-1], strict=True)]
        levels.append(self.pool(features[-1]))
        for i in range(len(levels) - 1, 0, -1):
            levels[i - 1] = levels[i - 1] + resize_like(levels[i], levels[i - 1])
        levels[:-1] = [smooth(level) for smooth, level in zip(self.smooth, levels[:-1], strict=True)]
        merged = self.merge(torch.cat([resize_like(level, levels[0]) for level in levels], dim=1))
        return self.classifier(self.drop(merged))

    def pool(self, x: Tensor) -> Tensor:
        pooled = [x]
        for scale, conv in zip(POOL_SCALES, self.pyramid, strict=True):
            pooled.append(resize_like(conv(F.adaptive_avg_pool2d(x, scale)), x))
        return self.bottleneck(torch.cat(pooled, dim=1))


class AuxiliaryHead(nn.Module):
    """A 3x3 convolution and a classifier on one level."""

    def __init__(self, channels: int, classes: int, width: int = 256, dropout: float = 0.1, **dd: Any):
        super().__init__()
        self.conv = ConvNormAct(channels, width, 3, **dd)
        self.drop = nn.Dropout2d(dropout)
        self.classifier = Classifier(width, classes, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.conv(x)))


class UPerNet(nn.Module):
    """A backbone from timm's registry and the two heads: images (B, 3, H, W) to logits (B, classes, H, W).

    Args:
        backbone: a timm model that supports `features_only`, such as ours.
        classes: number of classes.
        pretrained: download the backbone's published weights.
        drop_path_rate: stochastic depth of the backbone.
        width: channels of the decoder.
        image_size: the side of all images, for a backbone with a fixed input size.
        options: further options of the backbone.
    """

    def __init__(
        self,
        backbone: str,
        classes: int,
        pretrained: bool = False,
        drop_path_rate: float = 0.0,
        width: int = 512,
        image_size: int = 512,
        device: torch.device | str | None = None,
        **options: Any,
    ):
        super().__init__()
        check_model(backbone)
        if drop_path_rate:
            options["drop_path_rate"] = drop_path_rate
        known: Any = timm.get_pretrained_cfg(backbone)
        self.fixed_size = image_size if known is not None and known.fixed_input_size else None
        if self.fixed_size:
            options["img_size"] = image_size
        try:
            self.backbone: Any = timm.create_model(
                backbone, features_only=True, pretrained=pretrained, device=device, **options
            )
        except (RuntimeError, AttributeError, TypeError, OSError) as error:
            raise PolyNeXtError(f"{backbone} cannot be a backbone ({error}): use another, or other options.") from error
        widths = self.backbone.feature_info.channels()[-LEVELS:]
        if len(widths) < 2:
            raise PolyNeXtError(f"{backbone} has {len(widths)} level of features: use a backbone with at least two.")
        self.classes = classes
        self.norms = nn.ModuleList(LayerNorm2d(w, eps=1e-5, device=device) for w in widths)
        self.head = UPerHead(widths, classes, width, device=device)
        self.auxiliary = AuxiliaryHead(widths[-2], classes, device=device)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits at the image's size; in training also the auxiliary head's."""
        if self.fixed_size and x.shape[-2:] != (self.fixed_size, self.fixed_size):
            raise PolyNeXtError(
                f"the backbone takes {self.fixed_size}x{self.fixed_size} pixels but got {x.shape[-1]}x{x.shape[-2]}: "
                "use a backbone for any size, or a smaller crop."
            )
        features = self.backbone(x)[-LEVELS:]
        if self.backbone.output_fmt == Format.NHWC:
            features = [feature.permute(0, 3, 1, 2) for feature in features]
        features = [norm(feature) for norm, feature in zip(self.norms, features, strict=True)]
        logits = self.head(features)
        if self.training:
            return resize_like(logits, x), resize_like(self.auxiliary(features[-2]), x)
        return resize_like(logits.float(), x)  # in bf16, interpolated logits would tie


def resize_like(x: Tensor, target: Tensor) -> Tensor:
    if x.shape[-2:] == target.shape[-2:]:
        return x
    return F.interpolate(x, size=target.shape[-2:], mode="bilinear", align_corners=False)
