"""MetaFormer's own ImageNet recipe, for the paper's cross-recipe table (Table 5).

Batch 4096, AdamW at 4e-3 for ConvFormer and LAMB at 8e-3 for CAFormer, weight decay 0.05, 20 epochs of warmup,
stochastic depth 0.2 (ConvFormer-S18) and 0.15 (CAFormer-S18), dropout 0 and 0.4 in the head. The paper's baselines
under it: ConvFormer-S18 82.9, CAFormer-S18 83.5; neither was run by us.
"""

from collections.abc import Callable
from dataclasses import replace

from polynext.data import AugmentConfig
from polynext.recipes.imagenet import IMAGENET
from polynext.training import EmaConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig


def convformer_s18() -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(name="convformer_s18", drop_path=0.2, dropout=0.0, dropout_rises=False),
        data=IMAGENET,
        augment=AugmentConfig(interpolation="random"),
        optimizer=OptimizerConfig(name="adamw", lr=4e-3, weight_decay=0.05, clip_grad=0.0),
        schedule=ScheduleConfig(warmup_epochs=20, warmup_factor=2.5e-4),
        ema=EmaConfig(decay=0.0),
        batch_size=4096,
    )


def caformer_s18() -> TrainConfig:
    conv = convformer_s18()
    return replace(
        conv,
        model=ModelConfig(name="caformer_s18", drop_path=0.15, dropout=0.4, dropout_rises=False),
        optimizer=OptimizerConfig(name="lamb", lr=8e-3, weight_decay=0.05, eps=1e-6),
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"convformer_s18": convformer_s18, "caformer_s18": caformer_s18}
