"""Recipes for the networks that the paper compares with: MONet, DTTN, ResNet-18, MLP-Mixer and ResMLP.

The paper takes their figures from publications or does not say how it trained them. Here each network is trained as its
authors describe, as far as that is known, and as ours (`imagenet.py`, `lowres.py`) otherwise. The sources:

    MONet      README of its release: 300 epochs, AdamW, cosine, gradients limited to norm 1
    DTTN       none found: CPolyNeXt-T's recipe
    ResNet-18  its publication (He et al., 2016): Section 3.4 for ImageNet, Section 4.2 for CIFAR-10
    MLP-Mixer  its authors' config of Mixer-B/16 on ImageNet (big_vision)
    ResMLP     its first author's list of settings (issue 106 of facebookresearch/deit) and the code there

`docs/paper-and-code.md` lists which settings are theirs and which are ours. These sources are about ImageNet, except
that ResNet's publication also describes CIFAR-10. On the small data sets each network keeps its optimiser, and batch,
length and learning rate follow `lowres.py` for all but ResNet-18.

Published top-1: MONet T 77.0, S 81.3, T BN 77.7; DTTN T 77.9, S 79.4, B 82.4, S without norm 77.2 (Tables 1 and 7);
CIFAR-10, SVHN and Tiny ImageNet in Table S5; not reproduced here.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from polynext.config import EmaConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from polynext.data import AugmentConfig, Preprocessing
from polynext.recipes import lowres
from polynext.recipes.imagenet import IMAGENET, cpolynext

NO_EMA = EmaConfig(decay=0.0)
CROPS_AND_FLIPS = AugmentConfig(rand_augment="", erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
SMALL_SETS = {"cifar10": lowres.cifar10, "svhn": lowres.svhn, "tiny_imagenet": lowres.tiny_imagenet}


# ImageNet


def monet(name: str) -> TrainConfig:
    """The learning rate is for batches of 1024; it and the weight decay are ours."""
    return replace(
        cpolynext("tiny"),
        model=ModelConfig(name=name),
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.01, clip_grad=1.0),
    )


def dttn(name: str) -> TrainConfig:
    return replace(cpolynext("tiny"), model=ModelConfig(name=name))


def resnet18() -> TrainConfig:
    """As He et al. train on ImageNet: 120 epochs, which are 600,000 steps of batch 256.

    They divide the rate when the error stops falling: here at fixed epochs. Crops are ours, without colour changes.
    """
    return TrainConfig(
        model=ModelConfig(name="resnet18"),
        data=IMAGENET,
        augment=CROPS_AND_FLIPS,
        optimizer=OptimizerConfig(name="sgd", lr=0.1, weight_decay=1e-4, clip_grad=0.0),
        schedule=ScheduleConfig(drop_epochs=(30, 60, 90)),
        ema=NO_EMA,
        epochs=120,
        batch_size=256,
    )


def mixer() -> TrainConfig:
    """Its authors decay the rate linearly and use a sigmoid cross-entropy: here a cosine and a softmax."""
    return TrainConfig(
        model=ModelConfig(name="mixer_s16_224", drop_path=0.1),
        data=replace(IMAGENET, preprocessing=Preprocessing(size=224, resize=256, mean=(0.5,) * 3, std=(0.5,) * 3)),
        augment=replace(
            CROPS_AND_FLIPS,
            crop_scale=0.05,
            interpolation="bilinear",
            rand_augment="rand-m15-n2",
            rand_augment_as="timm",
            mixup=0.5,
        ),
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1, decay_all=False, clip_grad=1.0),
        schedule=ScheduleConfig(warmup_epochs=32, warmup_factor=0.0),  # 10,000 steps
        ema=NO_EMA,
        batch_size=4096,
    )


def resmlp() -> TrainConfig:
    """Without its authors' repeated augmentation."""
    return TrainConfig(
        model=ModelConfig(name="resmlp_12_224", drop_path=0.05),
        data=replace(IMAGENET, preprocessing=replace(IMAGENET.preprocessing, resize=248)),
        augment=AugmentConfig(rand_augment_as="timm"),
        optimizer=OptimizerConfig(
            name="lamb", lr=5e-3, weight_decay=0.2, decay_all=False, decoupled=False, eps=1e-6, clip_grad=1.0
        ),
        schedule=ScheduleConfig(warmup_epochs=5, warmup_factor=2e-4, cosine_from_start=True),
        ema=NO_EMA,
        epochs=400,
        batch_size=2048,
        precision="float32",
    )


# The small data sets


def on(small: Callable[[], TrainConfig], theirs: TrainConfig, name: str) -> TrainConfig:
    """A network with its own optimiser and stochastic depth, and data, augmentation and length of our recipe.

    The learning rate is ours: theirs belongs to another batch.
    """
    ours = small()
    optimizer = replace(theirs.optimizer, lr=ours.optimizer.lr)
    return replace(ours, model=ModelConfig(name=name, drop_path=theirs.model.drop_path), optimizer=optimizer)


def small_resnet18(small: Callable[[], TrainConfig]) -> TrainConfig:
    """As He et al. train on CIFAR-10: 64,000 steps of batch 128, drops after 32,000 and 48,000, shifts and flips.

    Their networks there are ResNet-20 and deeper, of 16 to 64 channels. The other data sets have as many epochs.
    """
    ours = small()
    return replace(
        ours,
        model=ModelConfig(name="resnet18_lowres"),
        augment=replace(CROPS_AND_FLIPS, crop="shift", hflip=ours.augment.hflip),
        optimizer=OptimizerConfig(name="sgd", lr=0.1, weight_decay=1e-4, clip_grad=0.0),
        schedule=ScheduleConfig(drop_epochs=(82, 123)),
        epochs=164,
        batch_size=128,
        micro_batch=128,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    **{name: partial(monet, name) for name in ("monet_tiny", "monet_small", "monet_tiny_bn")},
    **{name: partial(dttn, name) for name in ("dttn_tiny", "dttn_small", "dttn_base", "dttn_small_bn")},
    "resnet18": resnet18,
    "mixer_s16_224": mixer,
    "resmlp_12_224": resmlp,
    **{f"resnet18_lowres_{data}": partial(small_resnet18, small) for data, small in SMALL_SETS.items()},
    **{
        f"{name}_{data}": partial(on, small, theirs, name)
        for name, theirs in (
            ("monet_tiny", monet("monet_tiny")),
            ("dttn_tiny", dttn("dttn_tiny")),
            ("mixer_s_lowres", mixer()),
            ("resmlp_12_lowres", resmlp()),
        )
        for data, small in SMALL_SETS.items()
    },
}
