"""Runs for laptops, which are not in the paper."""

from dataclasses import replace
from pathlib import Path

from polynext.config import EmaConfig, EncryptionConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from polynext.data import AugmentConfig, DataConfig, Preprocessing
from polynext.data.drawings import PREPARED
from polynext.preprocessing import CIFAR10_MEAN, CIFAR10_STD


def digits() -> TrainConfig:
    """CPolyNeXt-nano on scikit-learn's handwritten digits."""
    return TrainConfig(
        model=ModelConfig(name="cpolynext_nano"),
        data=DataConfig(),
        augment=AugmentConfig(
            crop="shift", hflip=0.0, rand_augment="", erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.1
        ),
        optimizer=OptimizerConfig(lr=4e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=2, min_lr=1e-5),
        ema=EmaConfig(decay=0.99),
        epochs=60,
        batch_size=64,
        micro_batch=64,
        precision="float32",
        compile=False,
        checkpoint_minutes=0.0,
        # An error of 2e-3 changes no prediction and takes half the time of 1e-3.
        encryption=EncryptionConfig(key_memory=100, error=2e-3),
    )


def mnist() -> TrainConfig:
    """CPolyNeXt-MNIST on MNIST and on digits drawn with strokes, fully polynomial, for encrypted inference."""
    return TrainConfig(
        model=ModelConfig(name="cpolynext_mnist_bn", conditioning=0.1),
        data=DataConfig(name="mnist-drawings", root=Path("data"), preprocessing=PREPARED, workers=1, validation=5000),
        augment=AugmentConfig(
            crop="shift",
            rotation=12.0,
            scaling=0.15,
            line_width=0.5,
            hflip=0.0,
            rand_augment="",
            erasing=0.0,
            mixup=0.0,
            cutmix=0.0,
            label_smoothing=0.1,
        ),
        optimizer=OptimizerConfig(lr=4e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=1, min_lr=1e-5),
        ema=EmaConfig(decay=0.998, start=0.5),
        epochs=16,
        batch_size=128,
        micro_batch=128,
        precision="bf16",
        compile=True,
        checkpoint_minutes=2.0,
        # Few keys at the cost of more rotations: a browser uploads half of their size.
        encryption=EncryptionConfig(memory=1024, key_memory=52, error=2e-3, ring_degrees=(2**14,)),
    )


def mnist_frozen() -> TrainConfig:
    """Fine-tuning after `mnist`, from its weights: `--model.initial-weights RUN/best.safetensors`.

    With frozen statistics, and with augmentation that is closer to centred drawings.
    """
    base = mnist()
    return replace(
        base,
        model=replace(base.model, frozen_statistics=True),
        augment=replace(base.augment, crop="none", rotation=8.0, scaling=0.1, line_width=0.3),
        optimizer=replace(base.optimizer, lr=1e-3, clip_grad=1.0),
        schedule=ScheduleConfig(min_lr=0.0),
        epochs=8,
    )


def cifar10() -> TrainConfig:
    """CIFAR-10 on a CPU in an hour or two."""
    return TrainConfig(
        model=ModelConfig(name="cpolynext_micro"),
        data=DataConfig(
            name="cifar10",
            root=Path("data"),
            preprocessing=Preprocessing(size=32, resize=32, mean=CIFAR10_MEAN, std=CIFAR10_STD),
            workers=1,
        ),
        augment=AugmentConfig(crop="shift", rand_augment="", erasing=0.0, mixup=0.0, cutmix=0.0),
        optimizer=OptimizerConfig(lr=2e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=1, min_lr=0.0),
        ema=EmaConfig(decay=0.999),
        epochs=8,
        batch_size=96,
        micro_batch=96,
        precision="float32",
        compile=False,
    )


def cipher() -> TrainConfig:
    """CPolyNeXt-Cipher on CIFAR-10, fully polynomial, for encrypted inference."""
    base = cifar10()
    return replace(
        base,
        model=ModelConfig(name="cpolynext_cipher_bn", conditioning=0.1),
        augment=replace(base.augment, erasing=0.25),
        optimizer=OptimizerConfig(lr=3e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=2, min_lr=0.0),
        ema=EmaConfig(decay=0.999, start=0.5),
        epochs=40,
        evaluate_every=2,
        batch_size=128,
        micro_batch=128,
        precision="bf16",
        compile=True,
        encryption=EncryptionConfig(memory=8192, key_memory=1024, error=1e-2, ring_degrees=(2**15,)),
    )


def cipher_deep() -> TrainConfig:
    """CPolyNeXt-Cipher-Deep on CIFAR-10, for encrypted inference at ring degree 2^16 with clients in Python.

    Reached 89.3% on the 5,000 held-out training images in 90 minutes on one core of a virtual AMD EPYC (AVX-512 with
    bf16). `cipher_deep_restart` goes on from there.
    """
    base = cipher()
    return replace(
        base,
        model=ModelConfig(name="cpolynext_cipher_deep_bn", conditioning=0.1),
        data=replace(base.data, validation=5000),
        augment=replace(base.augment, rand_augment="rand-m5-n1-mstd0.5-inc1"),
        optimizer=OptimizerConfig(name="muon", lr=6e-3, betas=(0.95, 0.99), eps=1e-7, weight_decay=0.05),
        ema=replace(base.ema, statistics="estimated"),
        epochs=26,
        encryption=EncryptionConfig(memory=11264, key_memory=3800, error=1e-2, ring_degrees=(2**16,), clients="python"),
    )


def cipher_deep_restart() -> TrainConfig:
    """A second cycle of `cipher_deep`, from its weights: `--model.initial-weights RUN/best.safetensors`.

    With stronger augmentation and conditioning. Fewer images are held out, a part of those of the first cycle.
    """
    base = cipher_deep()
    return replace(
        base,
        model=replace(base.model, conditioning=0.3),
        data=replace(base.data, validation=1000),
        augment=replace(base.augment, rand_augment="rand-m5-n2-mstd0.5-inc1"),
        optimizer=replace(base.optimizer, lr=4e-3),
        schedule=replace(base.schedule, warmup_epochs=1),
        epochs=32,
    )
