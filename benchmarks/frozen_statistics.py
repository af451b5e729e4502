"""Measures what fine-tuning with frozen statistics changes, on the digits.

    python benchmarks/frozen_statistics.py --epochs 20 --seeds 3
    python benchmarks/frozen_statistics.py --networks cpolynext_ablate_digits_bn --stacks 8 --epochs 10 --seeds 3

For each seed, a network is trained with batch statistics. Its weights are then fine-tuned twice, once with frozen
statistics (`polynext.recipes.frozen`) and once, for comparison, with batch statistics again. A line has the accuracy on
the test images and the largest logits of a trained network in inference, which uses the running statistics.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from polynext.data import load_examples
from polynext.experiments.sweep import shortened
from polynext.recipes import recipe
from polynext.recipes.frozen import with_frozen_statistics
from polynext.runs import load_run
from polynext.training import ModelConfig, TrainConfig, train

STEPS = ("trained", "fine-tuned with batch statistics", "fine-tuned with frozen statistics")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["cpolynext_ablate_digits_bn", "apolynext_ablate_digits_bn"])
    parser.add_argument(
        "--stacks", type=int, nargs="*", default=[], help="stacks in each cell; the network's own if empty"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for network in options.networks:
        measured: dict[str, list[tuple[float, float, float]]] = {step: [] for step in STEPS}
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                model = ModelConfig(name=network, stacks=tuple(options.stacks))
                for step, run in train_steps(model, options.epochs, seed, Path(folder)).items():
                    measured[step].append(accuracy_and_logits(run))
                    print(f"{network}, seed {seed}, {step}: {formatted(measured[step][-1:])}", flush=True)
        for step, values in measured.items():
            print(f"{network}, {step}: {formatted(values)}", flush=True)


def train_steps(model: ModelConfig, epochs: int, seed: int, folder: Path) -> dict[str, Path]:
    """The run folders of the three steps."""
    base = replace(shortened(recipe("digits"), epochs), model=model, seed=seed)
    base = replace(base, evaluate_every=epochs)
    runs = {"trained": train(base, folder / "trained", quiet=True)}
    frozen = with_frozen_statistics(base)
    frozen = from_weights(frozen, runs["trained"] / "best.safetensors")
    batch = replace(frozen, model=replace(frozen.model, frozen_statistics=False))
    for step, config in zip(STEPS[1:], (batch, frozen), strict=True):
        runs[step] = train(config, folder / step.replace(" ", "-"), quiet=True)
    return runs


def from_weights(config: TrainConfig, weights: Path) -> TrainConfig:
    return replace(config, model=replace(config.model, initial_weights=weights))


def accuracy_and_logits(folder: Path) -> tuple[float, float, float]:
    """Accuracy in percent, and the median and the maximum over the test images of an image's largest logit."""
    run = load_run(str(folder))
    examples = load_examples(run.data, "test")
    images = torch.stack([torch.from_numpy(run.preprocessing(examples.image(i))) for i in range(len(examples))])
    with torch.no_grad():
        logits = run.model.double()(images.double())
    accuracy = 100 * (logits.argmax(dim=1) == torch.as_tensor(examples.labels)).double().mean().item()
    sizes = logits.abs().amax(dim=1)
    return accuracy, sizes.median().item(), sizes.max().item()


def formatted(values: list[tuple[float, float, float]]) -> str:
    """Means over seeds, with the standard deviation of the accuracy, and the largest logit of all."""
    accuracies, medians, largest = zip(*values, strict=True)
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(values) > 1 else ""
    logits = f"{statistics.fmean(medians):.2f} in the median, {max(largest):.3g} at most"
    return f"{statistics.fmean(accuracies):.2f}%{spread}, largest logit {logits}"


if __name__ == "__main__":
    main()
