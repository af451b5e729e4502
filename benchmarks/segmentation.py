"""Time and memory of UPerNet at 512 x 512 on several backbones: inference of an image, and a training step.

    python benchmarks/segmentation.py

Each network runs in its own process; the networks take turns, round after round. The output shows medians and the
interquartile range relative to them. Memory is the peak of the first call above the memory before building the network.
"""

import argparse
import time
from collections.abc import Callable

import torch
from workload import WorkloadProcess

from polynext.experiments.speed.timing import take_turns
from polynext.memory import keep_freed_memory, peak_memory, reset_peak_memory, resident_memory
from polynext.models.costs import count_macs, count_parameters
from polynext.segmentation.task import pixel_loss
from polynext.segmentation.upernet import UPerNet
from polynext.tables import table

CLASSES = 150


def workload(backbone: str, kind: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = UPerNet(backbone, CLASSES).train(kind == "training").to(memory_format=torch.channels_last)
    # Batch norm in the pyramid's first cell needs two images to train on.
    images = torch.randn(2 if kind == "training" else 1, 3, 512, 512).contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(len(images), 512, 512, dtype=torch.long)

    def infer() -> object:
        with torch.inference_mode():
            return model(images)

    def train() -> object:
        logits, auxiliary = model(images)
        (pixel_loss(logits, labels) + 0.4 * pixel_loss(auxiliary, labels)).backward()
        return model.zero_grad()

    return train if kind == "training" else infer


def start(backbone: str, kind: str) -> tuple[Callable[[], object], int]:
    """Builds a network. Returns the function to time, and the peak memory of its first call."""
    keep_freed_memory()
    before = resident_memory()
    run = workload(backbone, kind)
    reset_peak_memory()
    run()
    return run, peak_memory() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["cpolynext_small", "convformer_s18"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    jobs = [(backbone, kind) for kind in ("inference", "training") for backbone in args.backbones]
    workers = {job: WorkloadProcess(start, *job, clock=time.perf_counter) for job in jobs}
    timings = take_turns({job: worker.turn for job, worker in workers.items()}, args.rounds)
    rows = []
    for (backbone, kind), timing in timings.items():
        model = UPerNet(backbone, CLASSES, device="meta")
        rows.append(
            (
                backbone,
                kind,
                f"{count_parameters(model) / 1e6:.1f}",
                f"{count_macs(model, (3, 512, 512)) / 1e9:.0f}",
                f"{timing.median:.2f}",
                f"{100 * timing.spread:.0f}%",
                f"{timing.median / timings[args.backbones[-1], kind].median:.2f}",
                f"{workers[backbone, kind].found / 2**20:.0f}",
            )
        )
    header = ("backbone", "", "params (M)", "GMACs", "seconds", "spread", f"to {args.backbones[-1]}", "memory (MB)")
    print(table(header, rows, left=(0, 1)))


if __name__ == "__main__":
    main()
