"""Segmentation recipes: the paper's on ADE20K, and one for CPUs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polynext.errors import PolyNeXtError
from polynext.segmentation.config import (
    SegmentationConfig,
    SegmentationDataConfig,
    SegmentationModelConfig,
    SegmentationOptimizerConfig,
)


def ade20k() -> SegmentationConfig:
    """CPolyNeXt-S: 50.6 mIoU in the paper (Table 6). Not reproduced here."""
    model = SegmentationModelConfig(pretrained=True)
    return SegmentationConfig(model=model, data=SegmentationDataConfig(root=Path("data/ADEChallengeData2016")))


def ade20k_apolynext() -> SegmentationConfig:
    """APolyNeXt-S with its two gradient clips: 49.9 mIoU in the paper (Table 6). Not reproduced here."""
    base = ade20k()
    return replace(
        base,
        model=replace(base.model, backbone="apolynext_small"),
        optimizer=SegmentationOptimizerConfig(clip_grad=5.0, clip_cells=5.0),
    )


def camvid() -> SegmentationConfig:
    """CamVid at 240 x 180 from scratch, in an hour or less on a CPU. Not in the paper."""
    return SegmentationConfig(
        model=SegmentationModelConfig(backbone="cpolynext_tiny", drop_path=0.0, width=64),
        data=SegmentationDataConfig(
            name="camvid", root=Path("data/camvid.npz"), resize=(240, 180), crop=160, stride=80, workers=1
        ),
        optimizer=SegmentationOptimizerConfig(lr=2e-3, head_factor=1.0, warmup=100),
        iterations=2000,
        batch_size=8,
        evaluate_every=500,
        log_steps=10,
        precision="float32",
    )


RECIPES: dict[str, Callable[[], SegmentationConfig]] = {
    "ade20k": ade20k,
    "ade20k_apolynext": ade20k_apolynext,
    "camvid": camvid,
}


def segmentation_recipe(name: str) -> SegmentationConfig:
    """The config of a recipe by its name."""
    if name not in RECIPES:
        raise PolyNeXtError(f"there is no segmentation recipe {name!r}: choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]()
