"""Ablations: each row builds the network that it names, and a sweep trains, reports and resumes."""

import json
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
from polynext.experiments.ablation.baselines import FAMILIES, baselines, costs
from polynext.experiments.ablation.report import Outcome, ablation_report, draw
from polynext.experiments.ablation.rows import ABLATION_TABLES, QUESTIONS, ROWS, obstacle
from polynext.experiments.ablation.sweep import AblationSweep
from polynext.experiments.sweep import Trial, run_trials
from polynext.models import create_model
from polynext.models.network import Cell
from polynext.models.polynext import CONFIGS, halving
from polynext.models.substitutes import FineConv, GeluMLP, SeparableConv, StandardAttention
from polynext.models.variants import ArchitectureChanges, create_variant, widened
from polynext.nn import (
    LayerNorm2d,
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


def test_every_row_of_the_paper_is_listed() -> None:
    printed = [row["row"] for table in paper.ABLATION_TABLES for row in paper.rows(table)]
    ours = ("norms", "further", "discussion", *QUESTIONS)
    listed = [row.name for table, rows in ABLATION_TABLES.items() if table not in ours for row in rows]
    assert sorted(printed) == sorted(set(listed) - {"caformer-poly", "wider-2-macs", "wider-1-macs"})
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
    """A network with GELU in a branch is not polynomial."""
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


def test_alternatives_to_sigmoid_scale_start_at_their_initial_values() -> None:
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


@pytest.mark.parametrize("scale", ["digits", "cifar10", "imagenet"])
@pytest.mark.parametrize("stacks", [1, 2])
def test_wider_networks_keep_their_macs(scale: str, stacks: int) -> None:
    baseline = baselines(scale)["cpolynext"]
    own, wider = costs(baseline), costs(ROWS[f"wider-{stacks}-macs"].change(baseline))
    assert wider[1] == pytest.approx(own[1], rel=0.01)
    if scale != "digits":  # downsamplings and head get a larger share of the parameters
        assert wider[0] > 1.03 * own[0]


@pytest.mark.parametrize("stacks", [1, 2])
def test_wider_tiny_networks_keep_their_parameters(stacks: int) -> None:
    baseline = baselines("imagenet")["cpolynext"]
    assert abs(costs(ROWS[f"wider-{stacks}"].change(baseline))[0] / costs(baseline)[0] - 1) < 0.01


def test_norms_are_replaced_one_kind_at_a_time() -> None:
    """Which norms a row has: LayerNorms, position norms, running row sums, and norms before W_out."""

    def norms(name: str) -> tuple[bool, bool, bool, bool]:
        model = network(name)
        attentions = [m for m in model.modules() if isinstance(m, PolyAttention)]
        assert attentions and len({m.normalisation for m in attentions}) == 1
        return (
            any(isinstance(m, LayerNorm2d) for m in model.modules()),
            any(isinstance(m, PositionNorm2d) for m in model.modules()),
            all(m.row_norm is not None for m in attentions),
            all(isinstance(m.out_norm, PositionNorm2d) for m in attentions),
        )

    assert norms("row-sums-alone") == (True, False, True, False)
    assert norms("position-norms-alone") == (False, True, False, False)
    assert norms("attention-position-norm") == (False, True, True, True)
    assert norms("no-output-norm") == (False, True, True, False)


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
    assert ours.schedule == convformer.schedule
    assert (regularised.epochs, regularised.schedule) == (310, convformer.schedule)
    # A schedule has its length: 300 epochs of cosine, and ten of cooldown in MetaFormer's.
    for theirs in ("convformer", "caformer"):
        changed = [ROWS[f"{theirs}-our-{part}"].change(families[theirs]) for part in ("optimizer", "recipe")]
        assert [(one.epochs, one.schedule.cooldown_epochs) for one in changed] == [(300, 0), (300, 0)]
    assert (ours.epochs, ours.schedule.cooldown_epochs) == (310, 10)
    small = baselines("digits")["convformer"]
    assert (small.data.name, small.model.name, small.schedule.warmup_epochs) == ("digits", "convformer_s18", 4)


QUICK = AblationSweep("digits", steps=1, images=64)


def test_a_sweep_trains_reports_and_resumes(tmp_path: Path, capsys) -> None:
    arguments = ["ablate", "addition", "degree-3", "--budget", "1", "--images", "64", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[4:8]] == ["cpolynext", "addition", "apolynext", "degree-3"]
    assert "-22.3" in lines[5]
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "report.md").is_file()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rows"][1]["differences"] == [
        pytest.approx(report["rows"][1]["accuracies"]["0"] - report["rows"][0]["accuracies"]["0"])
    ]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")}
    assert len(before) == 4
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")} == before
    assert main([*arguments[:-1], "1", "--budget", "2", "--out", str(tmp_path)]) == 2
    assert "has runs with steps 1, not 2: give the same settings" in capsys.readouterr().err


