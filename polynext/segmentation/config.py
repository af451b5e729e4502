"""Everything a segmentation run is defined by. The defaults are the paper's ADE20K recipe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from polynext.acceleration import Memory
from polynext.config import EmaConfig, LoopConfig
from polynext.config.training import check_warmup
from polynext.errors import PolyNeXtError
from polynext.schema import Config, NonNegative, NonNegativeInt, Positive, PositiveInt, Share, ShareBelowOne


@dataclass(frozen=True, kw_only=True)
class SegmentationModelConfig(Config):
    """The network.

    Attributes:
        backbone: any timm model with feature maps, ours or another.
        backbone_weights: a classifier's checkpoint to start the backbone from.
        pretrained: fetch the backbone's published weights instead.
        drop_path: stochastic depth of the backbone.
        width: of the decoder.
        memory: what is kept of the backbone for the backward pass: plain is what PyTorch keeps, lean little
            besides the matrix products, at some cost in time; least recomputes whole cells.
    """

    backbone: str = "cpolynext_small"
    backbone_weights: Path | None = None
    pretrained: bool = False
    drop_path: ShareBelowOne = 0.3
    width: PositiveInt = 512
    memory: Memory = "plain"


@dataclass(frozen=True, kw_only=True)
class SegmentationDataConfig(Config):
    """Images and masks, and how they are varied.

    Attributes:
        name: ade20k (its own layout), camvid (SegNet's layout, or an .npz), or folder (images/train, masks/train,
            images/val, masks/val and classes.txt; 255 in a mask does not count).
        root: its folder.
        resize: the longer and the shorter edge that an image is fitted into, before its random factor in training.
        factors: range of that factor.
        crop: side of the square crops, and of the sliding window in testing.
        stride: of the sliding window.
        most_of_a_class: a crop of which one class takes more than this is drawn again.
        hflip: probability of a mirrored image.
        distortion: whether brightness, contrast, saturation and hue vary.
        mean: per channel, of pixel values in 0 to 1.
        std: per channel.
        workers: processes that prepare images beside the one that trains, at most one for each core.
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
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN
    std: tuple[Positive, Positive, Positive] = IMAGENET_DEFAULT_STD
    workers: NonNegativeInt = 4


@dataclass(frozen=True, kw_only=True)
class SegmentationOptimizerConfig(Config):
    """AdamW with linear warmup and linear decay.

    Attributes:
        lr: the backbone's learning rate at its highest.
        head_factor: by how much faster the heads learn.
        weight_decay: on all but norms, Sigmoid-Scale and skip scales.
        betas: decay of the running moments.
        warmup: iterations of warmup.
        warmup_factor: share of the rate that it starts from.
        clip_grad: limit of the gradient's global norm, 0 for none; the paper uses 5 for APolyNeXt.
        clip_cells: limit of the gradient's norm at each cell's output in backward, 0 for none; 5 for APolyNeXt.
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
        data: what it learns from.
        optimizer: how.
        iterations: optimiser steps.
        auxiliary_weight: of the auxiliary head's loss.
        evaluate_every: iterations between two evaluations; one comes at the end in any case.
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
