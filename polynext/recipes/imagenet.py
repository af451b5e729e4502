"""The paper's ImageNet runs: Table S1, Appendix C.3 and C.5. 300 epochs at 224 pixels, batch 1024.

Published top-1 (Tables 1 and 7), on two RTX 6000 Ada; not reproduced here:
CPolyNeXt T 80.2, S 83.9, B 84.7, L 84.9; APolyNeXt T 80.9, S 84.3, B 84.9, L 85.2;
fully polynomial CPolyNeXt-T 78.3, APolyNeXt-T 78.0, CPolyNeXt-S 82.7.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from polynext.config import ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from polynext.data import AugmentConfig, DataConfig, Preprocessing
from polynext.preprocessing import IMAGENET_MEAN, IMAGENET_STD

IMAGENET = DataConfig(
    name="imagenet",
    preprocessing=Preprocessing(size=224, resize=232, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    workers=8,
    most_memory=0.0,
)

# Table S1, by size: stochastic depth, final dropout and, for convolutions, warmup epochs
CONV = {"tiny": (0.0, 0.0, 0), "small": (0.20, 0.4, 5), "base": (0.30, 0.6, 5), "large": (0.50, 0.6, 5)}
ATTENTION = {"tiny": (0.03, 0.1), "small": (0.25, 0.4), "base": (0.40, 0.6), "large": (0.55, 0.7)}


def cpolynext(size: str) -> TrainConfig:
    """Larger models than Tiny use random bilinear or bicubic interpolation."""
    drop_path, dropout, warmup = CONV[size]
    return TrainConfig(
        model=ModelConfig(name=f"cpolynext_{size}", drop_path=drop_path, dropout=dropout, memory="lean"),
        data=IMAGENET,
        augment=AugmentConfig(interpolation="bicubic" if size == "tiny" else "random"),
        optimizer=OptimizerConfig(name="adamw", lr=4e-3, weight_decay=0.01),
        schedule=ScheduleConfig(warmup_epochs=warmup),
    )


def apolynext(size: str) -> TrainConfig:
    base, (drop_path, dropout) = cpolynext(size), ATTENTION[size]
    return replace(
        base,
        model=replace(base.model, name=f"apolynext_{size}", drop_path=drop_path, dropout=dropout),
        optimizer=OptimizerConfig(name="lamb", lr=2e-3, weight_decay=0.01, eps=1e-6 if size == "large" else 1e-8),
        schedule=ScheduleConfig(),
    )


def fully_polynomial(kind: str, size: str) -> TrainConfig:
    """AdamW at 1e-3, statistics of 256 images, bicubic crops, and for Tiny neither dropout nor stochastic depth."""
    base = cpolynext(size) if kind == "cpolynext" else apolynext(size)
    regularised = size != "tiny"
    return replace(
        base,
        model=ModelConfig(
            name=f"{kind}_{size}_bn",
            drop_path=base.model.drop_path if regularised else 0.0,
            dropout=base.model.dropout if regularised else 0.0,
        ),
        augment=AugmentConfig(),
        optimizer=OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.05),
        micro_batch=256,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    **{f"cpolynext_{size}": partial(cpolynext, size) for size in CONV},
    **{f"apolynext_{size}": partial(apolynext, size) for size in ATTENTION},
    "cpolynext_tiny_bn": partial(fully_polynomial, "cpolynext", "tiny"),
    "apolynext_tiny_bn": partial(fully_polynomial, "apolynext", "tiny"),
    "cpolynext_small_bn": partial(fully_polynomial, "cpolynext", "small"),
}
