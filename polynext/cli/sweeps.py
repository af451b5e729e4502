"""How commands run a sweep and show its report."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from polynext.experiments import Sweep, Trial, run_sweep


def train_all(command: str, sweep: Sweep, trials: Sequence[Trial], folder: Path, processes: int) -> None:
    """Trains the runs that have no result yet, and prints a line for each."""
    finished = sum(trial.finished(folder) for trial in trials)
    with tqdm(total=len(trials), initial=finished, unit="run", disable=None) as bar:

        def show(trial: Trial) -> None:
            bar.update()
            tqdm.write(f"{trial.name}, seed {trial.seed}: {summary(trial.result(folder) or {})}", file=sys.stderr)

        try:
            run_sweep(sweep, trials, folder, processes, show)
        except KeyboardInterrupt:
            print(f"{command}: stopped, all saved; the same command resumes", file=sys.stderr)
            raise SystemExit(130) from None


def summary(result: dict) -> str:
    """A run's result in a few words."""
    if "accuracy" in result:
        return f"{result['accuracy']:.2f}% in {result['seconds']:.0f} s"
    return f"diverged at step {result['diverged']}" if "diverged" in result else str(result.get("error"))


def show_report(command: str, sweep: Sweep, trials: Sequence[Trial], folder: Path, json: bool) -> int:
    """Writes and prints the report on a sweep. Returns the exit status: 1 if runs failed."""
    report = sweep.report(trials, folder)
    files = report.write(folder)
    print(report.json() if json else f"{report.text()}\n\n{', '.join(map(str, files))}")
    results = [trial.result(folder) or {} for trial in trials]
    failed = [result["error"] for result in results if "error" in result]
    if failed:
        message = f"{len(failed)} run(s) failed, the same command repeats them; the first: {failed[0]}"
        print(f"{command}: {message}", file=sys.stderr)
    return int(bool(failed))
