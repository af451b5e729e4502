"""MetaFormer's own ImageNet recipe, for the paper's cross-recipe table (Table 5).

Batch 4096, 300 epochs, weight decay 0.05, 20 epochs of warmup from 1e-6, no averaged weights; AdamW at 4e-3 and
stochastic depth 0.2 for ConvFormer-S18, LAMB at 8e-3 and 0.15 for CAFormer-S18. Evaluated at 224 pixels without a
larger resize first. Two details differ from its own training script: weight decay acts on norms and biases too, and the
cosine ends with the last epoch instead of ten epochs of cooldown. The paper's baselines under it: ConvFormer-S18 82.9,
CAFormer-S18 83.5; neither was run by us.
"""

from collections.abc import Callable
from dataclasses import replace

from polynext.data import AugmentConfig
from polynext.recipes.imagenet import IMAGENET
from polynext.training import EmaConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig

WARMUP_EPOCHS, WARMUP_LR = 20, 1e-6


def convformer_s18() -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(name="convformer_s18", drop_path=0.2),
        data=replace(IMAGENET, preprocessing=replace(IMAGENET.preprocessing, resize=224)),
        augment=AugmentConfig(interpolation="random"),
        optimizer=OptimizerConfig(name="adamw", lr=4e-3, weight_decay=0.05, clip_grad=0.0),
        schedule=ScheduleConfig(warmup_epochs=WARMUP_EPOCHS, warmup_factor=WARMUP_LR / 4e-3),
        ema=EmaConfig(decay=0.0),
        batch_size=4096,
    )


def caformer_s18() -> TrainConfig:
    return replace(
        convformer_s18(),
        model=ModelConfig(name="caformer_s18", drop_path=0.15),
        optimizer=OptimizerConfig(name="lamb", lr=8e-3, weight_decay=0.05, eps=1e-6, clip_grad=1.0),
        schedule=ScheduleConfig(warmup_epochs=WARMUP_EPOCHS, warmup_factor=WARMUP_LR / 8e-3),
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"convformer_s18": convformer_s18, "caformer_s18": caformer_s18}
