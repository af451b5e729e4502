"""Compile time and speed of a network: eager, by `polynext.compile`, and compiled as one program.

    python benchmarks/compiling.py
    python benchmarks/compiling.py --model apolynext_small --forms eager stacks

Each form runs in its own process with one thread and empty caches; the forms take turns, round after round. "cold" is
the CPU time, including child processes and the import of the compiler, until the first result. "programs" counts the
programs compiled for the first batch and for batches of other sizes, such as the last batch of an epoch. Times are CPU
seconds of a batch: the median, and the interquartile range relative to it. Ratios are to the last form.
"""

import argparse
import os
import resource
import tempfile
from collections.abc import Callable

import timm
import torch
from torch import nn
from workload import WorkloadProcess

import polynext
from polynext.experiments.speed.timing import take_turns
from polynext.memory import keep_freed_memory
from polynext.tables import table

FORMS = ("eager", "stacks", "whole")


def prepared(model: nn.Module, form: str) -> Callable[..., object]:
    if form == "eager":
        return model
    return polynext.compile(model) if form == "stacks" else torch.compile(model, fullgraph=True)


def start(name: str, form: str, batch: int) -> tuple[Callable[[], object], tuple[float, str]]:
    """Compiles a form. Returns the function to time, the cold seconds and the number of programs."""
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
        before = cpu_seconds()
        network = prepared(model, form)

        @torch.inference_mode()
        def run() -> object:
            return network(images)

        run()
        cold = cpu_seconds() - before
        programs = compiled_programs()
        if form == "stacks":
            with torch.inference_mode():
                for other in others:
                    network(other)
        return run, (cold, f"{programs} + {compiled_programs() - programs}")


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
    workers = {form: WorkloadProcess(start, args.model, form, args.batch) for form in args.forms}
    timings = take_turns({form: worker.turn for form, worker in workers.items()}, args.rounds)
    last = timings[args.forms[-1]].median
    rows = []
    for form, timing in timings.items():
        cold, programs = workers[form].found
        found = (f"{timing.median:.3f}", f"{timing.spread:.0%}", f"{timing.median / last:.3f}")
        rows.append((form, f"{cold:.1f}", programs, *found))
    print(f"{args.model}, batch {args.batch}, float32, one thread, torch {torch.__version__}")
    print(table(("form", "cold (s)", "programs", "seconds", "spread", "ratio"), rows))


if __name__ == "__main__":
    main()
