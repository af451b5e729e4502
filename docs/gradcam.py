"""Draws docs/figures/gradcam.png: Grad-CAM heat maps of the shipped CIFAR-10 network."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from pytorch_grad_cam import GradCAM

import polynext

FIGURE = Path(__file__).parent / "figures" / "gradcam.png"


def main() -> None:
    run = polynext.load_run("cpolynext_cipher_bn.cifar10", pretrained=True)
    images, _, pictures = run.images("test", 10)
    inputs = torch.from_numpy(images).float()
    with torch.no_grad():
        predicted = run.model(inputs).argmax(1)
    with GradCAM(model=run.model, target_layers=[run.model.stages[-1].cells[-1]]) as cam:
        heat = cam(inputs, targets=None)
    figure, axes = plt.subplots(2, 10, figsize=(12, 2.9), layout="constrained")
    for column, (picture, warmth, label) in enumerate(zip(pictures, heat, predicted, strict=True)):
        axes[0, column].imshow(picture)
        axes[0, column].set_title(run.class_names[label], fontsize=9)
        axes[1, column].imshow(np.asarray(picture).mean(axis=2), cmap="gray")
        axes[1, column].imshow(warmth, cmap="inferno", alpha=0.6)
        for row in (0, 1):
            axes[row, column].axis("off")
    figure.savefig(FIGURE, dpi=110)
    print(FIGURE)


if __name__ == "__main__":
    main()
