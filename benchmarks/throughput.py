"""Inference speed as a share of the machine's matrix-product speed.

    python benchmarks/throughput.py --models cpolynext_small convformer_s18 caformer_s18 --threads 1

Measures like `polynext bench`, with a large float32 matrix product that takes turns with the networks. The share of the
limit is (images/s x multiply-accumulates per image) / (multiply-accumulates per second of the matrix product). Eager
networks of ours are measured both accelerated (`polynext.accelerate`) and plain.
"""

import argparse
import copy
from collections.abc import Callable

import timm
import torch

from polynext.acceleration import restore
from polynext.experiments.speed.candidates import Candidate, Setting, input_size, prepare
from polynext.experiments.speed.timing import take_turns, turn
from polynext.memory import keep_freed_memory
from polynext.models import is_polynext
from polynext.models.costs import count_macs
from polynext.tables import table

MATRIX = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cpolynext_small", "convformer_s18", "caformer_s18"])
    parser.add_argument("--engines", nargs="+", default=["eager", "compiled"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    keep_freed_memory()
    setting = Setting("cpu", args.batch, threads=args.threads)
    pairs = (Candidate(model, engine) for model in args.models for engine in args.engines)
    candidates = [candidate for candidate in pairs if candidate.obstacle is None]
    prepared = {candidate: prepare(candidate, setting) for candidate in candidates}
    turns: dict[tuple[Candidate, str] | None, Callable[[], float]] = {}
    turns[None] = turn(lambda matrix: matrix @ matrix, torch.randn(MATRIX, MATRIX), "cpu")
    for candidate, (network, images) in prepared.items():
        turns[candidate, candidate.engine] = turn(network, images, "cpu")
        if candidate.engine == "eager" and is_polynext(candidate.model):
            turns[candidate, "eager, plain"] = turn(restore(copy.deepcopy(network)), images, "cpu")
    timings = take_turns(turns, args.rounds)
    limit = MATRIX**3 / timings[None].median
    rows = []
    for key, timing in timings.items():
        if key is None:
            continue
        candidate, engine = key
        model = timm.create_model(candidate.model, device="meta")
        rate = args.batch / timing.median
        share = rate * count_macs(model, input_size(model, setting)) / limit
        rows.append((candidate.model, engine, f"{rate:.2f}", f"{timing.spread:.0%}", f"{share:.2f}"))
    print(f"batch {args.batch}, float32, {args.threads} thread(s), torch {torch.__version__}")
    print(f"matrix product: {limit / 1e9:.1f} G multiply-accumulates/s")
    print(table(("model", "engine", "images/s", "spread", "of limit"), rows, left=(0, 1)))


if __name__ == "__main__":
    main()
