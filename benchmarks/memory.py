"""Memory and time of a training step: what is kept for the backward pass, the measured peak, and seconds of CPU.

    python benchmarks/memory.py
    python benchmarks/memory.py --task segmentation --batch 2
    python benchmarks/memory.py --compile

Each network has a process of its own with one thread, and they take turns, round after round; medians are printed, with
the distance between the quartiles. Kept are the bytes of all tensors that autograd saves, parameters aside, for each
image. The peak is that of the first step beyond what the process had before it; time is the process's CPU time, as
little disturbed as can be by what else the machine does. Ratios are to the last network.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import timm
import torch
from torch import Tensor, nn

from polynext.acceleration import compile, save_memory
from polynext.experiments.speed.timing import Timing
from polynext.memory import keep_freed_memory, peak_memory, reset_peak_memory, resident_memory
from polynext.segmentation.upernet import UPerNet
from polynext.tables import table

DEFAULT = (
    "cpolynext_small:plain", "cpolynext_small:lean", "cpolynext_small:least", "convformer_s18:plain",
    "apolynext_small:plain", "apolynext_small:lean", "apolynext_small:least", "caformer_s18:plain",
)  # fmt: skip


def build(name: str, task: str) -> nn.Module:
    model, memory = name.split(":")
    torch.manual_seed(0)
    network: nn.Module = timm.create_model(model) if task == "classification" else UPerNet(model, 150)
    save_memory(network if task == "classification" else network.backbone, memory)  # type: ignore[arg-type]
    return network.train().to(memory_format=torch.channels_last)


def loss(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    return sum((t.square().mean() for t in ([outputs] if isinstance(outputs, Tensor) else outputs)), torch.zeros(()))


class Worker:
    """A process with one network."""

    step: Callable[[], object]

    def __init__(self, name: str, task: str, batch: int, compiled: bool):
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.kept, self.peak = self.process.submit(Worker.begin, name, task, batch, compiled).result()

    @staticmethod
    def begin(name: str, task: str, batch: int, compiled: bool) -> tuple[float, float]:
        torch.set_num_threads(1)
        keep_freed_memory()
        model = build(name, task)
        network = compile(model) if compiled else model
        side = 224 if task == "classification" else 512
        images = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)

        def step() -> None:
            loss(network(images)).backward()
            model.zero_grad()

        Worker.step = staticmethod(step)
        before = resident_memory()
        reset_peak_memory()
        step()
        peak = math.nan if compiled else peak_memory() - before  # the compiler's own would be in it
        return kept_bytes(model, network, images) / batch, peak / batch

    @staticmethod
    def turn() -> float:
        start = time.process_time()
        Worker.step()
        return time.process_time() - start


def kept_bytes(model: nn.Module, network: Callable[[Tensor], Tensor], images: Tensor) -> int:
    """Bytes of what autograd saves in a forward pass, each memory once, parameters aside."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in own:
            kept[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = network(images)
    del outputs
    return sum(t.untyped_storage().nbytes() for t in kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=DEFAULT, help="as NAME:MEMORY")
    parser.add_argument("--task", choices=("classification", "segmentation"), default="classification")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="the peak is then not told")
    args = parser.parse_args()
    workers = {name: Worker(name, args.task, args.batch, args.compile) for name in args.networks}
    seconds: dict[str, list[float]] = {name: [] for name in args.networks}
    for _ in range(args.rounds):
        for name, worker in workers.items():
            seconds[name].append(worker.process.submit(Worker.turn).result())
    last = args.networks[-1]
    rows = []
    for name, worker in workers.items():
        timing = Timing(seconds[name])
        rows.append(
            (
                *name.split(":"),
                f"{worker.kept / 1e6:.0f}",
                f"{worker.kept / workers[last].kept:.2f}",
                f"{worker.peak / 1e6:.0f}",
                f"{worker.peak / workers[last].peak:.2f}",
                f"{timing.median:.2f}",
                f"{100 * timing.spread:.0f}%",
                f"{timing.median / Timing(seconds[last]).median:.2f}",
            )
        )
    form = "compiled" if args.compile else "eager"
    print(f"{args.task}, batch {args.batch}, {form}, float32, one thread, torch {torch.__version__}; MB an image")
    header = ("network", "memory", "kept", "ratio", "peak", "ratio", "seconds", "spread", "ratio")
    print(table(header, rows, left=(0, 1)))


if __name__ == "__main__":
    main()
