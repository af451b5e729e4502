"""The PolyNeXt variants by name, registered with timm. The network itself is in `network.py`.

Widths, cells and stacks are those of the paper's Tables S2 and S3; published weights are listed in `published.py`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs

from polynext.models.network import Blocks, FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig
from polynext.models.published import EMBEDDED, HUB, PUBLISHED, WEIGHTS, adapt_checkpoint
from polynext.models.registry import Kind, register

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def four_stages(
    width: int, cells: tuple[int, ...], stacks: tuple[int, ...], scale_logits: tuple[float, ...], **shared: Any
) -> PolyNeXtConfig:
    """The ImageNet layout: widths C (1, 2, 4, 6), a small coarse kernel first, narrower inner widths in the end."""
    stages = tuple(
        StageConfig(
            width=width * factor,
            cells=cells[i],
            stacks=stacks[i],
            coarse_kernel=3 if i == 0 else 5,
            conv_ratio=1.0 if i < 2 else 0.75,
            mlp_ratio=2.0 if i < 2 else 1.75,
        )
        for i, factor in enumerate((1, 2, 4, 6))
    )
    return PolyNeXtConfig(stages=stages, scale_logits=scale_logits, **shared)


def with_attention(config: PolyNeXtConfig) -> PolyNeXtConfig:
    """APolyNeXt from CPolyNeXt: attention in the last two of four stages."""
    stages = config.stages[:2] + tuple(replace(s, mixer="attention") for s in config.stages[2:])
    return replace(config, stages=stages)


def falling(entries: int, offset: float = 0.0) -> tuple[float, ...]:
    """Sigmoid-Scale logits -i/2 (Appendix C.4)."""
    return tuple(-i / 2 - offset for i in range(entries))


def halving(entries: int) -> tuple[float, ...]:
    """Sigmoid-Scale logits of the probabilities 1/2, 1/2, 1/4, 1/8, ...: how Tiny starts (Appendix C.4)."""
    probabilities = [2.0 ** -max(i, 1) for i in range(entries)]
    return tuple(math.log(p / (1 - p)) for p in probabilities)


TINY = four_stages(48, (2, 2, 6, 2), (3, 3, 3, 3), halving(6), share_scales=True)
SMALL = four_stages(72, (3, 3, 8, 3), (3, 4, 4, 4), falling(8), full_downsampling=True)
BASE = four_stages(84, (3, 5, 10, 3), (4, 4, 4, 4), falling(8), full_downsampling=True)
LARGE = four_stages(96, (3, 6, 12, 3), (4, 4, 4, 4), falling(8, offset=0.5), full_downsampling=True)

# The published low-resolution networks start from these as logits, not as probabilities.
HALVING = (1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)

LOWRES = PolyNeXtConfig(
    stages=(
        StageConfig(width=72, cells=2, stacks=3, coarse_kernel=3),
        StageConfig(width=144, cells=3, stacks=3),
        StageConfig(width=288, cells=3, stacks=3),
    ),
    scale_logits=HALVING,
    stem_kernel=3,
    stem_stride=1,
)

# Ours, not the paper's: nano is small enough to learn digits on a laptop's CPU in a minute and to run encrypted
# afterwards, micro to learn CIFAR-10 there in an hour.
CONV_NANO = PolyNeXtConfig(
    stages=(StageConfig(width=16, cells=1, stacks=2, coarse_kernel=3),),
    scale_logits=falling(4),
    stem_kernel=3,
    stem_stride=1,
)
ATTENTION_NANO = PolyNeXtConfig(
    stages=(
        StageConfig(width=16, cells=1, stacks=1, coarse_kernel=3),
        StageConfig(width=32, cells=1, stacks=1, mixer="attention"),
    ),
    scale_logits=falling(2),
    stem_kernel=3,
    stem_stride=1,
)


MICRO = PolyNeXtConfig(
    stages=(
        StageConfig(width=24, cells=1, stacks=3, coarse_kernel=3),
        StageConfig(width=48, cells=1, stacks=3),
        StageConfig(width=96, cells=1, stacks=3),
    ),
    scale_logits=falling(6),
    stem_kernel=3,
    stem_stride=1,
)

# For 32x32 photographs under encryption: nine products in a row, and 128 channels at 8x8 positions, of which a
# ciphertext of 16,384 slots holds both operands of a product.
CIPHER = PolyNeXtConfig(
    stages=(StageConfig(width=128, cells=1, stacks=4, coarse_kernel=3),),
    scale_logits=falling(8),
    stem_kernel=4,
    stem_stride=4,
)

# The baselines of ablations on a CPU: as the paper's Tiny in kind, with two inputs to cells and three stacks in them.
ABLATE_DIGITS = PolyNeXtConfig(
    stages=(StageConfig(width=16, cells=2, stacks=3, coarse_kernel=3),),
    scale_logits=falling(6),
    stem_kernel=3,
    stem_stride=1,
)
ABLATE_DIGITS_ATTENTION = PolyNeXtConfig(
    stages=(
        StageConfig(width=16, cells=1, stacks=2, coarse_kernel=3),
        StageConfig(width=32, cells=2, stacks=2, mixer="attention"),
    ),
    scale_logits=falling(4),
    stem_kernel=3,
    stem_stride=1,
)
ABLATE_CIFAR10 = replace(MICRO, stem_stride=2)
ABLATE_CIFAR10_ATTENTION = replace(
    ABLATE_CIFAR10, stages=(*MICRO.stages[:-1], replace(MICRO.stages[-1], mixer="attention"))
)

CONFIGS = {
    "cpolynext_tiny": TINY,
    "cpolynext_small": SMALL,
    "cpolynext_base": BASE,
    "cpolynext_large": LARGE,
    "apolynext_tiny": with_attention(TINY),
    "apolynext_small": with_attention(SMALL),
    "apolynext_base": with_attention(BASE),
    "apolynext_large": with_attention(LARGE),
    "cpolynext_lowres": LOWRES,
    "cpolynext_micro": MICRO,
    "cpolynext_cipher": CIPHER,
    "cpolynext_nano": CONV_NANO,
    "apolynext_nano": ATTENTION_NANO,
    "cpolynext_ablate_digits": ABLATE_DIGITS,
    "apolynext_ablate_digits": ABLATE_DIGITS_ATTENTION,
    "cpolynext_ablate_cifar10": ABLATE_CIFAR10,
    "apolynext_ablate_cifar10": ABLATE_CIFAR10_ATTENTION,
}


def _cfg(size: int = 224, pool: int = 7, **overrides: Any) -> dict[str, Any]:
    return {
        "input_size": (3, size, size),
        "pool_size": (pool, pool),
        "num_classes": 1000,
        "interpolation": "bicubic",
        "crop_pct": 224 / 232,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "stem",
        "classifier": "head.fc",
        "license": "apache-2.0",  # of the authors' release, and of this package
        **overrides,
    }


LOWRES_CFG = _cfg(32, 8, num_classes=10, crop_pct=1.0, mean=CIFAR10_MEAN, std=CIFAR10_STD)
NANO_CFG = _cfg(8, 8, num_classes=10, crop_pct=1.0, input_size=(1, 8, 8), mean=(0.5,), std=(0.5,))


def _default_cfgs() -> dict[str, dict[str, Any]]:
    cfgs: dict[str, dict[str, Any]] = {name: _cfg() for name in CONFIGS}
    cfgs |= {
        "cpolynext_lowres": LOWRES_CFG,
        "cpolynext_micro": LOWRES_CFG,
        "cpolynext_cipher": {**LOWRES_CFG, "pool_size": (8, 8)},
        "cpolynext_nano": NANO_CFG,
        "apolynext_nano": {**NANO_CFG, "pool_size": (4, 4)},
        "cpolynext_ablate_digits": NANO_CFG,
        "apolynext_ablate_digits": {**NANO_CFG, "pool_size": (4, 4)},
        "cpolynext_ablate_cifar10": {**LOWRES_CFG, "pool_size": (4, 4)},
        "apolynext_ablate_cifar10": {**LOWRES_CFG, "pool_size": (4, 4)},
    }
    cfgs |= {f"{name}_bn": {**cfg, "fixed_input_size": True} for name, cfg in cfgs.items()}
    for tagged, file in PUBLISHED.items():
        name = tagged.split(".")[0]
        cfgs[tagged] = {**cfgs[name], "hf_hub_id": HUB, "hf_hub_filename": file}
    for tagged in EMBEDDED:
        cfgs[tagged] = {**cfgs[tagged.split(".")[0]], "file": str(WEIGHTS / f"{tagged}.safetensors")}
    cfgs["cpolynext_lowres.tiny_imagenet"] |= {"input_size": (3, 64, 64), "pool_size": (16, 16), "num_classes": 200}
    # timm takes a name's first tag as its default, so a published one must not follow an untagged entry
    tagged_names = {tagged.split(".")[0] for tagged in (*PUBLISHED, *EMBEDDED)}
    return {name: cfg for name, cfg in cfgs.items() if name not in tagged_names}


default_cfgs = generate_default_cfgs(_default_cfgs())


def _register(name: str, config: PolyNeXtConfig, blocks: Blocks, kind: Kind) -> Callable[..., PolyNeXt]:
    """Registers a function of this name that creates the network, and returns it."""

    def create(pretrained: bool = False, architecture: PolyNeXtConfig = config, **kwargs: Any) -> PolyNeXt:
        return build_model_with_cfg(
            PolyNeXt,
            name,
            pretrained,
            model_cfg=architecture,
            feature_cfg=dict(out_indices=tuple(range(len(architecture.stages))), feature_cls="getter"),
            pretrained_filter_fn=adapt_checkpoint,
            **{"blocks": blocks, **kwargs},
        )

    family, size = name.split("_")[:2]
    title = f"{family[0].upper()}PolyNeXt-{size.capitalize()}"
    stages = ", ".join(f"{stage.mixer} {stage.width}" for stage in config.stages)
    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{title}, {kind}; mixer and width of each stage: {stages}."
    return register(kind)(create)


# As functions of this module, which timm's registry and pickle know by their names.
globals().update({name: _register(name, config, Blocks(), "activation-free") for name, config in CONFIGS.items()})
globals().update(
    {
        f"{name}_bn": _register(f"{name}_bn", config, FullyPolynomialBlocks(), "fully polynomial")
        for name, config in CONFIGS.items()
    }
)
