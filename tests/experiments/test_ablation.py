"""The paper's ablations: each row is the network it says, and a sweep of them survives what may happen."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from polynext import paper
from polynext.circuit.degree import is_polynomial
from polynext.cli import main
from polynext.cli.ablate import rows_of
from polynext.errors import PolyNeXtError
from polynext.experiments import sweep as sweep_module
from polynext.experiments.ablation.baselines import FAMILIES, baselines, costs
from polynext.experiments.ablation.report import Outcome, collect, draw, remark, table_rows, to_json
from polynext.experiments.ablation.rows import ROWS, TABLES, obstacle
from polynext.experiments.ablation.sweep import AblationSweep, all_trials
from polynext.experiments.sweep import Trial, run_sweep, train_trials
from polynext.models import create_model
from polynext.models.network import Cell
from polynext.models.polynext import CONFIGS, halving
from polynext.models.substitutes import FineConv, GeluMLP, SeparableConv, StandardAttention
from polynext.models.variants import ArchitectureChanges, create_variant, widened
from polynext.nn import (
    LayerScale,
    LearnableScale,
    PolyAttention,
    PolyConv,
    PolyMLP,
    PositionNorm2d,
    SigmoidScale,
    SyncPositionNorm2d,
    SyncRowSumNorm,
)
from polynext.runs import load_run
from polynext.training import build_model

DIGITS = baselines("digits")
# The digits' baselines start with falling scales themselves.
OURS = [name for name, row in ROWS.items() if row.table != "recipes" and name != "scales-falling"]


def network(name: str, scale: str = "digits") -> nn.Module:
    return build_model(ROWS[name].change(baselines(scale)[ROWS[name].family]), 10)


def parts(model: nn.Module, kind: type) -> int:
    return sum(type(module) is kind for module in model.modules())


@pytest.mark.parametrize("name", OURS)
def test_every_row_is_a_network_that_learns(name: str) -> None:
    model = network(name)
    images = torch.randn(4, 1, 8, 8)
    loss = nn.functional.cross_entropy(model(images), torch.arange(4))
    loss.backward()
    assert loss.isfinite()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_every_row_of_the_paper_has_a_name() -> None:
    printed = [row["row"] for table in ("3", "4", "5", "dropin") for row in paper.rows(table)]
    listed = [row.name for table in ("modules", "stabilisation", "recipes", "dropin") for row in TABLES[table]]
    assert sorted(printed) == sorted(set(listed) - {"caformer-poly"})
    assert {row.family for row in ROWS.values()} <= set(FAMILIES)


def test_rows_change_what_they_say() -> None:
    assert parts(network("mlp-gelu"), GeluMLP) == 6
    assert parts(network("mlp-gelu"), PolyMLP) == 0
    assert parts(network("sepconv-gelu"), SeparableConv) == 6
    assert parts(network("fine-only"), FineConv) == 6
    assert parts(network("standard-attention"), StandardAttention) == 4
    assert parts(network("learnable-scale"), LearnableScale) == 2
    assert parts(network("layerscale-one"), LayerScale) == 2
    assert parts(network("layerscale-one"), SigmoidScale) == 0
    assert {m.p for m in network("degree-5").modules() if isinstance(m, PolyAttention)} == {5}
    assert {m.normalisation for m in network("softmax-kernel").modules() if isinstance(m, PolyAttention)} == {"softmax"}
    dilations = {m.k_coarse.dilation for m in network("no-dilation").modules() if isinstance(m, PolyConv)}
    assert dilations == {(1, 1)}
    cell = next(m for m in network("no-cell-norm").modules() if isinstance(m, Cell))
    assert isinstance(cell.norm, nn.Identity)


def test_polynomial_rows_are_polynomial() -> None:
    """The fully polynomial row has nothing else in it; with GELU in a branch a network is none."""
    assert is_polynomial(network("position-norm").eval(), torch.zeros(1, 1, 8, 8))
    assert not is_polynomial(network("gelu-one-branch").eval(), torch.zeros(1, 1, 8, 8))


def test_fusions_are_their_formulas() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 16, 8, 8)
    for name, formula in {
        "gelu-one-branch": lambda a, b: nn.functional.gelu(a) * b,
        "gelu-after-product": lambda a, b: nn.functional.gelu(a * b),
        "gelu-both-branches": lambda a, b: nn.functional.gelu(a) * nn.functional.gelu(b),
        "addition": lambda a, b: a + b,
    }.items():
        stack = network(name).stages[0].cells[0].stacks[0]
        a, b = stack.mlp.w_ab(x).chunk(2, dim=1)
        torch.testing.assert_close(stack.mlp(x), stack.mlp.w_o(stack.mlp.norm(formula(a, b))))
        h = stack.mixer.w_in(x)
        fused = formula(stack.mixer.k_coarse(h), stack.mixer.k_fine(h).flip(1))
        torch.testing.assert_close(stack.mixer(x), stack.mixer.norm(stack.mixer.w_out(stack.mixer.k(fused))))


def test_rivals_of_sigmoid_scale_start_where_they_should() -> None:
    x, branch = torch.randn(2, 16, 4, 4), torch.randn(2, 16, 4, 4)
    baseline = build_model(DIGITS["cpolynext"], 10)
    sigmoid = next(m for m in baseline.modules() if isinstance(m, SigmoidScale))
    free = next(m for m in network("learnable-scale").modules() if isinstance(m, LearnableScale))
    for index in range(6):
        torch.testing.assert_close(free(x, branch, index), sigmoid(x, branch, index))
    small = next(m for m in network("layerscale-small").modules() if isinstance(m, LayerScale))
    torch.testing.assert_close(small(x, branch, 3), x + 1e-6 * branch)
    torch.testing.assert_close(torch.tensor(halving(4)).sigmoid(), torch.tensor([1 / 2, 1 / 2, 1 / 4, 1 / 8]))


@pytest.mark.parametrize("scale", ["digits", "cifar10"])
@pytest.mark.parametrize("stacks", [1, 2])
def test_wider_networks_keep_their_parameters(scale: str, stacks: int) -> None:
    baseline, architecture = baselines(scale)["cpolynext"], CONFIGS[f"cpolynext_ablate_{scale}"]
    wider = widened(architecture, baseline.data.preprocessing.channels, 10, stacks)
    assert {stage.stacks for stage in wider.stages} == {stacks}
    assert wider.stages[0].width > architecture.stages[0].width
    assert abs(costs(ROWS[f"wider-{stacks}"].change(baseline))[0] / costs(baseline)[0] - 1) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("stacks", [1, 2])
def test_wider_tiny_networks_keep_their_parameters(stacks: int) -> None:
    baseline = baselines("imagenet")["cpolynext"]
    assert abs(costs(ROWS[f"wider-{stacks}"].change(baseline))[0] / costs(baseline)[0] - 1) < 0.01


def test_replacements_cost_about_the_same() -> None:
    for name in ("mlp-gelu", "sepconv-gelu"):
        baseline = baselines("imagenet")["cpolynext"]
        changed = costs(ROWS[name].change(baseline))[0]
        assert abs(changed / costs(baseline)[0] - 1) < 0.02, name
    baseline = baselines("imagenet")["apolynext"]
    changed = costs(ROWS["standard-attention"].change(baseline))[1]
    assert abs(changed / costs(baseline)[1] - 1) < 0.01


def test_recipes_change_what_they_say() -> None:
    families = baselines("imagenet")
    convformer = families["convformer"]
    optimizer = ROWS["convformer-our-optimizer"].change(families["convformer"])
    assert optimizer.optimizer == families["cpolynext-s"].optimizer
    assert (optimizer.augment, optimizer.ema, optimizer.model) == (convformer.augment, convformer.ema, convformer.model)
    regularised = ROWS["convformer-our-regularisation"].change(families["convformer"])
    assert regularised.optimizer == convformer.optimizer
    assert regularised.ema == families["cpolynext-s"].ema
    assert regularised.model.name == "convformer_s18"
    ours = ROWS["cpolynext-convformer-optimizer"].change(families["cpolynext-s"])
    assert ours.schedule.warmup_epochs == 20
    small = baselines("digits")["convformer"]
    assert (small.data.name, small.model.name, small.schedule.warmup_epochs) == ("digits", "convformer_s18", 4)


QUICK = AblationSweep("digits", steps=1, images=64)


def test_a_sweep_trains_reports_and_goes_on(tmp_path: Path, capsys) -> None:
    arguments = ["ablate", "addition", "degree-3", "--budget", "1", "--images", "64", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["cpolynext", "addition", "apolynext", "degree-3"]
    assert "-22.3" in lines[3]
    assert (tmp_path / "report.png").stat().st_size > 5000
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rows"][1]["differences"] == [
        pytest.approx(report["rows"][1]["accuracies"]["0"] - report["rows"][0]["accuracies"]["0"])
    ]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")}
    assert len(before) == 4
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")} == before
    assert main([*arguments[:-1], "1", "--budget", "2", "--out", str(tmp_path)]) == 2
    assert "steps 1, not 2: give the same again" in capsys.readouterr().err


def test_an_ablations_folder_tells_its_network(tmp_path: Path, capsys) -> None:
    """It is evaluated, used, exported, resumed and trained again like any other run's, and so is its file alone."""
    train_trials(QUICK, [Trial("degree-3", 0)], tmp_path, threads=1)
    folder = Trial("degree-3", 0).folder(tmp_path)
    for source in (folder, folder / "best.safetensors"):
        run = load_run(source)
        assert {m.p for m in run.model.modules() if isinstance(m, PolyAttention)} == {3}
        assert (run.config.model.variant, run.config.data.preprocessing) == ("degree-3", run.preprocessing)
    assert main(["evaluate", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == Trial("degree-3", 0).result(tmp_path)["accuracy"]
    assert main(["export", str(folder), "--format", "torch", "--out", str(tmp_path / "model.pt2")]) == 0
    assert main(["train", "--resume", str(folder)]) == 0
    assert main(["train", str(folder / "config.yaml"), "--print-config"]) == 0
    assert "variant: degree-3" in capsys.readouterr().out


def test_a_variant_that_would_change_nothing_is_refused() -> None:
    for name, variant, sentence in [
        ("cpolynext_tiny", "degree-3", "cpolynext_tiny has no attention, which the variant 'degree-3' changes"),
        ("cpolynext_tiny", "softer", "there is no variant 'softer'"),
        ("resnet18", "addition", "resnet18 has no variant 'addition'"),
        ("resnet18", "polyconv", "ResNet has nothing to replace"),
        ("cpolynext_tiny", "scales-halving", "has no effect: cpolynext_tiny already uses it"),
        ("cpolynext_micro", "scales-falling", "has no effect"),
        ("cpolynext_tiny", "position-beta", "no position norm, which the variant"),
        ("apolynext_tiny", "addition+degree-3", "change the same parts"),
        ("apolynext_tiny", "window-7+heads-2", "give `model.window` 7 and `model.heads` 2 instead"),
    ]:
        with pytest.raises(PolyNeXtError, match=sentence):
            create_variant(name, variant, device="meta")
    windows = ArchitectureChanges(window=7)
    for name, variant, sentence in [
        ("apolynext_tiny", "standard-attention", "has no windows"),
        ("cpolynext_tiny", "", "cpolynext_tiny has no attention, which `model.window` changes"),
        ("convformer_s18", "polyconv", "no other architecture"),
    ]:
        with pytest.raises(PolyNeXtError, match=sentence):
            create_variant(name, variant, architecture=windows, device="meta")


def test_windows_heads_and_norms_are_variants_that_go_together() -> None:
    variant, changes = "position-beta+shared-statistics", ArchitectureChanges(window=2, heads=3)
    model = create_variant("apolynext_nano_bn", variant, 1, 10, changes, img_size=8)
    (attention,) = (m for m in model.modules() if isinstance(m, PolyAttention))
    assert (attention.window, attention.heads, type(attention.row_norm)) == (2, 3, SyncRowSumNorm)
    norms = [m for m in model.modules() if isinstance(m, PositionNorm2d)]
    assert norms and all(isinstance(norm, SyncPositionNorm2d) and norm.beta_c is not None for norm in norms)
    assert not any(isinstance(m, SyncPositionNorm2d) for m in create_model("apolynext_nano_bn").modules())


@pytest.mark.parametrize("scale", ["digits", "cifar10", "imagenet"])
def test_standard_attention_costs_what_ours_does(scale: str) -> None:
    sweep = AblationSweep(scale)
    (_, ours), (_, standard) = (costs(sweep.config(name)) for name in ("apolynext", "standard-attention"))
    assert standard == pytest.approx(ours, rel=0.01)


@pytest.mark.parametrize("scale", ["digits", "cifar10", "imagenet"])
def test_every_row_changes_its_baseline_or_is_refused(scale: str) -> None:
    for name in ("scales-half", "scales-falling", "scales-halving"):
        same = name == ("scales-halving" if scale == "imagenet" else "scales-falling")
        assert ("has no effect" in (obstacle(name, scale) or "")) == same
    for row in ROWS.values():
        baseline = baselines(scale)[row.family]
        assert row.change(baseline) != baseline, row.name


def test_dropout_is_constant_where_the_paper_says_that_it_diverges() -> None:
    for scale in ("digits", "imagenet"):
        model = AblationSweep(scale).config("constant-dropout").model
        assert (model.dropout, model.dropout_rises) == (0.4, False)


def test_a_table_leaves_out_what_changes_nothing_and_says_so(capsys) -> None:
    assert "scales-falling" not in rows_of(("further",), "digits")
    assert "scales-falling: left out, the variant 'scales-falling' has no effect" in capsys.readouterr().err
    with pytest.raises(PolyNeXtError, match="has no effect"):
        rows_of(("scales-falling",), "digits")


def test_failures_and_divergence_stay_their_rows_own(tmp_path: Path, monkeypatch) -> None:
    runs = [Trial("cpolynext", 0), Trial("addition", 0), Trial("fine-only", 0)]
    real = sweep_module.train_trial

    def train_trial(sweep: AblationSweep, trial: Trial, out: Path) -> dict:
        if trial.name == "addition":
            raise RuntimeError("out of memory")
        if trial.name == "fine-only":
            raise sweep_module.DivergedError(7, "not finite")
        return real(sweep, trial, out)

    monkeypatch.setattr(sweep_module, "train_trial", train_trial)
    train_trials(QUICK, runs, tmp_path, threads=1)
    baseline, addition, fine = collect(QUICK, ["addition", "fine-only"], 1, tmp_path)
    assert baseline.accuracies
    assert remark(addition) == "1 failed: RuntimeError: out of memory"
    assert remark(fine) == "diverged at step 7"
    rows = table_rows([baseline, addition, fine])
    assert rows[2][4:6] == ("-", "-")
    draw([baseline, addition, fine], "title", tmp_path / "picture.png")
    assert not runs[1].finished(tmp_path)  # tried again next time
    assert runs[2].finished(tmp_path)


def test_a_network_that_diverges_is_found_out(tmp_path: Path, monkeypatch) -> None:
    baseline = DIGITS["cpolynext"]
    wild = replace(baseline, optimizer=replace(baseline.optimizer, lr=float("inf")))
    monkeypatch.setattr(AblationSweep, "baseline", lambda self, family: wild)
    train_trials(AblationSweep("digits"), [Trial("cpolynext", 0)], tmp_path, threads=1)
    result = Trial("cpolynext", 0).result(tmp_path)
    assert result.keys() == {"diverged"}
    assert 1 <= result["diverged"] <= 3


def test_a_dead_process_is_replaced(tmp_path: Path, monkeypatch) -> None:
    """Like one that the system killed for its memory: that run failed, the others are trained."""
    monkeypatch.setattr(sweep_module, "train_trials", die_of_the_first)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    runs = all_trials(["addition"], seeds=1)
    run_sweep(QUICK, runs, tmp_path)
    assert "its process died with status 3" in runs[0].result(tmp_path)["error"]
    assert runs[1].result(tmp_path) == {"accuracy": 50.0, "seconds": 1.0, "threads_wait": "PASSIVE"}


def test_failed_runs_show_in_the_exit_status(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sweep_module, "train_trials", die_of_the_first)
    with pytest.raises(SystemExit) as stop:
        main(["ablate", "addition", "--seeds", "1", "--budget", "1", "--out", str(tmp_path)])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "1 run(s) failed, the same command tries them again; the first: its process died with status 3" in error


def die_of_the_first(sweep: AblationSweep, trials: list[Trial], out: Path, threads: int) -> None:
    for trial in trials:
        if trial.name == "cpolynext":
            os._exit(3)
        found = {"accuracy": 50.0, "seconds": 1.0, "threads_wait": os.environ.get("OMP_WAIT_POLICY")}
        sweep_module.write_result(trial, out, found)


def test_an_interrupted_sweep_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polynext", "ablate", "addition", "--seeds", "1", "--budget", "2000"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    state = tmp_path / "cpolynext" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with the same command" in error
    assert list((tmp_path / "cpolynext" / "seed-0" / "states").glob("*.pt"))
    assert not list(tmp_path.rglob("result.json"))


def test_a_shorter_run_warms_up_in_proportion() -> None:
    """So that a row with another's optimiser warms up as the other does."""
    sweep = AblationSweep("digits", steps=660)
    theirs, ours = sweep.config("convformer"), sweep.config("cpolynext-convformer-optimizer")
    assert theirs.epochs == ours.epochs == 30
    assert theirs.schedule.warmup_epochs == ours.schedule.warmup_epochs == 2


def test_a_rate_goes_with_its_batch_at_the_papers_scale() -> None:
    setups = baselines("imagenet")
    changed = ROWS["convformer-our-recipe"].change(setups["convformer"])
    assert changed.batch_size == setups["cpolynext-s"].batch_size != setups["convformer"].batch_size
    assert ROWS["convformer-our-optimizer"].change(baselines("digits")["convformer"]).batch_size == 64


def test_networks_without_cells_are_not_looked_into() -> None:
    sweep = AblationSweep("digits", diagnostics=True)
    assert sweep.config("addition").diagnostics
    assert not sweep.config("convformer-our-recipe").diagnostics


def test_a_report_needs_no_more_than_its_folder(tmp_path: Path, capsys) -> None:
    assert main(["ablate", "addition", "--report", "--out", str(tmp_path / "none")]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    QUICK.open(tmp_path / "sweep")
    sweep_module.write_result(Trial("addition", 0), tmp_path / "sweep", {"accuracy": 12.5, "seconds": 1.0})
    assert main(["ablate", "addition", "--report", "--out", str(tmp_path / "sweep")]) == 0
    assert "12.50" in capsys.readouterr().out
    moved = replace(QUICK, root="elsewhere")
    moved.open(tmp_path / "sweep")  # data may move


def test_differences_are_between_equal_seeds() -> None:
    baseline = Outcome("cpolynext", "cpolynext", "baseline", 1, 1, {0: 90.0, 1: 80.0})
    changed = Outcome("addition", "cpolynext", "", 1, 1, {1: 70.0, 2: 10.0})
    assert changed.differences(baseline) == [-10.0]
    assert to_json(QUICK, [baseline, changed])["rows"][1]["paper_difference"] == "-22.3"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "there is no ablation 'nothing'"),
        (["modules", "--recipe", "cifar100"], "there are no ablations by the recipe 'cifar100'"),
        (["modules", "--seeds", "0"], "at least one seed"),
        (["modules", "--images", "3"], "there are 3 training images, fewer than one batch of 64: give more"),
        (["modules", "--out", __file__], "test_ablation.py is a file: give another --out"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, capsys, tmp_path: Path) -> None:
    out = [] if "--out" in arguments else ["--out", str(tmp_path)]
    assert main(["ablate", *arguments, *out]) == 2
    assert sentence in capsys.readouterr().err


def test_a_sweep_keeps_out_of_the_folder_of_a_run(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.yaml").write_text("epochs: 3")
    assert main(["ablate", "addition", "--budget", "1", "--out", str(tmp_path)]) == 2
    assert "is a training run: give another --out" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_list_names_every_row(capsys) -> None:
    assert main(["ablate", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ROWS)


def test_unknown_scale_is_an_error() -> None:
    with pytest.raises(PolyNeXtError, match="choose one of digits, cifar10, imagenet"):
        baselines("mnist")
