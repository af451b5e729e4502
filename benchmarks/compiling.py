"""How long compiling takes, and what it brings: a network as it comes, by `polynext.compile`, and as one program.

    python benchmarks/compiling.py
    python benchmarks/compiling.py --model apolynext_small --forms eager stacks

Each form has a process of its own with one thread and empty caches, and they take turns, round after round. Cold are
the CPU seconds, children's included, from a network to its first result, importing the compiler included. Programs are
those compiled for the first batch, and then for batches of other sizes, as the last one of an epoch may have. Times are
CPU seconds of a batch, medians with the distance between the quartiles; ratios are to the last form.
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import timm
import torch
from torch import nn

import polynext
from polynext.experiments.speed.timing import Timing
from polynext.memory import keep_freed_memory
from polynext.tables import table

FORMS = ("eager", "stacks", "whole")


def prepared(model: nn.Module, form: str) -> Callable[..., object]:
    if form == "eager":
        return model
    return polynext.compile(model) if form == "stacks" else torch.compile(model, fullgraph=True)


class Worker:
    """A process with one form of the network."""

    run: Callable[[], object]

    def __init__(self, model: str, form: str, batch: int):
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.cold, self.programs = self.process.submit(Worker.begin, model, form, batch).result()

    @staticmethod
    def begin(name: str, form: str, batch: int) -> tuple[float, str]:
        with tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = os.environ["TMPDIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            torch._inductor.config.compile_threads = 1
            torch.set_num_threads(1)
            keep_freed_memory()
            torch.manual_seed(0)
            model = timm.create_model(name).eval().to(memory_format=torch.channels_last)
            side = model.pretrained_cfg["input_size"][-1]
            images = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
            others = [torch.randn(n, 3, side, side) for n in (batch - 1, batch // 2, 3 * batch) if n > 1]
            start = cpu_seconds()
            network = prepared(model, form)

            @torch.inference_mode()
            def run() -> object:
                return network(images)

            run()
            cold = cpu_seconds() - start
            programs = compiled_programs()
            if form == "stacks":
                with torch.inference_mode():
                    for other in others:
                        network(other)
            Worker.run = staticmethod(run)
            return cold, f"{programs} + {compiled_programs() - programs}"

    @staticmethod
    def turn() -> float:
        start = time.process_time()
        Worker.run()
        return time.process_time() - start


def cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def compiled_programs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cpolynext_small")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    workers = {form: Worker(args.model, form, args.batch) for form in args.forms}
    seconds: dict[str, list[float]] = {form: [] for form in args.forms}
    for _ in range(args.rounds):
        for form, worker in workers.items():
            seconds[form].append(worker.process.submit(Worker.turn).result())
    last = Timing(seconds[args.forms[-1]]).median
    rows = []
    for form, worker in workers.items():
        timing = Timing(seconds[form])
        found = (f"{timing.median:.3f}", f"{timing.spread:.0%}", f"{timing.median / last:.3f}")
        rows.append((form, f"{worker.cold:.1f}", worker.programs, *found))
    print(f"{args.model}, batch {args.batch}, float32, one thread, torch {torch.__version__}")
    print(table(("form", "cold (s)", "programs", "seconds", "spread", "ratio"), rows))


if __name__ == "__main__":
    main()
