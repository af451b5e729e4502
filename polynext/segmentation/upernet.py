"""UPerNet: a pyramid pooling module on the coarsest features, and a feature pyramid down to the finest.

    features of the backbone's last four stages, each through a LayerNorm of its own
    coarsest: pooled to 1, 2, 3 and 6 cells a side, back up, all joined
    others:   1x1, plus the coarser level scaled up, 3x3
    all levels scaled to the finest, joined, classified

A second, plain head on the last but one stage helps in training and is left out afterwards.
"""

from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from polynext.errors import PolyNeXtError

LEVELS = 4
POOL_SCALES = (1, 2, 3, 6)


class ConvNormAct(nn.Sequential):
    """Convolution, batch norm, ReLU: the decoder is the reference's and not activation-free."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, **dd: Any):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, bias=False, **dd)
        self.norm = nn.BatchNorm2d(channels_out, **dd)
        self.act = nn.ReLU(inplace=True)


class UPerHead(nn.Module):
    """Features of all levels, finest first, to a map of logits at the finest level's size."""

    def __init__(self, widths: list[int], classes: int, width: int = 512, dropout: float = 0.1, **dd: Any):
        super().__init__()
        self.pyramid = nn.ModuleList(ConvNormAct(widths[-1], width, **dd) for _ in POOL_SCALES)
        self.bottleneck = ConvNormAct(widths[-1] + len(POOL_SCALES) * width, width, 3, **dd)
        self.lateral = nn.ModuleList(ConvNormAct(w, width, **dd) for w in widths[:-1])
        self.smooth = nn.ModuleList(ConvNormAct(width, width, 3, **dd) for _ in widths[:-1])
        self.merge = ConvNormAct(len(widths) * width, width, 3, **dd)
        self.drop = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1, **dd)

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
    """One 3x3 convolution and a classifier, on one level."""

    def __init__(self, channels: int, classes: int, width: int = 256, dropout: float = 0.1, **dd: Any):
        super().__init__()
        self.conv = ConvNormAct(channels, width, 3, **dd)
        self.drop = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.conv(x)))


class UPerNet(nn.Module):
    """A backbone by its timm name, ours or another, and the two heads. (B, 3, H, W) to logits (B, classes, H, W).

    Args:
        backbone: any timm model that `features_only` works for.
        classes: how many.
        pretrained: fetch the backbone's published weights.
        drop_path_rate: the backbone's stochastic depth.
        width: of the decoder.
        options: for the backbone.
    """

    def __init__(
        self,
        backbone: str,
        classes: int,
        pretrained: bool = False,
        drop_path_rate: float = 0.0,
        width: int = 512,
        device: torch.device | str | None = None,
        **options: Any,
    ):
        super().__init__()
        if not timm.is_model(backbone.split(".")[0]):
            raise PolyNeXtError(f"there is no backbone {backbone!r}: see `polynext models`, or timm's list for others.")
        if drop_path_rate:
            options["drop_path_rate"] = drop_path_rate
        try:
            self.backbone: Any = timm.create_model(
                backbone, features_only=True, pretrained=pretrained, device=device, **options
            )
        except (RuntimeError, AttributeError) as error:
            raise PolyNeXtError(f"{backbone} gives no feature maps (timm: {error}): take another backbone.") from error
        widths = self.backbone.feature_info.channels()[-LEVELS:]
        self.classes = classes
        self.norms = nn.ModuleList(LayerNorm2d(w, device=device) for w in widths)
        self.head = UPerHead(widths, classes, width, device=device)
        self.auxiliary = AuxiliaryHead(widths[-2], classes, device=device)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits at the image's size; in training also the auxiliary head's."""
        features = self.backbone(x)[-LEVELS:]
        features = [norm(feature) for norm, feature in zip(self.norms, features, strict=True)]
        logits = resize_like(self.head(features), x)
        return (logits, resize_like(self.auxiliary(features[-2]), x)) if self.training else logits


def resize_like(x: Tensor, target: Tensor) -> Tensor:
    if x.shape[-2:] == target.shape[-2:]:
        return x
    return F.interpolate(x, size=target.shape[-2:], mode="bilinear", align_corners=False)
