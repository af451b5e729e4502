"""Architecture sweeps: names build their networks, results have an accuracy and plans or reasons, and all resumes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.experiments.architectures import ARCHITECTURES, ArchitectureResult, ArchitectureSweep, collect, pareto
from polynext.experiments.architectures.report import architecture_report, draw
from polynext.experiments.architectures.sweep import BASE
from polynext.experiments.sweep import Trial, run_sweep, run_trials
from polynext.models.polynext import CIPHER, falling
from polynext.models.variants import ArchitectureChanges, create_variant
from polynext.recipes import recipe
from polynext.runs import load_run
from polynext.training import build_model
from polynext.training.folder import RunFolder

SMALL = "patch-8+widths-4+stacks-1"
SMALL_TWO = "patch-4+widths-4-6+stacks-1"


def architecture(name: str) -> object:
    return build_model(ArchitectureSweep().config(name), 10, device="meta").config


def test_a_name_builds_its_network() -> None:
    (stage,) = CIPHER.stages
    assert architecture("widths-64+stacks-5+coarse-5+patch-2") == replace(
        CIPHER,
        stages=(replace(stage, width=64, stacks=5, coarse_kernel=5),),
        scale_logits=falling(10),
        stem_kernel=2,
        stem_stride=2,
    )
    two = architecture("widths-32-128+stacks-1-3")
    assert [(s.width, s.stacks) for s in two.stages] == [(32, 1), (128, 3)]
    assert two.scale_logits == falling(6)


def test_a_network_of_more_stages_can_be_given_fewer() -> None:
    changes = ArchitectureChanges(widths=(16, 32), stacks=(2,))
    config = create_variant("cpolynext_tiny", architecture=changes, device="meta").config
    assert [(s.width, s.stacks) for s in config.stages] == [(16, 2), (32, 2)]
    assert len(config.scale_logits) == 3  # two stacks share the scale between them


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("stacks-1-3", "`model.stacks` is for 2 stages and the network has 1"),
        ("coarse-4", "give an odd number"),
        ("widths-128", "has no effect"),
        ("patch-2-2", "there is no variant 'patch-2-2'"),
        ("patch-64", "give at least 64x64"),
    ],
)
def test_a_wrong_name_is_an_error(variant: str, message: str) -> None:
    with pytest.raises(PolyNeXtError, match=message):
        ArchitectureSweep().trials([variant])


def test_the_default_architectures_vary_everything_that_the_cost_depends_on() -> None:
    sweep = ArchitectureSweep()
    configs = {name: build_model(sweep.config(name), 10, device="meta").config for name in ARCHITECTURES}
    assert len(ARCHITECTURES) >= 12 and len(set(configs.values())) == len(ARCHITECTURES)
    assert configs[BASE] == CIPHER
    assert {len(config.stages) for config in configs.values()} == {1, 2}
    assert {config.stem_stride for config in configs.values()} == {2, 4}
    assert {sum(s.stacks for s in config.stages) for config in configs.values()} == {3, 4, 5, 6}
    assert {s.width for config in configs.values() for s in config.stages} >= {32, 64, 128}
    assert sweep.config(BASE).model == recipe("cipher").model


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("data") / "photographs.npz"
    arrays = {}
    for split, count in (("train", 130), ("test", 20)):
        arrays[f"{split}_x"] = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_y"] = np.arange(count) % 10
    np.savez(file, **arrays)
    return file


def test_architectures_are_trained_planned_and_reported(photographs: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    sweep = ArchitectureSweep(epochs=1, error=1.0, root=str(photographs))
    run_trials(sweep, sweep.trials([SMALL, SMALL_TWO]), out, threads=1)
    sweep.open(out)
    command = ["encrypted", "design", "--root", str(photographs), "--images", "0", "--epochs", "1", "--error", "1"]
    command += ["--out", str(out), "--designs", SMALL, SMALL_TWO]
    assert main([*command, "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["designs"]
    assert (one["variant"], one["stages"], two["stages"]) == (SMALL, "4 at 4x4", "4 at 8x8, 6 at 4x4")
    for result in (one, two):
        assert result["accuracy"] is not None and not result["problem"]
        assert [plan["ring_degree"] for plan in result["plans"]] == [2**14, 2**15]
        assert result["seconds"] == min(plan["cost"]["seconds"] for plan in result["plans"])
    assert (out / "report.png").is_file() and f"| {SMALL} | 4 at 4x4 | 1 |" in (out / "report.md").read_text()

    # The run folder defines the whole network; the sweep keeps its number of images.
    run = load_run(out / SMALL / "seed-0")
    assert run.config.model.architecture == ArchitectureChanges(patch=8, widths=(4,), stacks=(1,))
    assert [stage.width for stage in run.model.config.stages] == [4]
    assert main([*command, "--images", "128"]) == 2
    assert "has runs with images 0, not 128" in capsys.readouterr().err


def test_other_limits_repeat_the_plans_but_no_training(photographs: Path, tmp_path: Path) -> None:
    sweep = ArchitectureSweep(epochs=1, error=1.0, root=str(photographs))
    (trial,) = trials = sweep.trials([SMALL])
    run_trials(sweep, trials, tmp_path, threads=1)
    trained = (trial.folder(tmp_path) / "best.safetensors").stat().st_mtime_ns
    sweep.forget_plans(trials, tmp_path)
    assert trial.finished(tmp_path)
    stricter = replace(sweep, key_memory=1)
    stricter.forget_plans(trials, tmp_path)
    assert not trial.finished(tmp_path)
    with (
        RunFolder(trial.folder(tmp_path)).alone(),
        pytest.raises(PolyNeXtError, match="another process trains in"),
    ):
        run_sweep(stricter, trials, tmp_path)
    run_trials(stricter, trials, tmp_path, threads=1)
    assert (trial.folder(tmp_path) / "best.safetensors").stat().st_mtime_ns == trained
    (found,) = collect(stricter, trials, tmp_path)
    assert found.seconds is None and found.accuracy is not None
    assert "rotation keys take" in found.plans[1]["why_not"]
    assert f"- {SMALL}, 2^15: this network does not fit" in stricter.report(trials, tmp_path).markdown()


def made_up(name: str, seconds: float | None, accuracy: float | None) -> ArchitectureResult:
    plan = (
        {"ring_degree": 2**14, "cost": {"seconds": seconds}} if seconds else {"ring_degree": 2**14, "why_not": "deep"}
    )
    return ArchitectureResult(name, "", "", 1, 1, 1, accuracy, (plan,), "")


def test_the_frontier_has_the_architectures_that_no_other_beats() -> None:
    slow, fast, worse, same = (made_up(*x) for x in (("a", 9, 70), ("b", 2, 50), ("c", 5, 50), ("d", 9, 60)))
    unplanned, untrained = made_up("e", None, 90), made_up("f", 1, None)
    results = [slow, fast, worse, same, unplanned, untrained]
    assert pareto(results) == [fast, slow]
    assert [reason for one in results for reason in one.reasons] == ["e, 2^14: deep"]
    (axes,) = draw(results, "made up").axes
    frontier, *points = ([tuple(p) for p in line.get_xydata()] for line in axes.lines)
    assert frontier == [(2, 50), (9, 70)]
    assert sorted(points) == [[(2, 50)], [(5, 50)], [(9, 60)], [(9, 70)]]
    assert {text.get_text() for text in axes.texts} == {"a", "b", "c", "d"}
    assert "seconds per image" in axes.get_xlabel() and "accuracy" in axes.get_ylabel()


def test_a_failed_architecture_is_listed_with_its_error(tmp_path: Path) -> None:
    sweep = ArchitectureSweep()
    trials = [Trial("widths-64", 0), Trial("stacks-3", 0), Trial(BASE, 0)]
    trials[0].write(tmp_path, {"diverged": 7})
    trials[1].write(tmp_path, {"error": "its process died"})
    found = collect(sweep, trials, tmp_path)
    assert [one.problem for one in found] == ["its training diverged at step 7", "its process died", "not trained yet"]
    report = sweep.report(trials, tmp_path)
    report.write(tmp_path)
    assert "- stacks-3, its process died" in report.markdown()


def test_results_of_version_0_3_can_be_read(tmp_path: Path) -> None:
    """It called the cost estimate a bill."""
    trial = Trial("widths-64", 0)
    counts = dict.fromkeys(("rotations", "plaintext_products", "ciphertext_products", "key_bytes", "peak_bytes"), 1)
    plan = {"ring_degree": 2**14, "modulus_bits": 400, "bill": {"seconds": 12.5, **counts}}
    trial.write(tmp_path, {"accuracy": 60.0, "steps": 1, "seconds": 1.0, "limits": {}, "plans": [plan]})
    (found,) = collect(ArchitectureSweep(), [trial], tmp_path)
    assert found.seconds == 12.5
    assert "12.5" in architecture_report("", {}, [found]).text()
