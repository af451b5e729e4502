"""Counts images with very large logits, which polynomials of high degree can have.

    python benchmarks/outliers.py cpolynext_cipher_bn.cifar10 --data cifar10 --root cifar10.npz
    python benchmarks/outliers.py runs/cipher --data cifar10 --root cifar10.npz --split train --images 10000

Under encryption such an image overflows, together with the other images in its ciphertext.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from polynext.data import load_examples
from polynext.models.published import shipped_weights
from polynext.runs import load_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--split", choices=("train", "test"), default="test")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--beyond", type=float, default=30.0)
    options = parser.parse_args()
    run = load_run(options.network, pretrained=shipped_weights(options.network) is not None)
    examples = load_examples(replace(run.data, name=options.data, root=options.root), options.split)
    model, largest, correct = run.model.double(), [], 0
    count = min(options.images, len(examples))
    for start in range(0, count, 500):
        chosen = range(start, min(start + 500, count))
        images = np.stack([run.preprocessing(examples.image(i)) for i in chosen])
        with torch.no_grad():
            logits = model(torch.from_numpy(images).double()).numpy()
        largest.append(np.abs(logits).max(axis=1))
        correct += int((logits.argmax(axis=1) == examples.labels[list(chosen)]).sum())
    sizes = np.concatenate(largest)
    print(f"{count} {options.split} images, {100 * correct / count:.2f}% accuracy in float64")
    print(f"largest logit: {np.median(sizes):.3g} median, {np.quantile(sizes, 0.999):.3g} at the 99.9th percentile")
    print(f"beyond {options.beyond:g}: {int((sizes > options.beyond).sum())} images")


if __name__ == "__main__":
    main()
