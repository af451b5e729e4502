"""Time and memory of UPerNet at 512 x 512 on several backbones: an image through the network, and a training step.

    python benchmarks/segmentation.py

All take turns, round after round; medians are printed, with the distance between the quartiles. Memory is the peak of
a process of its own, beyond what it had before the network was built.
"""

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch

from polynext.bench.measure import Timing, turn
from polynext.cli.table import table
from polynext.memory import keep_freed_memory, peak_memory, reset_peak_memory, resident_memory
from polynext.models.costs import count_macs, count_parameters
from polynext.segmentation.engine import pixel_loss
from polynext.segmentation.upernet import UPerNet

CLASSES = 150


def workload(backbone: str, kind: str) -> tuple[Callable[[torch.Tensor], object], torch.Tensor]:
    torch.manual_seed(0)
    model = UPerNet(backbone, CLASSES).train(kind == "training").to(memory_format=torch.channels_last)
    # Batch norm in the pyramid's first cell needs two images to train on.
    images = torch.randn(2 if kind == "training" else 1, 3, 512, 512).contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(len(images), 512, 512, dtype=torch.long)

    def infer(x: torch.Tensor) -> object:
        with torch.inference_mode():
            return model(x)

    def train(x: torch.Tensor) -> object:
        with torch.inference_mode(False), torch.enable_grad():
            logits, auxiliary = model(x)
            (pixel_loss(logits, labels) + 0.4 * pixel_loss(auxiliary, labels)).backward()
            return model.zero_grad()

    return (train if kind == "training" else infer), images


def memory(backbone: str, kind: str) -> int:
    before = resident_memory()
    run, images = workload(backbone, kind)
    run(images)
    reset_peak_memory()
    run(images)
    return peak_memory() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["cpolynext_small", "convformer_s18"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    keep_freed_memory()
    jobs = [(backbone, kind) for kind in ("inference", "training") for backbone in args.backbones]
    taken = {}
    for job in jobs:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            taken[job] = process.submit(memory, *job).result()
    turns = {job: turn(*workload(*job), "cpu") for job in jobs}
    seconds: dict[tuple[str, str], list[float]] = {job: [] for job in jobs}
    for _ in range(args.rounds):
        for job, take in turns.items():
            seconds[job].append(take())
    rows = []
    for (backbone, kind), times in seconds.items():
        model = UPerNet(backbone, CLASSES, device="meta")
        timing = Timing(times)
        rows.append(
            (
                backbone,
                kind,
                f"{count_parameters(model) / 1e6:.1f}",
                f"{count_macs(model, (3, 512, 512)) / 1e9:.0f}",
                f"{timing.median:.2f}",
                f"{100 * timing.spread:.0f}%",
                f"{timing.median / Timing(seconds[args.backbones[-1], kind]).median:.2f}",
                f"{taken[backbone, kind] / 2**20:.0f}",
            )
        )
    header = ("backbone", "", "params (M)", "GMACs", "seconds", "spread", f"to {args.backbones[-1]}", "memory (MB)")
    print(table(header, rows, left=(0, 1)))


if __name__ == "__main__":
    main()