def test_an_ablations_folder_is_an_ordinary_run_folder(tmp_path: Path, capsys) -> None:
    """It can be evaluated, exported, resumed and trained again; its file of weights can be loaded alone."""
    run_trials(QUICK, [Trial("degree-3", 0)], tmp_path, threads=1)
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
    ]:
        with pytest.raises(PolyNeXtError, match=sentence):
            create_variant(name, variant, device="meta")
    windows = ArchitectureChanges(window=7)
    for name, variant, sentence in [
        ("apolynext_tiny", "standard-attention", "'standard-attention' is global"),
        ("cpolynext_tiny", "", "cpolynext_tiny has no attention, which `model.window` changes"),
        ("convformer_s18", "polyconv", "no other architecture"),
    ]:
        with pytest.raises(PolyNeXtError, match=sentence):
            create_variant(name, variant, architecture=windows, device="meta")


def test_windows_heads_and_norms_can_be_combined() -> None:
    variant, changes = "position-beta+shared-statistics", ArchitectureChanges(window=2, heads=3)
    model = create_variant("apolynext_nano_bn", variant, 1, 10, changes, img_size=8)
    (attention,) = (m for m in model.modules() if isinstance(m, PolyAttention))
    assert (attention.window, attention.heads, type(attention.row_norm)) == (2, 3, SyncRowSumNorm)
    norms = [m for m in model.modules() if isinstance(m, PositionNorm2d)]
    assert norms and all(isinstance(norm, SyncPositionNorm2d) and norm.beta_c is not None for norm in norms)
    assert not any(isinstance(m, SyncPositionNorm2d) for m in create_model("apolynext_nano_bn").modules())


def test_attention_in_a_neighbourhood_is_polynomial() -> None:
    changes = ArchitectureChanges(neighbourhood=3, dilation=2)
    model = create_variant("apolynext_nano_bn", "", 1, 10, changes, img_size=8).eval()
    (attention,) = (m for m in model.modules() if isinstance(m, PolyAttention))
    assert (attention.neighbourhood, attention.dilation, attention.window) == (3, 2, None)
    assert is_polynomial(model, torch.zeros(1, 1, 8, 8))
    with pytest.raises(PolyNeXtError, match="window=2 and neighbourhood=3: give one of them"):
        create_variant("apolynext_nano_bn", architecture=ArchitectureChanges(window=2, neighbourhood=3))


@pytest.mark.parametrize("scale", ["digits", "cifar10", "imagenet"])
def test_standard_attention_has_the_cost_of_ours(scale: str) -> None:
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


def test_constant_dropout_has_a_rate_at_every_scale() -> None:
    for scale in ("digits", "imagenet"):
        model = AblationSweep(scale).config("constant-dropout").model
        assert (model.dropout, model.dropout_rises) == (0.4, False)


def test_a_table_leaves_out_rows_without_effect_and_reports_them(capsys) -> None:
    assert "scales-falling" not in rows_of(("further",), "digits")
    assert "scales-falling: left out, the variant 'scales-falling' has no effect" in capsys.readouterr().err
    with pytest.raises(PolyNeXtError, match="has no effect"):
        rows_of(("scales-falling",), "digits")


