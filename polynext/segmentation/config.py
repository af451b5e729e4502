"""The config of a segmentation run. The defaults are the paper's ADE20K recipe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from polynext.config import EmaConfig, LoopConfig
from polynext.config.training import check_warmup
from polynext.errors import PolyNeXtError
from polynext.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from polynext.schema import Config, Memory, NonNegative, NonNegativeInt, Positive, PositiveInt, Share, ShareBelowOne


@dataclass(frozen=True, kw_only=True)
class SegmentationModelConfig(Config):
    """The network.

    Attributes:
        backbone: a timm model with feature maps, such as ours.
        backbone_weights: checkpoint of a classification model to start the backbone from.
        pretrained: download the backbone's published weights instead.
        drop_path: stochastic depth of the backbone.
        width: channels of the decoder.
        memory: what the backbone keeps for the backward pass: plain keeps what PyTorch keeps; lean keeps little
            besides the matrix products and is slower; least recomputes whole cells.
    """

    backbone: str = "cpolynext_small"
    backbone_weights: Path | None = None
    pretrained: bool = False
    drop_path: ShareBelowOne = 0.3
    width: PositiveInt = 512
    memory: Memory = "plain"


@dataclass(frozen=True, kw_only=True)
class SegmentationDataConfig(Config):
    """Images and masks, and their augmentation.

    Attributes:
        name: ade20k (its own layout), camvid (SegNet's layout, or an .npz), or folder (images/train, masks/train,
            images/val, masks/val and classes.txt; label 255 is ignored).
        root: folder of the data.
        resize: limits of the longer and the shorter edge of a resized image. Training multiplies them by a factor.
        factors: range of the random factor.
        crop: side of the square crops in training, and of the sliding window in testing.
        stride: stride of the sliding window.
        most_of_a_class: largest share of a class in a crop. Other crops are drawn again.
        hflip: probability of a horizontal flip.
        distortion: vary brightness, contrast, saturation and hue.
        mean: mean of each channel, for pixel values from 0 to 1.
        std: standard deviation of each channel.
        workers: processes that load images, at most one for each core.
    """

    name: Literal["ade20k", "camvid", "folder"] = "ade20k"
    root: Path | None = None
    resize: tuple[PositiveInt, PositiveInt] = (2048, 512)
    factors: tuple[Positive, Positive] = (0.5, 2.0)
    crop: PositiveInt = 512
    stride: PositiveInt = 341
    most_of_a_class: Share = 0.75
    hflip: Share = 0.5
    distortion: bool = True
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[Positive, Positive, Positive] = IMAGENET_STD
    workers: NonNegativeInt = 4


@dataclass(frozen=True, kw_only=True)
class SegmentationOptimizerConfig(Config):
    """AdamW. The learning rate falls linearly to 0 from the first iteration on, and warmup multiplies it.

    Attributes:
        lr: learning rate of the backbone, before warmup and decay.
        head_factor: learning rate of the heads, relative to the backbone's.
        weight_decay: of all parameters but norms, Sigmoid-Scale and skip scales.
        betas: decay rates of the running moments.
        warmup: iterations of warmup.
        warmup_factor: initial share of the learning rate.
        clip_grad: limit of the gradient's global norm, 0 for none; the paper uses 5 for APolyNeXt.
        clip_cells: limit of the gradient's norm at each cell's output, 0 for none; the paper uses 5 for APolyNeXt.
    """

    lr: NonNegative = 1e-4
    head_factor: NonNegative = 10.0
    weight_decay: NonNegative = 0.05
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    warmup: NonNegativeInt = 1500
    warmup_factor: Share = 1e-6
    clip_grad: NonNegative = 0.0
    clip_cells: NonNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig(LoopConfig):
    """A whole run.

    Attributes:
        model: the network.
        data: the data and its augmentation.
        optimizer: the optimiser and its schedule.
        iterations: optimiser steps.
        auxiliary_weight: weight of the auxiliary head's loss.
        evaluate_every: iterations between two evaluations. The last iteration is always evaluated.
    """

    model: SegmentationModelConfig = field(default_factory=SegmentationModelConfig)
    data: SegmentationDataConfig = field(default_factory=SegmentationDataConfig)
    optimizer: SegmentationOptimizerConfig = field(default_factory=SegmentationOptimizerConfig)
    iterations: PositiveInt = 160_000
    auxiliary_weight: NonNegative = 0.4
    evaluate_every: PositiveInt = 16_000
    ema: EmaConfig = field(default_factory=lambda: EmaConfig(decay=0.0))
    batch_size: PositiveInt = 16
    micro_batch: NonNegativeInt = 0
    compile: bool = False

    def check(self) -> None:
        super().check()
        data = self.data
        check_warmup(self.iterations, "iterations", self.optimizer.warmup, "optimizer.warmup")
        if data.factors[0] > data.factors[1]:
            given = " ".join(f"{factor:g}" for factor in data.factors)
            raise PolyNeXtError(f"`data.factors` is {given}: give the smaller number first.")
        if data.stride > data.crop:
            raise PolyNeXtError(
                f"a stride of {data.stride} leaves gaps between windows of {data.crop}: give at most that."
            )
