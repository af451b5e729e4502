"""MONet, the prior polynomial network that the paper compares with (Cheng et al., "Multilinear Operator Networks",
ICLR 2024). Activation-free up to LayerNorm, like ours; it moves information between positions by shifts.

    block = x + spatial(norm(x)), then x + channel(norm(x)), with one norm for both
"""

from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.registry import register


class MuLayer(nn.Module):
    """`C (a + alpha * a * b)` with `a = LN(U1 x)` and `b = LN(U3 U2 x)`: (B, H, W, d) to (B, H, W, d). Degree 2, the
    norms aside. The spatial one shifts `U1 x` and `U2 x` by a pixel.
    """

    def __init__(self, channels: int, hidden: int, spatial: bool, **dd: Any):
        super().__init__()
        self.spatial = spatial
        self.u1 = nn.Linear(channels, hidden, **dd)
        self.u2 = nn.Linear(channels, hidden // 8, **dd)
        self.u3 = nn.Linear(hidden // 8, hidden, **dd)
        self.c = nn.Linear(hidden, channels, **dd)
        self.norm_a = nn.LayerNorm(hidden, eps=1e-6, **dd)
        self.norm_b = nn.LayerNorm(hidden, eps=1e-6, **dd)
        self.alpha = nn.Parameter(torch.ones(1, **dd))
        for linear in (self.u1, self.u2, self.u3):
            nn.init.ones_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.u1(x), self.u2(x)
        if self.spatial:
            a, b = shift(a), shift(b)
        a, b = self.norm_a(a), self.norm_b(self.u3(b))
        return self.c(torch.addcmul(a, self.alpha, a * b))


def shift(x: Tensor) -> Tensor:
    """(B, H, W, C): the quarters of the channels move a pixel down, up, right and left; the border keeps its value."""
    down, up, right, left = x.chunk(4, dim=3)
    return torch.cat(
        [
            torch.cat([down[:, :1], down[:, :-1]], dim=1),
            torch.cat([up[:, 1:], up[:, -1:]], dim=1),
            torch.cat([right[:, :, :1], right[:, :, :-1]], dim=2),
            torch.cat([left[:, :, 1:], left[:, :, -1:]], dim=2),
        ],
        dim=3,
    )


class MonetBlock(nn.Module):
    def __init__(self, channels: int, **dd: Any):
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6, **dd)
        self.spatial = MuLayer(channels, channels, spatial=True, **dd)
        self.channel = MuLayer(channels, 3 * channels, spatial=False, **dd)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.spatial(self.norm(x))
        return x + self.channel(self.norm(x))


class MonetStage(nn.Module):
    """Blocks at one resolution, after a halving convolution from the second stage on. (B, C, H, W) in and out."""

    def __init__(self, width_in: int, width: int, depth: int, first: bool, **dd: Any):
        super().__init__()
        self.downsampling = nn.Identity() if first else nn.Conv2d(width_in, width, 3, 2, 1, **dd)
        self.blocks = nn.Sequential(*(MonetBlock(width, **dd) for _ in range(depth)))
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsampling(x).permute(0, 2, 3, 1)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            x = checkpoint_seq(self.blocks, x)
        else:
            x = self.blocks(x)
        return x.permute(0, 3, 1, 2)


class MONet(nn.Module):
    """The network, with the interface of a timm model. `global_pool` is "avg", or "" for a map of logits."""

    def __init__(
        self,
        depths: tuple[int, ...],
        widths: tuple[int, ...],
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        dd: Any = {"device": device, "dtype": dtype}
        self.in_chans = in_chans
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, widths[0], 2, 2, **dd), nn.Conv2d(widths[0], widths[0], 2, 2, **dd)
        )
        before = (widths[0], *widths[:-1])
        self.stages = nn.Sequential(
            *(MonetStage(before[i], widths[i], depths[i], i == 0, **dd) for i in range(len(widths)))
        )
        self.feature_info = [dict(num_chs=w, reduction=4 * 2**i, module=f"stages.{i}") for i, w in enumerate(widths)]
        self.num_features = self.head_hidden_size = widths[-1]
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stages(self.stem(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x.mean(dim=(2, 3)) if self.global_pool else x.permute(0, 2, 3, 1)
        x = self.head_drop(x)
        x = x if pre_logits else self.head(x)
        return x if self.global_pool else x.permute(0, 3, 1, 2)

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
            raise PolyNeXtError(f"forward_intermediates got output_fmt={output_fmt!r}: MONet gives 'NCHW' only.")
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
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new, untrained classifier; optionally another pooling."""
        self.num_classes = num_classes
        if global_pool is not None:
            if global_pool not in ("avg", ""):
                raise PolyNeXtError(f"MONet got global_pool={global_pool!r}: choose 'avg', or '' for no pooling.")
            self.global_pool = global_pool
        self.head: nn.Module = nn.Identity()
        if num_classes > 0:
            weight = next(self.stages.parameters())
            self.head = nn.Linear(self.num_features, num_classes, device=weight.device, dtype=weight.dtype)

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages.children():
            stage.grad_checkpointing = enable  # type: ignore[assignment]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.blocks\.(\d+)"
        return dict(stem=r"^stem", blocks=[(blocks, None), (r"^stages\.(\d+)\.downsampling", (0,))])


CFG = {
    "input_size": (3, 224, 224),
    "pool_size": (7, 7),
    "num_classes": 1000,
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "stem.0",
    "classifier": "head",
    "license": "apache-2.0",
}
default_cfgs = generate_default_cfgs({"monet_tiny": CFG, "monet_small": CFG})


def _create(name: str, pretrained: bool, **kwargs: Any) -> MONet:
    features = dict(out_indices=(0, 1, 2, 3), feature_cls="getter")
    return build_model_with_cfg(MONet, name, pretrained, feature_cfg=features, **kwargs)


@register("activation-free")
def monet_tiny(pretrained: bool = False, **kwargs: Any) -> MONet:
    """MONet-T, of 10 million parameters."""
    return _create("monet_tiny", pretrained, depths=(4, 8, 12, 10), widths=(64, 128, 192, 192), **kwargs)


@register("activation-free")
def monet_small(pretrained: bool = False, **kwargs: Any) -> MONet:
    """MONet-S, of 33 million parameters."""
    return _create("monet_small", pretrained, depths=(4, 6, 12, 14), widths=(128, 192, 256, 384), **kwargs)