def test_failed_runs_set_the_exit_status(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("polynext.cli.sweeps.run_sweep", fail_the_first)
    assert main(["ablate", "addition", "--seeds", "1", "--budget", "1", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "1 run(s) failed, the same command repeats them; the first: its process died" in error


def fail_the_first(sweep: AblationSweep, trials: list[Trial], out: Path, *rest: object) -> None:
    sweep.open(out)
    trials[0].write(out, {"error": "its process died"})


def test_the_figure_shows_differences_the_papers_and_failures() -> None:
    baseline = Outcome("cpolynext", "cpolynext", "baseline", 1, 1, {0: 90.0, 1: 80.0})
    changed = Outcome("addition", "cpolynext", "Hadamard -> addition", 1, 1, {0: 88.0, 1: 76.0})
    failed = Outcome("fine-only", "cpolynext", "fine only", 1, 1, diverged={0: 7})
    (axes,) = draw([baseline, changed, failed], "two seeds").axes
    (bar,) = axes.patches
    assert bar.get_width() == pytest.approx(-3.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fine only (C)", "Hadamard -> addition (C)"]
    assert [-22.3] in [list(line.get_xdata()) for line in axes.lines]  # the paper's difference
    assert "diverged at step 7" in [text.get_text() for text in axes.texts]
    assert axes.get_title() == "two seeds" and "difference from the baseline" in axes.get_xlabel()


def test_a_shorter_run_warms_up_in_proportion() -> None:
    """A row with another network's optimiser has the same warmup as that network, and its cooldown in addition."""
    sweep = AblationSweep("digits", steps=660)
    theirs, ours = sweep.config("convformer"), sweep.config("cpolynext-convformer-optimizer")
    assert (theirs.epochs, ours.epochs) == (30, 31)
    assert theirs.schedule.cooldown_epochs == ours.schedule.cooldown_epochs == 1
    assert theirs.schedule.warmup_epochs == ours.schedule.warmup_epochs == 2


def test_a_learning_rate_keeps_its_batch_size_at_the_papers_scale() -> None:
    setups = baselines("imagenet")
    changed = ROWS["convformer-our-recipe"].change(setups["convformer"])
    assert changed.batch_size == setups["cpolynext-s"].batch_size != setups["convformer"].batch_size
    assert ROWS["convformer-our-optimizer"].change(baselines("digits")["convformer"]).batch_size == 64


def test_networks_without_cells_have_no_diagnostics() -> None:
    sweep = AblationSweep("digits", diagnostics=True)
    assert sweep.config("addition").diagnostics
    assert not sweep.config("convformer-our-recipe").diagnostics
    at_full_scale = AblationSweep("imagenet", diagnostics=True)
    assert at_full_scale.baseline("cpolynext").model.memory == "plain"  # so that the branches are recorded


def test_a_report_needs_only_its_folder(tmp_path: Path, capsys) -> None:
    assert main(["ablate", "addition", "--report", "--out", str(tmp_path / "none")]) == 2
    assert "has no sweep" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    QUICK.open(tmp_path / "sweep")
    Trial("addition", 0).write(tmp_path / "sweep", {"accuracy": 12.5, "seconds": 1.0})
    assert main(["ablate", "addition", "--report", "--out", str(tmp_path / "sweep")]) == 0
    assert "12.50" in capsys.readouterr().out
    moved = replace(QUICK, root="elsewhere")
    moved.open(tmp_path / "sweep")  # data may move


def test_differences_are_between_equal_seeds() -> None:
    baseline = Outcome("cpolynext", "cpolynext", "baseline", 1, 1, {0: 90.0, 1: 80.0})
    changed = Outcome("addition", "cpolynext", "", 1, 1, {1: 70.0, 2: 10.0})
    assert changed.differences(baseline) == [-10.0]
    assert ablation_report("", {}, [baseline, changed]).record["rows"][1]["paper_difference"] == "-22.3"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "there is no ablation 'nothing'"),
        (["modules", "--recipe", "cifar100"], "there are no ablations with the recipe 'cifar100'"),
        (["modules", "--seeds", "0"], "--seeds is 0: give at least 1"),
        (["modules", "--images", "3"], "there are 3 training images, fewer than one batch of 64: give more"),
        (["modules", "--out", __file__], "test_ablation.py is a file: give another --out"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, capsys, tmp_path: Path) -> None:
    out = [] if "--out" in arguments else ["--out", str(tmp_path)]
    assert main(["ablate", *arguments, *out]) == 2
    assert sentence in capsys.readouterr().err


def test_a_sweep_refuses_the_folder_of_a_run(tmp_path: Path, capsys) -> None:
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
