"""Draws validation images, their masks and the predictions of trained networks side by side.

    python docs/figures/segmentation.py runs/camvid runs/camvid-convnext --out docs/figures/camvid.png

Each argument is the folder of a segmentation run. All runs must use the same data.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polynext.segmentation.data import IGNORED, load_pairs
from polynext.segmentation.overlay import palette
from polynext.segmentation.runs import load_segmentation_run
from polynext.segmentation.sliding import predict
from polynext.segmentation.transforms import TestTransform


def coloured(labels: np.ndarray, colours: np.ndarray) -> np.ndarray:
    return np.where((labels == IGNORED)[..., None], 255, colours[np.minimum(labels, len(colours) - 1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--images", nargs="+", type=int, default=[0, 25, 50])
    parser.add_argument("--out", type=Path, default=Path("segmentation.png"))
    args = parser.parse_args()
    loaded = [load_segmentation_run(run, None) for run in args.runs]
    config, _, classes = loaded[0]
    pairs, colours = load_pairs(config.data, "val"), palette(len(classes))
    figure = Figure(figsize=(3 * (2 + len(loaded)), 2.3 * len(args.images) + 0.6), layout="constrained")
    grid = figure.subplots(len(args.images), 2 + len(loaded), squeeze=False)
    for row, index in zip(grid, args.images, strict=True):
        image, mask = pairs[index]
        row[0].imshow(image)
        row[1].imshow(coloured(mask, colours))
        for axes, (one, model, _) in zip(row[2:], loaded, strict=True):
            prepared = TestTransform(one.data).image(image)
            found = predict(model, prepared, mask.shape, one.data.crop, one.data.stride).numpy()
            axes.imshow(coloured(found, colours))
    titles = ["image", "mask", *(one.model.backbone for one, _, _ in loaded)]
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title)
    for axes in grid.flat:
        axes.set_axis_off()
    handles = [Patch(color=colour / 255, label=name) for name, colour in zip(classes, colours, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(classes), 11), fontsize=8, frameon=False)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
