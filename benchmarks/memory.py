"""Memory and time of a training step: bytes saved for the backward pass, the measured peak, and CPU seconds.

    python benchmarks/memory.py
    python benchmarks/memory.py --task segmentation --batch 2
    python benchmarks/memory.py --compile

Each network runs in its own process with one thread; the networks take turns, round after round. "kept" is the size of
all tensors that autograd saves for one image, without parameters. "peak" is the peak of the first step above the memory
that the process used before. Times are CPU seconds, which other load disturbs little: the median, and the interquartile
range relative to it. Ratios are to the last network.
"""

import argparse
import math
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn
from workload import WorkloadProcess

from polynext.acceleration import compile, save_memory
from polynext.experiments.speed.timing import take_turns
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


def start(name: str, task: str, batch: int, compiled: bool) -> tuple[Callable[[], object], tuple[float, float]]:
    """Builds a network. Returns the function to time, and the kept and peak bytes for one image."""
    torch.set_num_threads(1)
    keep_freed_memory()
    model = build(name, task)
    network = compile(model) if compiled else model
    side = 224 if task == "classification" else 512
    images = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        loss(network(images)).backward()
        model.zero_grad()

    before = resident_memory()
    reset_peak_memory()
    step()
    peak = math.nan if compiled else peak_memory() - before  # the compiler's memory would be included
    return step, (kept_bytes(model, network, images) / batch, peak / batch)


def kept_bytes(model: nn.Module, network: Callable[[Tensor], Tensor], images: Tensor) -> int:
    """Bytes that autograd saves in a forward pass, without parameters; shared memory counts once."""
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
    parser.add_argument("--compile", action="store_true", help="compile the networks; their peak is not measured")
    args = parser.parse_args()
    workers = {name: WorkloadProcess(start, name, args.task, args.batch, args.compile) for name in args.networks}
    timings = take_turns({name: worker.turn for name, worker in workers.items()}, args.rounds)
    last = args.networks[-1]
    last_kept, last_peak = workers[last].found
    rows = []
    for name, timing in timings.items():
        kept, peak = workers[name].found
        rows.append(
            (
                *name.split(":"),
                f"{kept / 1e6:.0f}",
                f"{kept / last_kept:.2f}",
                f"{peak / 1e6:.0f}",
                f"{peak / last_peak:.2f}",
                f"{timing.median:.2f}",
                f"{100 * timing.spread:.0f}%",
                f"{timing.median / timings[last].median:.2f}",
            )
        )
    form = "compiled" if args.compile else "eager"
    print(f"{args.task}, batch {args.batch}, {form}, float32, one thread, torch {torch.__version__}; MB an image")
    header = ("network", "memory", "kept", "ratio", "peak", "ratio", "seconds", "spread", "ratio")
    print(table(header, rows, left=(0, 1)))


if __name__ == "__main__":
    main()
