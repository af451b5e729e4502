"""The PolyNeXt models by name, registered with timm. `network.py` has the network, `published.py` the weights.

Widths, cells and stacks of the paper's models are from its Tables S2 and S3.
"""

import math
from dataclasses import replace
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs

from polynext.models.blocks import Blocks, FullyPolynomialBlocks, PolyNeXtConfig, StageConfig
from polynext.models.network import PolyNeXt
from polynext.models.published import HUB, PUBLISHED, SHIPPED, adapt_checkpoint, shipped_weights
from polynext.models.registry import SUFFIXES, Kind, default_cfg, register
from polynext.preprocessing import CIFAR10_MEAN, CIFAR10_STD


def four_stages(
    width: int, cells: tuple[int, ...], stacks: tuple[int, ...], scale_logits: tuple[float, ...], **shared: Any
) -> PolyNeXtConfig:
    """The ImageNet layout: widths C (1, 2, 4, 6), a 3x3 coarse kernel in stage 1, narrower operators in stages 3, 4."""
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
    """Sigmoid-Scale logits of the probabilities 1/2, 1/2, 1/4, 1/8, ..., with which Tiny starts (Appendix C.4)."""
    probabilities = [2.0 ** -max(i, 1) for i in range(entries)]
    return tuple(math.log(p / (1 - p)) for p in probabilities)


TINY = four_stages(48, (2, 2, 6, 2), (3, 3, 3, 3), halving(6), share_scales=True)
SMALL = four_stages(72, (3, 3, 8, 3), (3, 4, 4, 4), falling(8), full_downsampling=True)
BASE = four_stages(84, (3, 5, 10, 3), (4, 4, 4, 4), falling(8), full_downsampling=True)
LARGE = four_stages(96, (3, 6, 12, 3), (4, 4, 4, 4), falling(8, offset=0.5), full_downsampling=True)


def small_images(
    *stages: StageConfig, scale_logits: tuple[float, ...] = (), stem_kernel: int = 3, stem_stride: int = 1
) -> PolyNeXtConfig:
    """A network for small images: its stem keeps the resolution, and falling logits are the default."""
    logits = scale_logits or falling(2 * max(stage.stacks for stage in stages))
    return PolyNeXtConfig(stages=stages, scale_logits=logits, stem_kernel=stem_kernel, stem_stride=stem_stride)


LOWRES = small_images(
    StageConfig(width=72, cells=2, stacks=3, coarse_kernel=3),
    StageConfig(width=144, cells=3, stacks=3),
    StageConfig(width=288, cells=3, stacks=3),
    scale_logits=(1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32),  # the probabilities of `halving`, published as logits
)

# The following are this package's, not the paper's. On a laptop's CPU, nano learns digits in a minute, and micro learns
# CIFAR-10 in an hour. Nano is small enough for encrypted inference.
CONV_NANO = small_images(StageConfig(width=16, cells=1, stacks=2, coarse_kernel=3))
ATTENTION_NANO = small_images(
    StageConfig(width=16, cells=1, stacks=1, coarse_kernel=3),
    StageConfig(width=32, cells=1, stacks=1, mixer="attention"),
)
MICRO = small_images(
    StageConfig(width=24, cells=1, stacks=3, coarse_kernel=3),
    StageConfig(width=48, cells=1, stacks=3),
    StageConfig(width=96, cells=1, stacks=3),
)

# For 32x32 photographs under encryption: nine products in a row, and 128 channels at 8x8 positions, so that a
# ciphertext of 16,384 slots holds both operands of a product.
CIPHER = small_images(StageConfig(width=128, cells=1, stacks=4, coarse_kernel=3), stem_kernel=4, stem_stride=4)

# For 32x32 photographs at a ring degree of 2^16: eleven products in a row. 64 channels at 16x16 positions, and then 256
# at 8x8, fill half of a ciphertext's 32,768 slots. Overlapping patches are free, because the client cuts them out.
CIPHER_DEEP = small_images(
    StageConfig(width=64, cells=1, stacks=1), StageConfig(width=256, cells=1, stacks=4), stem_kernel=5, stem_stride=2
)

# For 28x28 handwritten digits under encryption, with keys that a browser makes and uploads in seconds: three products
# in a row. Overlapping patches are free, because the client cuts them out, and give 8x8 positions, so that 64 channels
# of both operands of a product fill the 8,192 slots of a ciphertext.
CONV_MNIST = small_images(StageConfig(width=64, cells=1, stacks=1, coarse_kernel=3), stem_kernel=8, stem_stride=4)

