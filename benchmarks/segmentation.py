"""Time and memory of UPerNet at 512 x 512 on several backbones: an image through the network, and a training step.

    python benchmarks/segmentation.py

Each network has a process of its own, and they take turns, round after round; medians are printed, with the distance
between the quartiles. Memory is the peak of the first call beyond what the process had before the network was built.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch

from polynext.experiments.speed.timing import Timing
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


class Worker:
    """A process with one network."""

    run: Callable[[], object]

    def __init__(self, backbone: str, kind: str):
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.memory = self.process.submit(Worker.begin, backbone, kind).result()

    @staticmethod
    def begin(backbone: str, kind: str) -> int:
        keep_freed_memory()
        before = resident_memory()
        Worker.run = staticmethod(workload(backbone, kind))
        reset_peak_memory()
        Worker.run()
        return peak_memory() - before

    @staticmethod
    def turn() -> float:
        start = time.perf_counter()
        Worker.run()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["cpolynext_small", "convformer_s18"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    jobs = [(backbone, kind) for kind in ("inference", "training") for backbone in args.backbones]
    workers = {job: Worker(*job) for job in jobs}
    seconds: dict[tuple[str, str], list[float]] = {job: [] for job in jobs}
    for _ in range(args.rounds):
        for job, worker in workers.items():
            seconds[job].append(worker.process.submit(Worker.turn).result())
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
                f"{workers[backbone, kind].memory / 2**20:.0f}",
            )
        )
    header = ("backbone", "", "params (M)", "GMACs", "seconds", "spread", f"to {args.backbones[-1]}", "memory (MB)")
    print(table(header, rows, left=(0, 1)))


if __name__ == "__main__":
    main()
