"""Sweeps: failures stay with their run, interrupted runs save their state, and finished runs are not repeated."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from polynext.errors import PolyNeXtError
from polynext.experiments import sweep as sweep_module
from polynext.experiments.ablation import AblationSweep, baselines, collect
from polynext.experiments.sweep import Trial, run_sweep, run_trials, script_not_imported
from polynext.training import train
from polynext.training.profile import Profile

QUICK = AblationSweep("digits", steps=1, images=64)


def test_failures_and_divergence_stay_with_their_row(tmp_path: Path, monkeypatch) -> None:
    trials = [Trial("cpolynext", 0), Trial("addition", 0), Trial("fine-only", 0)]
    real = sweep_module.train_trial

    def train_trial(sweep: AblationSweep, trial: Trial, out: Path) -> dict:
        if trial.name == "addition":
            raise RuntimeError("out of memory")
        if trial.name == "fine-only":
            raise sweep_module.DivergedError(7, "not finite")
        return real(sweep, trial, out)

    monkeypatch.setattr(sweep_module, "train_trial", train_trial)
    run_trials(QUICK, trials, tmp_path, threads=1)
    baseline, addition, fine = collect(QUICK, trials, tmp_path)
    assert baseline.accuracies
    assert addition.remark == "1 failed: RuntimeError: out of memory"
    assert fine.remark == "diverged at step 7"
    report = QUICK.report(trials, tmp_path)
    assert report.rows[2][4:6] == ("-", "-")
    assert "addition" in report.text() and report.draw().axes
    assert not trials[1].finished(tmp_path)  # repeated next time
    assert trials[2].finished(tmp_path)


def test_divergence_is_detected(tmp_path: Path, monkeypatch) -> None:
    baseline = baselines("digits")["cpolynext"]
    wild = replace(baseline, optimizer=replace(baseline.optimizer, lr=float("inf")))
    monkeypatch.setattr(AblationSweep, "baseline", lambda self, family: wild)
    run_trials(AblationSweep("digits"), [Trial("cpolynext", 0)], tmp_path, threads=1)
    result = Trial("cpolynext", 0).result(tmp_path)
    assert result.keys() == {"diverged"}
    assert 1 <= result["diverged"] <= 3


def test_a_run_whose_process_dies_fails_alone(tmp_path: Path, monkeypatch) -> None:
    """As if the system had killed it for its memory. The runs train in parallel."""
    monkeypatch.setattr(sweep_module, "run_trials", die_of_the_first)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    trials = QUICK.trials(["addition", "fine-only"], seeds=1)
    reported: list[Trial] = []
    run_sweep(QUICK, trials, tmp_path, processes=2, on_result=reported.append)
    assert "its process died with status 3" in trials[0].result(tmp_path)["error"]
    for trial in trials[1:]:
        assert trial.result(tmp_path) == {"accuracy": 50.0, "seconds": 1.0, "threads_wait": "PASSIVE"}
    assert sorted(trial.name for trial in reported) == sorted(trial.name for trial in trials)


def die_of_the_first(sweep: AblationSweep, trials: list[Trial], out: Path, threads: int) -> None:
    for trial in trials:
        if trial.name == "cpolynext":
            os._exit(3)
        trial.write(out, {"accuracy": 50.0, "seconds": 1.0, "threads_wait": os.environ.get("OMP_WAIT_POLICY")})


def test_an_interrupted_sweep_saves_its_state(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polynext", "ablate", "addition", "--seeds", "1", "--budget", "2000"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    state = tmp_path / "cpolynext" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes" in error
    assert list((tmp_path / "cpolynext" / "seed-0" / "states").glob("*.pt"))
    assert not list(tmp_path.rglob("result.json"))


SCRIPT = """
from pathlib import Path
from types import ModuleType
from polynext.experiments import run_sweep
from polynext.experiments.ablation import AblationSweep

class OwnSweep(AblationSweep):
    pass

sweep = KIND("digits", steps=1, images=64)
GUARDrun_sweep(sweep, sweep.trials(["addition"], seeds=1), Path("out"))
"""


@pytest.mark.parametrize(
    ("kind", "guard", "works"),
    [
        ("AblationSweep", "", True),
        ("OwnSweep", 'if __name__ == "__main__": ', True),
        ("OwnSweep", "", False),
    ],
)
def test_only_a_script_that_defines_its_sweep_needs_a_main_guard(
    kind: str, guard: str, works: bool, tmp_path: Path
) -> None:
    """Then a run's process imports the script. Without the guard it would start the sweep again."""
    (tmp_path / "script.py").write_text(SCRIPT.replace("GUARD", guard).replace("KIND", kind))
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    results = list(tmp_path.rglob("result.json"))
    if works:
        assert ended.returncode == 0 and len(results) == 2
    else:
        assert ended.returncode == 1 and not results
        assert 'put the call of run_sweep under `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(("text", "imported"), [('if __name__ == "__main__":\n    run()\n', True), ("run()\n", False)])
def test_processes_import_a_guarded_script(
    text: str, imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They then know the models that it registers."""
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text(text)
    monkeypatch.setitem(sys.modules, "__main__", script)
    with script_not_imported(QUICK):
        assert (sys.modules["__main__"] is script) == imported
    assert sys.modules["__main__"] is script


def test_a_folder_of_another_kind_of_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"colour": "red"}')
    with pytest.raises(PolyNeXtError, match="has a sweep of another kind"):
        AblationSweep.read(tmp_path)


def test_the_workers_of_a_run_end_with_it(tmp_path: Path, monkeypatch) -> None:
    """Even if something keeps the iterator of its batches. They would keep the process of a sweep from ending."""
    kept: list[object] = []
    iterate = Profile.iterate
    monkeypatch.setattr(Profile, "iterate", lambda self, part, items: iterate(self, part, kept.append(items) or items))
    config = QUICK.config("cpolynext")
    train(replace(config, data=replace(config.data, workers=1)), tmp_path / "run", quiet=True)
    left = multiprocessing.active_children()
    for worker in left:
        worker.kill()
    assert kept and not left