# Baselines of ablations on a CPU. Like the paper's Tiny they have cells with two inputs and several stacks.
ABLATE_DIGITS = small_images(StageConfig(width=16, cells=2, stacks=3, coarse_kernel=3))
ABLATE_DIGITS_ATTENTION = small_images(
    StageConfig(width=16, cells=1, stacks=2, coarse_kernel=3),
    StageConfig(width=32, cells=2, stacks=2, mixer="attention"),
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
    "cpolynext_cipher_deep": CIPHER_DEEP,
    "cpolynext_mnist": CONV_MNIST,
    "cpolynext_nano": CONV_NANO,
    "apolynext_nano": ATTENTION_NANO,
    "cpolynext_ablate_digits": ABLATE_DIGITS,
    "apolynext_ablate_digits": ABLATE_DIGITS_ATTENTION,
    "cpolynext_ablate_cifar10": ABLATE_CIFAR10,
    "apolynext_ablate_cifar10": ABLATE_CIFAR10_ATTENTION,
}


def _default_cfgs() -> dict[str, dict[str, Any]]:
    lowres = default_cfg(32, 8, num_classes=10, crop_pct=1.0, mean=CIFAR10_MEAN, std=CIFAR10_STD)
    nano = default_cfg(8, 8, num_classes=10, crop_pct=1.0, input_size=(1, 8, 8), mean=(0.5,), std=(0.5,))
    mnist = default_cfg(28, 8, num_classes=10, crop_pct=1.0, input_size=(1, 28, 28), mean=(0.1307,), std=(0.3081,))
    pooled_by_four = {"pool_size": (4, 4)}
    cfgs: dict[str, dict[str, Any]] = {name: default_cfg(crop_pct=224 / 232) for name in CONFIGS}
    cfgs |= {
        "cpolynext_lowres": lowres,
        "cpolynext_micro": lowres,
        "cpolynext_cipher": lowres,
        "cpolynext_cipher_deep": lowres,
        "cpolynext_mnist": mnist,
        "cpolynext_nano": nano,
        "apolynext_nano": nano | pooled_by_four,
        "cpolynext_ablate_digits": nano,
        "apolynext_ablate_digits": nano | pooled_by_four,
        "cpolynext_ablate_cifar10": lowres | pooled_by_four,
        "apolynext_ablate_cifar10": lowres | pooled_by_four,
    }
    cfgs |= {f"{name}_bn": cfg | {"fixed_input_size": True} for name, cfg in cfgs.items()}
    weights = {tagged: {"hf_hub_id": HUB, "hf_hub_filename": file} for tagged, file in PUBLISHED.items()}
    weights |= {tagged: {"file": str(shipped_weights(tagged))} for tagged in SHIPPED}
    cfgs |= {tagged: cfgs[tagged.split(".")[0]] | source for tagged, source in weights.items()}
    cfgs["cpolynext_lowres.tiny_imagenet"] |= {"input_size": (3, 64, 64), "pool_size": (16, 16), "num_classes": 200}
    # A model's first tag is timm's default, so a model with weights must have no entry without a tag.
    with_weights = {tagged.split(".")[0] for tagged in weights}
    return {name: cfg for name, cfg in cfgs.items() if name not in with_weights}


def _create(
    name: str,
    pretrained: bool,
    architecture: PolyNeXtConfig | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> PolyNeXt:
    """The named network, optionally with another architecture or other blocks."""
    config = architecture or CONFIGS[name.removesuffix("_bn")]
    return build_model_with_cfg(
        PolyNeXt,
        name,
        pretrained,
        model_cfg=config,
        feature_cfg=dict(out_indices=tuple(range(len(config.stages))), feature_cls="getter"),
        pretrained_filter_fn=adapt_checkpoint,
        blocks=blocks or (FullyPolynomialBlocks() if name.endswith("_bn") else Blocks()),
        **options,
    )


def _describe(name: str, kind: Kind) -> str:
    family, size = name.split("_")[:2]
    stages = ", ".join(f"{stage.mixer} {stage.width}" for stage in CONFIGS[name].stages)
    return f"{family[0].upper()}PolyNeXt-{size.capitalize()}, {kind}; mixer and width of each stage: {stages}."


default_cfgs = generate_default_cfgs(_default_cfgs())
for _kind, _suffix in SUFFIXES.items():
    for _name in CONFIGS:
        register(__name__, _name + _suffix, _kind, _describe(_name, _kind), _create)
