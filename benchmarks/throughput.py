"""Inference speed beside timm's MetaFormers, and as a share of the machine's matrix-product speed.

    python benchmarks/throughput.py --models cpolynext_small convformer_s18 caformer_s18 --threads 1

All candidates and the matrix product take turns, round after round, so that what else the machine does falls on all
of them alike; medians over the rounds are printed. The share of the limit is (images/s x multiply-accumulates per
image) / (multiply-accumulates per second of a large float32 matrix product), both in the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch

import polynext  # noqa: F401  (registers the models)
from polynext.memory import keep_freed_memory
from polynext.models.costs import count_macs

MATRIX = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cpolynext_small", "convformer_s18", "caformer_s18"])
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()

    image = torch.randn(args.batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    matrix = torch.randn(MATRIX, MATRIX)
    turns: dict[tuple[str, str], Callable[[], object]] = {("matrix product", ""): lambda: matrix @ matrix}
    macs = {}
    for name in args.models:
        model = timm.create_model(name).eval().to(memory_format=torch.channels_last)
        macs[name] = count_macs(model, (3, 224, 224))
        for mode in args.modes:
            run = torch.compile(model, fullgraph=True) if mode == "compiled" else model
            turns[name, mode] = lambda run=run: run(image)

    seconds: dict[tuple[str, str], list[float]] = {turn: [] for turn in turns}
    with torch.inference_mode():
        for _ in range(2):  # warm up, compile
            for run in turns.values():
                run()
        for _ in range(args.rounds):
            for turn, run in turns.items():
                start = time.perf_counter()
                run()
                seconds[turn].append(time.perf_counter() - start)

    median = {turn: statistics.median(times) for turn, times in seconds.items()}
    limit = MATRIX**3 / median.pop(("matrix product", ""))
    reference = args.models[-1], args.modes[0]
    print(f"batch {args.batch} at 224, float32, {args.threads} thread(s), torch {torch.__version__}")
    print(f"matrix product: {limit / 1e9:.1f} G multiply-accumulates/s")
    print(f"{'model':<20}{'mode':<10}{'images/s':>9}{'spread':>8}{'of limit':>10}  ratio to {' '.join(reference)}")
    for (name, mode), time_ in median.items():
        rate = args.batch / time_
        times = sorted(seconds[name, mode])
        spread = (times[-2] - times[1]) / time_ if len(times) > 3 else float("nan")
        share = rate * macs[name] / limit
        print(f"{name:<20}{mode:<10}{rate:>9.2f}{spread:>8.0%}{share:>10.2f}  {median[reference] / time_:.2f}")


if __name__ == "__main__":
    main()
