"""Everything a segmentation run is defined by. The defaults are the paper's ADE20K recipe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from polynext.acceleration import Memory
from polynext.errors import PolyNeXtError, require_at_least, require_share
from polynext.training.config import EmaConfig, LoopConfig, check_optimizer, fields, require_room_for_warmup


@dataclass(frozen=True, kw_only=True)
class SegmentationModelConfig:
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
    drop_path: float = 0.3
    width: int = 512
    memory: Memory = "plain"


@dataclass(frozen=True, kw_only=True)
class SegmentationDataConfig:
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
    resize: tuple[int, int] = (2048, 512)
    factors: tuple[float, float] = (0.5, 2.0)
    crop: int = 512
    stride: int = 341
    most_of_a_class: float = 0.75
    hflip: float = 0.5
    distortion: bool = True
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, float, float] = IMAGENET_DEFAULT_STD
    workers: int = 4


@dataclass(frozen=True, kw_only=True)
class SegmentationOptimizerConfig:
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

    lr: float = 1e-4
    head_factor: float = 10.0
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: int = 1500
    warmup_factor: float = 1e-6
    clip_grad: float = 0.0
    clip_cells: float = 0.0


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
    iterations: int = 160_000
    auxiliary_weight: float = 0.4
    evaluate_every: int = 16_000
    ema: EmaConfig = field(default_factory=lambda: EmaConfig(decay=0.0))
    batch_size: int = 16
    micro_batch: int = 0
    compile: bool = False

    def check(self) -> None:
        super().check()
        data = self.data
        require_at_least(1, iterations=self.iterations, evaluate_every=self.evaluate_every)
        require_at_least(
            1, **fields(self, "data.crop", "data.stride", "model.width"), **{"data.resize": min(data.resize)}
        )
        require_at_least(0, **fields(self, "data.workers", "optimizer.warmup", "optimizer.clip_cells"))
        require_at_least(0, **fields(self, "optimizer.head_factor", "auxiliary_weight"))
        require_share(**fields(self, "data.hflip", "data.most_of_a_class", "optimizer.warmup_factor"))
        require_share(whole=False, **fields(self, "model.drop_path"))
        check_optimizer(self)
        require_room_for_warmup(self.iterations, "iterations", self.optimizer.warmup, "optimizer.warmup")
        if not 0 < data.factors[0] <= data.factors[1]:
            given = " ".join(f"{factor:g}" for factor in data.factors)
            raise PolyNeXtError(f"`data.factors` is {given}: give two numbers above 0, the smaller one first.")
        if min(data.std) <= 0:
            raise PolyNeXtError(f"`data.std` has {min(data.std):g}: give numbers above 0.")
        if data.stride > data.crop:
            raise PolyNeXtError(
                f"a stride of {data.stride} leaves gaps between windows of {data.crop}: give at most that."
            )
