"""The measurements of the paper's discussion, from records of known content and from a short sweep."""

import json
from pathlib import Path

import numpy as np
import pytest

from polynext.cli import main
from polynext.experiments.ablation.baselines import baselines, costs
from polynext.experiments.ablation.report import Outcome
from polynext.experiments.ablation.rows import ABLATION_TABLES, ROWS
from polynext.experiments.ablation.sweep import AblationSweep
from polynext.experiments.discussion import (
    FUSIONS,
    SCALES,
    STABILISERS,
    Measured,
    amplification,
    coupling,
    discussion_reports,
    scale_updates,
)


def measured(names: dict[str, str], cell: dict, steps: int = 4) -> dict[str, Measured]:
    """Runs of three seeds whose records are all the same, but for scales that `cell` gives as a function."""
    outcome = Outcome("", "cpolynext", "", 1, 1, accuracies={0: 90.0, 1: 91.0, 2: 92.0})
    found = {}
    for name in names:
        runs = []
        for _ in range(3):
            records = [
                {key: value(step) if callable(value) else value for key, value in cell.items()} for step in range(steps)
            ]
            runs.append([{"step": step, "cells": {"cell": record}} for step, record in enumerate(records)])
        found[name] = Measured(outcome, runs)
    return found


def test_coupling_is_the_mean_over_operators() -> None:
    branches = [dict(dead_a=a, dead_b=0.0, dead_both=0.0, passed_a=a, passed_b=1.0, coupling=1.0) for a in (0.2, 0.4)]
    report = coupling(measured(FUSIONS, {"branches": branches}))
    assert report.record["rows"]["addition"]["dead_a"] == pytest.approx(0.3)
    assert report.rows[0][:7] == ("a * b", "30.0", "0.0", "0.0", "0.30", "1.00", "1.00")
    assert report.rows[0][7:] == ("91.00 ± 1.00", "-", "-")
    assert report.draw is not None and len(report.draw().axes) == 4


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_the_exponent_of_scale_updates(power: float) -> None:
    scales = np.array([0.5, 0.25, 0.125, 0.0625])
    cell = {"scales": lambda step: (scales + 1e-4 * (step % 2) * scales**power).tolist()}
    report = scale_updates(measured(SCALES, cell))
    assert report.record["exponents"]["cpolynext"] == pytest.approx(power, abs=0.01)


def test_equal_scales_have_no_exponent() -> None:
    report = scale_updates(measured(SCALES, {"scales": lambda step: [1.0 + 1e-3 * step, 1.01 - 1e-3 * step]}))
    assert report.record["exponents"]["cpolynext"] is None
    assert report.rows[0][3] == "-"


def test_the_largest_activation_of_a_run() -> None:
    cell = {"stack_activations": lambda step: [1.0 + step, 2.0], "stack_gradients": [0.5, 0.25]}
    report = amplification(measured(STABILISERS, cell))
    assert report.record["whole_run"]["cpolynext"]["stack_activations"] == [4.0, 2.0]
    assert report.record["first_record"]["cpolynext"]["stack_activations"] == [1.0, 2.0]


@pytest.mark.parametrize("scale", ["digits", "cifar10"])
def test_the_peer_has_the_size_of_polynext(scale: str) -> None:
    ours, peer = (costs(baselines(scale)[name])[0] for name in ("cpolynext-s", "peer"))
    assert peer == pytest.approx(ours, rel=0.02)


def test_rows_change_the_learning_rate_and_the_batch() -> None:
    baseline = baselines("digits")["peer"]
    assert ROWS["peer-lr-x4"].change(baseline).optimizer.lr == 4 * baseline.optimizer.lr
    small, large = (ROWS[f"peer-batch-x{factor}"].change(baseline) for factor in ("0.25", "4"))
    assert (small.batch_size, small.micro_batch) == (16, 16)
    assert (large.batch_size, large.micro_batch) == (256, 64)


def test_each_question_has_a_table_of_rows() -> None:
    for question, names in (("coupling", FUSIONS), ("scales", SCALES), ("amplification", STABILISERS)):
        assert {row.name for row in ABLATION_TABLES[question]} | {"cpolynext"} == set(names)


def test_a_report_needs_the_rows_of_its_question_only(tmp_path: Path) -> None:
    sweep = AblationSweep("digits", steps=1, diagnostics=True, images=64)
    trials = sweep.trials([row.name for row in ABLATION_TABLES["scales"]], seeds=1)
    for trial in trials:
        trial.write(tmp_path, {"accuracy": 50.0})
        records = [{"step": step, "cells": {"cell": {"scales": [0.5 + step, 0.1 + step]}}} for step in range(3)]
        folder = trial.folder(tmp_path)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(discussion_reports(sweep, trials, tmp_path)) == ["scales"]


@pytest.mark.slow
def test_the_discussion_from_training_to_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "discussion", "--seeds", "1", "--budget", "20", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name, title in (("coupling", "Gradients of the two"), ("sensitivity", "Sensitivity to learning rate")):
        assert title in printed
        assert (tmp_path / f"{name}.png").is_file()
        json.loads((tmp_path / f"{name}.json").read_text())
    shares = json.loads((tmp_path / "coupling.json").read_text())["rows"]
    assert shares["cpolynext"]["dead_a"] == 0 < shares["gelu-after-product"]["dead_a"]
