"""A sweep of training runs, as a command shows it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from polynext.experiments import Sweep, Trial, run_sweep


def train_all(command: str, sweep: Sweep, trials: Sequence[Trial], folder: Path, processes: int) -> None:
    """Trains what has no result yet, with a line for each run that is over."""
    with tqdm(total=len(trials), initial=sum(t.finished(folder) for t in trials), unit="run", disable=None) as bar:

        def tell(trial: Trial) -> None:
            bar.update()
            tqdm.write(f"{trial.name}, seed {trial.seed}: {how_it_ended(trial, folder)}", file=sys.stderr)

        try:
            run_sweep(sweep, trials, folder, processes, tell)
        except KeyboardInterrupt:
            print(f"{command}: stopped, all saved: go on with the same command", file=sys.stderr)
            raise SystemExit(130) from None


def how_it_ended(trial: Trial, folder: Path) -> str:
    result = trial.result(folder) or {}
    if "accuracy" in result:
        return f"{result['accuracy']:.2f}% in {result['seconds']:.0f} s"
    return f"diverged at step {result['diverged']}" if "diverged" in result else str(result.get("error"))
