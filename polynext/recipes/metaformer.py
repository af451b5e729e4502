"""MetaFormer's own ImageNet recipe, for the cross-recipe table of the paper (Table 5).

Its training script uses timm 0.6.11 with the settings of DeiT: batch 4096, weight decay 0.05 except on norms, biases
and scales, 20 epochs of warmup from 1e-6, a cosine over 300 epochs from the first, ten more epochs at 1e-5, no averaged
weights, no dropout. ConvFormer-S18 has AdamW at 4e-3 without gradient clipping and stochastic depth 0.2; CAFormer-S18
has LAMB at 8e-3, clipped at 1, with weight decay inside the trust ratio, and stochastic depth 0.15. Evaluation is at
224 pixels without a larger resize. Published top-1: ConvFormer-S18 82.9, CAFormer-S18 83.5; not reproduced here.
"""

from collections.abc import Callable
from dataclasses import replace

from polynext.config import EmaConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from polynext.data import AugmentConfig
from polynext.recipes.imagenet import IMAGENET


def schedule(lr: float) -> ScheduleConfig:
    return ScheduleConfig(warmup_epochs=20, warmup_factor=1e-6 / lr, cosine_from_start=True, cooldown_epochs=10)


def convformer_s18() -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(name="convformer_s18", drop_path=0.2),
        data=replace(IMAGENET, preprocessing=replace(IMAGENET.preprocessing, resize=224)),
        augment=AugmentConfig(interpolation="random", rand_augment_as="timm"),
        optimizer=OptimizerConfig(name="adamw", lr=4e-3, weight_decay=0.05, decay_all=False, clip_grad=0.0),
        schedule=schedule(4e-3),
        ema=EmaConfig(decay=0.0),
        epochs=310,
        batch_size=4096,
    )


def caformer_s18() -> TrainConfig:
    return replace(
        convformer_s18(),
        model=ModelConfig(name="caformer_s18", drop_path=0.15),
        optimizer=OptimizerConfig(
            name="lamb", lr=8e-3, weight_decay=0.05, decay_all=False, decoupled=False, eps=1e-6, clip_grad=1.0
        ),
        schedule=schedule(8e-3),
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"convformer_s18": convformer_s18, "caformer_s18": caformer_s18}
