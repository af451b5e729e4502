"""Time a statement in two checkouts of this project, in turns.

    git worktree add ../before COMMIT
    python benchmarks/checkouts.py ../before --setup "import timm, torch, polynext; \
model = timm.create_model('cpolynext_small').eval(); x = torch.randn(8, 3, 224, 224); torch.set_grad_enabled(False)" \
        --statement "model(x)"

Each checkout runs in its own process. After one turn to warm up, they take turns. The printed ratio is the median over
the turns of this checkout's time divided by the other's: below 1 if this one is faster. If the two need different code,
give `--other-setup` and `--other-statement`.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from polynext.experiments.speed.timing import take_turns

WORKER = """
import os, sys, time
import torch
torch.set_num_threads(int(sys.argv[1]))
from polynext.memory import keep_freed_memory
keep_freed_memory()
scope = {}
exec(sys.argv[2], scope)
import polynext
assert polynext.__file__.startswith(os.getcwd()), polynext.__file__
statement = compile(sys.argv[3], "statement", "exec")
for _ in sys.stdin:
    start = time.process_time() if sys.argv[4] == "cpu" else time.perf_counter()
    exec(statement, scope)
    print((time.process_time() if sys.argv[4] == "cpu" else time.perf_counter()) - start, flush=True)
"""


class Worker:
    """A process that imports polynext from one checkout."""

    def __init__(self, checkout: Path, threads: int, setup: str, statement: str, clock: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(threads), setup, statement, clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,  # where `python -c` looks for modules first
        )

    def turn(self) -> float:
        assert self.process.stdin and self.process.stdout
        print("turn", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a process ended: see its message above")
        return float(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--setup", default="pass")
    parser.add_argument("--statement", required=True)
    parser.add_argument("--other-setup")
    parser.add_argument("--other-statement")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    args = parser.parse_args()
    here = Worker(Path(__file__).parents[1], args.threads, args.setup, args.statement, args.clock)
    other_code = args.other_setup or args.setup, args.other_statement or args.statement
    other = Worker(args.other, args.threads, *other_code, args.clock)
    turns = {"here": here.turn, "other": other.turn}
    take_turns(turns, rounds=1)  # to warm up
    ours, theirs = take_turns(turns, args.rounds).values()
    ratio = statistics.median(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))
    print(f"here {ours.median:.4f} s, other {theirs.median:.4f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
