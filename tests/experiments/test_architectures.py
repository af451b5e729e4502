"""Architecture sweeps: names build their networks, results have an accuracy and plans or reasons, and all resumes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.experiments.architectures import (
    ARCHITECTURES,
    Architecture,
    ArchitectureResult,
    ArchitectureSweep,
    collect,
    draw,
    pareto,
)
from polynext.experiments.sweep import run_sweep, run_trials
from polynext.models.polynext import CIPHER, falling
from polynext.models.variants import ArchitectureChanges, create_variant
from polynext.recipes import recipe
from polynext.runs import load_run
from polynext.training import build_model
from polynext.training.folder import RunFolder

SMALL = Architecture(patch=8, widths=(4,), stacks=(1,))
SMALL_TWO = Architecture(patch=4, widths=(4, 6), stacks=(1,))


def sweep_of(*architectures: Architecture, **settings) -> ArchitectureSweep:
    usual = {"epochs": 4, "memory": 8192, "key_memory": 1536, "error": 1e-2}
    return ArchitectureSweep(architectures=architectures, **usual | settings)


def network(**changes) -> object:
    one = Architecture(**changes)
    return build_model(sweep_of(one).config(one.name), 10, device="meta").config


def test_the_fields_define_the_network_and_its_name() -> None:
    (stage,) = CIPHER.stages
    assert network(widths=(64,), stacks=(5,), coarse_kernel=5, patch=2) == replace(
        CIPHER,
        stages=(replace(stage, width=64, stacks=5, coarse_kernel=5),),
        scale_logits=falling(10),
        stem_kernel=2,
        stem_stride=2,
    )
    two = network(widths=(32, 128), stacks=(1, 3))
    assert [(s.width, s.stacks) for s in two.stages] == [(32, 1), (128, 3)]
    assert two.scale_logits == falling(6)
    assert network() == CIPHER
    assert network(variant="position-beta").norm_beta
    names = [
        Architecture(**changes).name for changes in ({}, {"widths": (32, 128), "patch": 2}, {"variant": "no-flip"})
    ]
    assert names == ["cipher", "widths=32-128,patch=2", "variant=no-flip"]


def test_a_network_of_more_stages_can_be_given_fewer() -> None:
    changes = ArchitectureChanges(widths=(16, 32), stacks=(2,))
    config = create_variant("cpolynext_tiny", architecture=changes, device="meta").config
    assert [(s.width, s.stacks) for s in config.stages] == [(16, 2), (32, 2)]
    assert len(config.scale_logits) == 3  # two stacks share the scale between them


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stacks": (1, 3)}, "`model.stacks` is for 2 stages and the network has 1"),
        ({"coarse_kernel": 4}, "give an odd number"),
        ({"widths": (128,)}, "has no effect"),
        ({"variant": "widths-64"}, "there is no variant 'widths-64'"),
        ({"patch": 64}, "give at least 64x64"),
    ],
)
def test_an_architecture_that_does_not_exist_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(PolyNeXtError, match=message):
        sweep_of(Architecture(**changes)).trials()


def test_the_default_architectures_vary_everything_that_the_cost_depends_on() -> None:
    sweep = sweep_of(*ARCHITECTURES)
    configs = {one.name: build_model(sweep.config(one.name), 10, device="meta").config for one in ARCHITECTURES}
    assert len(ARCHITECTURES) >= 12 and len(set(configs.values())) == len(ARCHITECTURES)
    assert configs["cipher"] == CIPHER
    assert {len(config.stages) for config in configs.values()} == {1, 2}
    assert {config.stem_stride for config in configs.values()} == {2, 4}
    assert {sum(s.stacks for s in config.stages) for config in configs.values()} == {3, 4, 5, 6}
    assert {s.width for config in configs.values() for s in config.stages} >= {32, 64, 128}
    assert sweep.config("cipher").model == recipe("cipher").model


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
    settings = {"epochs": 1, "error": 1.0, "root": str(photographs)}
    sweep = sweep_of(SMALL, **settings)
    sweep.open(out)
    assert sweep_of(SMALL_TWO, **settings).with_those_in(out).architectures == (SMALL, SMALL_TWO)
    both = sweep_of(SMALL, SMALL_TWO, **settings)
    run_trials(both, both.trials(), out, threads=1)
    command = ["encrypted", "design", "--root", str(photographs), "--images", "0", "--epochs", "1", "--error", "1"]
    command += ["--out", str(out), "--patch", "4", "--widths", "4", "6", "--stacks", "1"]
    assert main([*command, "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["architectures"]
    assert (one["name"], one["stages"], two["stages"]) == (SMALL.name, "4 at 4x4", "4 at 8x8, 6 at 4x4")
    for result in (one, two):
        assert result["accuracy"] is not None and not result["problem"]
        assert [plan["ring_degree"] for plan in result["plans"]] == [2**14, 2**15]
        assert result["seconds"] == min(plan["cost"]["seconds"] for plan in result["plans"])
    assert (out / "report.png").is_file() and f"| {SMALL.name} | 4 at 4x4 | 1 |" in (out / "report.md").read_text()

    # The run folder defines the whole network; the sweep keeps its number of images.
    run = load_run(out / SMALL.name / "seed-0")
    assert run.config.model.architecture == ArchitectureChanges(patch=8, widths=(4,), stacks=(1,))
    assert [stage.width for stage in run.model.config.stages] == [4]
    assert main([*command, "--images", "128"]) == 2
    assert "has runs with images 0, not 128" in capsys.readouterr().err


def test_other_limits_repeat_the_plans_but_no_training(photographs: Path, tmp_path: Path) -> None:
    sweep = sweep_of(SMALL, epochs=1, error=1.0, root=str(photographs))
    (trial,) = trials = sweep.trials()
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
    assert f"- {SMALL.name}: 2^15: this network does not fit" in stricter.report(trials, tmp_path).markdown()


def made_up(name: str, seconds: float | None, accuracy: float | None) -> ArchitectureResult:
    plan = (
        {"ring_degree": 2**14, "cost": {"seconds": seconds}} if seconds else {"ring_degree": 2**14, "why_not": "deep"}
    )
    return ArchitectureResult(name, "", 1, 1, 1, accuracy, [plan], "")


def test_the_frontier_has_the_architectures_that_no_other_beats() -> None:
    slow, fast, worse, same = (made_up(*x) for x in (("a", 9, 70), ("b", 2, 50), ("c", 5, 50), ("d", 9, 60)))
    unplanned, untrained = made_up("e", None, 90), made_up("f", 1, None)
    results = [slow, fast, worse, same, unplanned, untrained]
    assert pareto(results) == [fast, slow]
    assert [reason for one in results for reason in one.reasons] == ["e: 2^14: deep"]
    (axes,) = draw(results, "made up").axes
    frontier, *points = ([tuple(p) for p in line.get_xydata()] for line in axes.lines)
    assert frontier == [(2, 50), (9, 70)]
    assert sorted(points) == [[(2, 50)], [(5, 50)], [(9, 60)], [(9, 70)]]
    assert {text.get_text() for text in axes.texts} == {"a", "b", "c", "d"}
    assert "seconds per image" in axes.get_xlabel() and "accuracy" in axes.get_ylabel()


def test_a_failed_architecture_is_listed_with_its_error(tmp_path: Path) -> None:
    sweep = sweep_of(Architecture(widths=(64,)), Architecture(stacks=(3,)), Architecture())
    trials = sweep.trials()
    trials[0].write(tmp_path, {"diverged": 7})
    trials[1].write(tmp_path, {"error": "its process died"})
    found = collect(sweep, trials, tmp_path)
    assert [one.problem for one in found] == ["its training diverged at step 7", "its process died", "not trained yet"]
    report = sweep.report(trials, tmp_path)
    report.write(tmp_path)
    assert "- stacks=3: its process died" in report.markdown()


def test_a_sweep_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    settings = {"images": 0, "root": "", "epochs": 4, "memory": 8192, "key_memory": 1536, "error": 0.01}
    (tmp_path / "sweep.json").write_text(json.dumps(settings))
    with pytest.raises(PolyNeXtError, match="has a sweep of another kind or version: give another `out`"):
        sweep_of(SMALL).with_those_in(tmp_path)
