"""What is available for a reproduction: data sets, weights, and limits of the runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polynext.data import DataConfig
from polynext.errors import PolyNeXtError


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to reproduce with.

    Attributes:
        out: folder of the tables and of all runs.
        data: folder or file of each data set.
        weights: run folder or file of weights to use instead of published weights, by timm name, or by MODEL:DATA for
            one data set.
        train: train models that have a recipe, instead of fetching published weights.
        scale: scale of the ablations; imagenet is the paper's.
        seeds: runs of each row of an ablation.
        budget: optimiser steps of such a run; the recipe's length by default.
        images: training images of such a run; all by default.
        batch_size: images at a time in evaluations.
        workers: processes that load images.
    """

    out: Path = Path("runs/reproduce")
    data: Annotated[dict[str, Path], tyro.conf.Suppress] = field(default_factory=dict)
    weights: Annotated[dict[str, Path], tyro.conf.Suppress] = field(default_factory=dict)
    train: bool = False
    scale: Literal["imagenet", "cifar10", "digits"] = "imagenet"
    seeds: int = 1
    budget: int = 0
    images: int = 0
    batch_size: int = 64
    workers: int = 0


def require_data(name: str, path: Path) -> None:
    """Raises unless a data set is complete, as far as its folders show."""
    from polynext.evaluation import ALL_NAMES
    from polynext.evaluation.corruptions import CORRUPTIONS, SEVERITIES
    from polynext.evaluation.sets import corrupted_folder, open_set
    from polynext.segmentation import SegmentationDataConfig
    from polynext.segmentation.data import load_pairs

    known = (*ALL_NAMES, "ade20k")
    if name not in known:
        raise PolyNeXtError(f"--data {name}=... is not a known data set: choose one of {', '.join(known)}.")
    if not path.exists():
        raise PolyNeXtError(f"--data {name}={path}: there is no such file or folder.")
    data = DataConfig(root=path)
    try:
        if name == "ade20k":
            load_pairs(SegmentationDataConfig(name="ade20k", root=path), "val")
        elif name == "imagenet-c":
            for corruption in CORRUPTIONS:
                for severity in SEVERITIES:
                    corrupted_folder(data, corruption, severity)
        else:
            open_set(name.removesuffix("-c"), data)
    except PolyNeXtError as error:
        raise PolyNeXtError(f"--data {name}={path}: {error}") from error
