"""The paper's runs at low resolution (Table S3): CPolyNeXt-LR from scratch at native size, batch 96.

Otherwise like CPolyNeXt-T on ImageNet, with the differences in the authors' scripts: Mixup with alpha 1, bilinear or
bicubic crops at random, no averaged weights.

Published top-1 (Table S5): CIFAR-10 97.1, SVHN 98.1, Tiny ImageNet 74.0; not reproduced here.
"""

from collections.abc import Callable
from dataclasses import replace

from polynext.config import EmaConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from polynext.data import AugmentConfig, DataConfig, Preprocessing
from polynext.preprocessing import CIFAR10_MEAN, CIFAR10_STD

AUGMENT = AugmentConfig(mixup=1.0, interpolation="random")


def data(name: str, size: int) -> DataConfig:
    preprocessing = Preprocessing(size=size, resize=size, mean=CIFAR10_MEAN, std=CIFAR10_STD)
    return DataConfig(name=name, preprocessing=preprocessing, workers=4)


def cifar10() -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(name="cpolynext_lowres"),
        data=data("cifar10", 32),
        augment=AUGMENT,
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.05),
        schedule=ScheduleConfig(min_lr=0.0),
        ema=EmaConfig(decay=0.0),
        batch_size=96,
        micro_batch=96,
    )


def svhn() -> TrainConfig:
    """Without horizontal flips, which change digits."""
    return replace(cifar10(), data=data("svhn", 32), augment=replace(AUGMENT, hflip=0.0))


def tiny_imagenet() -> TrainConfig:
    return replace(cifar10(), data=data("tiny-imagenet", 64))


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "cpolynext_lowres_cifar10": cifar10,
    "cpolynext_lowres_svhn": svhn,
    "cpolynext_lowres_tiny_imagenet": tiny_imagenet,
}
