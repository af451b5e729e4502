"""Reproduction of the paper's tables: every figure has a source or a reason, and experiments run, fail and resume."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from polynext import paper
from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.experiments.reproduction import PAPER_TABLES, Entry, Experiment, Results, Setup, calls, reproduce
from polynext.experiments.reproduction import experiments as experiments_module
from polynext.experiments.reproduction.ablations import ablation
from polynext.experiments.reproduction.calls import evaluate_classifier, evaluate_segmentation, train_or_resume
from polynext.experiments.reproduction.tables import PaperTable, reasons, table_report
from polynext.experiments.sweep import shortened
from polynext.recipes import recipe
from polynext.segmentation.checkpoints import fetch_segmentation_weights
from polynext.segmentation.task import train_segmentation
from polynext.training import train
from tests.segmentation.test_data import write_pairs
from tests.segmentation.test_task import quick

DATA = ("imagenet", "imagenet-a", "imagenet-c", "imagenet-r", "imagenet-sketch", "cifar10", "svhn", "tiny-imagenet")
ALL_DATA = {name: Path("data") / name for name in (*DATA, "ade20k")}


def entries(name: str, **options) -> list[Entry]:
    return list(PAPER_TABLES[name].entries(Setup(out=Path("out"), **options)))


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_figure_has_a_count_an_experiment_or_a_reason(name: str) -> None:
    for options in ({}, {"data": ALL_DATA}, {"data": ALL_DATA, "train": True}):
        for entry in entries(name, **options):
            sources = [bool(entry.found), entry.experiment is not None, bool(entry.missing), bool(entry.from_row)]
            assert sum(sources) == 1, entry


@pytest.mark.parametrize("name", [name for name in PAPER_TABLES if name not in ("S4", "figure-1")])
def test_no_printed_figure_is_left_out(name: str) -> None:
    parts = ("conv", "attention", "text") if name == "1" else ("rows", "text")
    rows = [row for part in parts for row in paper.rows(name, part)]
    names = ("model", "variant of", "row", "data", "claim")
    printed = sum(value == value for row in rows for key, value in row.items() if key not in names)
    printed += sum(row["table"] == name for row in paper.rows("baselines"))
    assert sum(bool(entry.printed) for entry in entries(name)) == printed


def test_figures_are_as_printed() -> None:
    robust = {(c.row, c.column): c.printed for c in entries("2")}
    assert robust["Swin-S", "imagenet"] == "83.0" and robust["Swin-T", "imagenet-c (mCE)"] == "62.0"
    plain = {(c.row, c.column): c for c in entries("7", data=ALL_DATA)}
    assert plain["DTTN-S no norm", "params"].printed == "12.3"
    assert plain["CPolyNeXt-S BN", "imagenet with LayerNorm"].experiment.name == "cpolynext_small.in1k.imagenet"


@pytest.mark.parametrize("name", ["S1", "S2", "S3", "segmentation"])
def test_networks_and_recipes_are_as_printed(name: str) -> None:
    assert [c for c in entries(name) if c.found != c.printed and c.column != "params"] == []


def test_claims_follow_from_the_tables() -> None:
    """Except the memory saved compared with MetaFormers: Table S4 has 14 to 30%, the text 30 to 45%."""
    found = {c.row: c.found for c in entries("claims")}
    equal = {c.row for c in entries("claims") if c.printed == c.found}
    assert len(equal) == 9
    assert found["memory, compared with MetaFormers of the same size"] == "14 to 30% less"
    assert found["memory, compared with prior polynomial networks"] == "38 to 59%"
    assert found["layers of the deepest network"] == "197"
    assert found["CPolyNeXt-LR and DTTN: Tiny ImageNet"] == "+10.2"


def test_differences_follow_from_their_row() -> None:
    rows = {c.row: c for c in entries("7") if c.column == "difference"}
    derive = rows["APolyNeXt-T BN"].from_row
    assert derive({"imagenet with LayerNorm": "80.9", "imagenet": "78.0"}) == rows["APolyNeXt-T BN"].printed == "-2.9"
    assert derive({"imagenet with LayerNorm": "80.9", "imagenet": ""}) == ""


def test_published_weights_are_fetched_by_the_tag_of_the_figure() -> None:
    weights = {c.row: c.experiment.arguments for c in entries("1", data=ALL_DATA) if c.experiment}
    assert weights["ConvNeXt-T"]["network"] == "convnext_tiny.fb_in1k" and weights["ConvNeXt-T"]["pretrained"]
    low = {(c.row, c.column): c.experiment for c in entries("S5", data=ALL_DATA)}
    assert low["CPolyNeXt-LR", "svhn"].arguments["network"] == "cpolynext_lowres.svhn"
    assert low["MONet-T", "svhn"] is None
    segmented = {c.row: c.experiment for c in entries("6", data=ALL_DATA) if c.column == "mIoU"}
    assert segmented["APolyNeXt-S"].arguments["network"] == "ade20k_apolynext"
    assert segmented["APolyNeXt-S"].arguments["pretrained"] and segmented["APolyNeXt-S"].fetches
    assert segmented["ConvFormer-S36"] is None


def test_own_weights_and_own_runs_come_before_published_ones(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{model: {name: monet_tiny}, data: {name: folder}}")
    given = {"monet_tiny": tmp_path / "run", "cpolynext_tiny": tmp_path / "file.pt"}
    arguments = {
        c.row: c.experiment.arguments for c in entries("1", data=ALL_DATA, weights=given, train=True) if c.experiment
    }
    low = entries("S5", data=ALL_DATA, weights={"monet_tiny:svhn": tmp_path / "run"})
    assert [c.column for c in low if c.row == "MONet-T" and c.experiment] == ["svhn"]
    assert arguments["MONet-T"]["network"] == str(tmp_path / "run") and "checkpoint" not in arguments["MONet-T"]
    own = arguments["CPolyNeXt-T"]
    assert (own["network"], own["checkpoint"]) == ("cpolynext_tiny", str(tmp_path / "file.pt"))
    trained = arguments["CPolyNeXt-S"]
    assert trained["recipe_name"] == "cpolynext_small" and trained["network"] == "out/runs/cpolynext_small"
    assert trained["training_root"] == str(ALL_DATA["imagenet"])


def test_a_run_of_another_network_is_not_taken(tmp_path: Path) -> None:
    """Its figure would not be comparable with the paper's."""
    (tmp_path / "config.yaml").write_text("model: {name: cpolynext_micro}")
    given = {"cpolynext_lowres": tmp_path}
    reasons = [c.missing for c in entries("S5", data=ALL_DATA, weights=given) if c.row == "CPolyNeXt-LR"]
    assert len(reasons) == 3
    assert all("is a run of cpolynext_micro, not of cpolynext_lowres" in reason for reason in reasons)


def test_a_run_on_other_data_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{model: {name: monet_tiny}, data: {name: cifar10}}")
    found = {c.column: c for c in entries("S5", data=ALL_DATA, weights={"monet_tiny": tmp_path}) if c.row == "MONet-T"}
    assert found["cifar10"].experiment is not None
    assert found["svhn"].missing == f"{tmp_path} is trained on cifar10, not on svhn"


def test_a_segmentation_takes_a_segmentation_of_its_backbone(tmp_path: Path) -> None:
    classifier, other, own = (tmp_path / name for name in ("classifier", "other", "own"))
    for folder, config in (
        (classifier, {"name": "cpolynext_small"}),
        (other, {"backbone": "cpolynext_tiny"}),
        (own, {}),
    ):
        folder.mkdir()
        (folder / "config.yaml").write_text(json.dumps({"model": config}))

    def cell(weights: dict[str, Path]) -> Entry:
        return next(
            c for c in entries("6", data=ALL_DATA, weights=weights) if (c.row, c.column) == ("CPolyNeXt-S", "mIoU")
        )

    assert "model.name is not a field" in cell({"cpolynext_small": classifier}).missing
    assert cell({"cpolynext_small": other}).missing == f"{other} is a run of cpolynext_tiny, not of cpolynext_small"
    taken = cell({"cpolynext_small": classifier, "cpolynext_small:ade20k": own}).experiment
    assert taken.arguments["network"] == str(own)


def test_a_training_on_other_data_is_not_resumed(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "cpolynext_lowres_cifar10"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("data: {name: cifar10, root: part.npz}")

    def low_resolution(path: str) -> Entry:
        setup = Setup(out=tmp_path, data={"cifar10": Path(path)}, train=True)
        return next(c for c in PAPER_TABLES["S5"].entries(setup) if (c.row, c.column) == ("CPolyNeXt-LR", "cifar10"))

    assert low_resolution("whole.npz").missing == (
        f"{run} is a training on part.npz, not on whole.npz: give that path again, or another --out"
    )
    assert low_resolution("./part.npz").experiment is not None


def test_a_training_resumes_with_its_own_config(tmp_path: Path) -> None:
    base = recipe("digits")
    config = shortened(replace(base, data=replace(base.data, limit=64), evaluate_every=1), epochs=1)
    train_or_resume(train, config, tmp_path)
    weights = (tmp_path / "last.safetensors").read_bytes()
    train_or_resume(train, replace(config, epochs=9), tmp_path)
    assert (tmp_path / "last.safetensors").read_bytes() == weights


def test_a_segmentation_run_is_evaluated(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    train_segmentation(quick(tmp_path / "data"), tmp_path / "run", quiet=True)
    record = evaluate_segmentation(network=str(tmp_path / "run"), root=str(tmp_path / "data"))
    assert 0 <= record["miou"] <= 100 and record["images"] > 0


def small(number: str) -> dict:
    if number == "2":
        raise PolyNeXtError("there is no such model.")
    if number == "3":
        os._exit(3)
    if number == "4":
        raise experiments_module.BrokenProcessPool("unexpected")
    print(f"measuring {number}, offline {os.environ.get('HF_HUB_OFFLINE', '0')}")
    return {"size": 12345, "offline": os.environ.get("HF_HUB_OFFLINE", "0")}


def one_entry(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
    monkeypatch.setitem(PAPER_TABLES, "7", PaperTable("Toys", lambda setup: iter(entries)))


def test_experiments_run_once_and_fail_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    good, bad, dead, wrong = (Experiment(name, small, {"number": name}) for name in "1234")
    one_entry(
        monkeypatch,
        Entry(row="nano", column="parameters", printed="7", experiment=good, read=lambda r: str(r["size"])),
        Entry(row="none", column="parameters", printed="8", experiment=bad),
        Entry(row="dead", column="parameters", printed="8", experiment=dead),
        Entry(row="wrong", column="parameters", printed="8", experiment=wrong),
        Entry(row="far", column="parameters", printed="9", missing="no data"),
    )
    steps: list[str] = []
    record = reproduce("7", Setup(out=tmp_path), steps.append).record
    here = {cell["row"]: cell["here"] for cell in record["cells"]}
    assert here["nano"] == "12345" and here["none"] == here["far"] == ""
    written = (tmp_path / "7.md").read_text()
    assert "| nano | 7 | 12345 |" in written and "Not run:\n\n- parameters of far: no data." in written
    assert "Failed, with logs in results:\n\n- parameters of none: there is no such model." in written
    assert "parameters of dead: its process died" in written
    assert "parameters of wrong: BrokenProcessPool: unexpected." in written
    assert json.loads((tmp_path / "7.json").read_text()) == record
    assert (tmp_path / "results" / "1.log").read_text() == "measuring 1, offline 0\n"
    assert (tmp_path / "results" / "2.log").read_text() == "there is no such model.\n"
    assert "Traceback" in (tmp_path / "results" / "4.log").read_text()
    first = ["[1/4]", "[2/4]", "failed:", "[3/4]", "failed:", "[4/4]", "failed:"]
    assert [line.split()[0] for line in steps] == first
    assert steps[0] == f"[1/4] small(number='1') > {tmp_path / 'results' / '1.log'}"

    ran: list[str] = []
    monkeypatch.setattr(Results, "run", lambda self, experiment: ran.append(experiment.name) or "failed again")
    results = Results(tmp_path)
    reproduce("7", Setup(out=tmp_path), results=results)
    reproduce("7", Setup(out=tmp_path), results=results)
    assert ran == ["2", "3", "4"]  # failed experiments are repeated, but not for two tables of one command
    assert main(["reproduce", "7", "--out", str(tmp_path)]) == 1
    assert "failed again" in capsys.readouterr().out


def test_a_small_reproduction_from_start_to_end(tmp_path: Path, monkeypatch, capsys) -> None:
    """Trains and evaluates on digits in real processes."""
    network = {"network": "cpolynext_nano_bn.digits", "pretrained": True, "data": "digits", "root": ""}
    options = {"batch_size": 64, "workers": 0, "partial": str(tmp_path / "partial.json")}
    evaluation = Experiment("evaluation", evaluate_classifier, network | options)
    shipped = Entry(
        row="nano", column="digits", printed="", experiment=evaluation, read=lambda record: f"{record['top1']:.1f}"
    )

    def entries(setup: Setup):
        yield shipped
        yield from (entry for entry in ablation("3", "modules")(setup) if entry.row == "addition")

    monkeypatch.setitem(PAPER_TABLES, "3", PaperTable("Small", entries, scaled=True))
    command = ["reproduce", "3", "--scale", "digits", "--budget", "1", "--images", "64", "--out", str(tmp_path)]
    assert main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    (record,) = json.loads(shown.out)
    found = {(c["row"], c["column"]): c["here"] for c in record["cells"]}
    assert float(found["nano", "digits"]) > 95
    result = json.loads((tmp_path / "results" / "ablate-digits.addition.json").read_text())
    baseline, addition = (row["accuracies"]["0"] for row in result["rows"])
    assert found["addition", "accuracy"] == f"{addition:.2f}"
    assert found["addition", "difference"] == f"{addition - baseline:+.2f}"
    assert (tmp_path / "runs" / "ablate-digits" / "addition" / "seed-0" / "best.safetensors").is_file()
    assert "[1/2] evaluate_classifier(" in shown.err
    assert main(command) == 0
    assert "[1/" not in capsys.readouterr().err


def test_speeds_resume_and_memory_may_be_unmeasured(tmp_path: Path, monkeypatch) -> None:
    speeds = {paper.timm_name(row["model"]): row["throughput"] for row in paper.rows("S4")}
    found = [{"model": name, "images_per_second": s, "memory_bytes": None} for name, s in speeds.items()]
    ran: list[Experiment] = []
    monkeypatch.setattr(Results, "run", lambda self, experiment: ran.append(experiment))
    monkeypatch.setattr(Results, "read", lambda self, experiment: {"measurements": found} if ran else None)
    record = reproduce("S4", Setup(out=tmp_path)).record
    assert ran[0].arguments == {"parts": str(tmp_path / "results" / "speed.parts.json")}
    shown = {(c["row"], c["column"]): c for c in record["cells"]}
    assert shown["CPolyNeXt-S", "ratio to ConvFormer-S18"]["here"] == "0.44"
    assert "- memory (MB) of all rows: the memory of compiled networks" in (tmp_path / "S4.md").read_text()


def test_a_reason_for_all_rows_is_listed_once() -> None:
    about = {"paper": "1", "here": "", "failed": ""}
    rows = [about | {"row": row, "column": "a", "missing": "no data."} for row in ("x", "y")]
    rows += [about | {"row": "x", "column": "b", "missing": "no weights"}, about | {"row": "y", "column": "b"}]
    assert reasons([{"missing": ""} | row for row in rows], "missing") == [
        "a of all rows: no data.",
        "b of x: no weights.",
    ]
    assert reasons([{"missing": ""} | row for row in rows[:2]], "missing") == ["Everything: no data."]


def test_without_the_hub_no_experiment_waits_for_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(experiments_module, "hub_answers", lambda: False)
    for name, fetches, offline in (("5", False, "0"), ("6", True, "1")):
        experiment = Experiment(name, small, {"number": name}, fetches=fetches)
        one_entry(
            monkeypatch, Entry(row="a", column="b", printed="1", experiment=experiment, read=lambda r: r["offline"])
        )
        steps: list[str] = []
        record = reproduce("7", Setup(out=tmp_path), steps.append).record
        assert record["cells"][0]["here"] == offline
        assert any("hub cannot be reached" in line for line in steps) == fetches
        assert "HF_HUB_OFFLINE" not in os.environ


def test_an_interrupted_reproduction_saves_and_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polynext", "reproduce", "3", "--scale", "digits", "--budget", "2000"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    run = tmp_path / "runs" / "ablate-digits" / "cpolynext" / "seed-0"
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes" in error
    assert list((run / "states").glob("*.pt"))
    assert not list(tmp_path.rglob("result.json"))


def test_a_result_of_another_call_is_not_used(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.folder.mkdir()
    (results.folder / "x.json").write_text(json.dumps({"size": 1, "call": "small(number='a')"}))
    assert results.read(Experiment("x", small, {"number": "a"}))["size"] == 1
    assert results.read(Experiment("x", small, {"number": "b"})) is None


@pytest.mark.parametrize("name", PAPER_TABLES)
@pytest.mark.parametrize("trained", [False, True])
def test_every_experiment_calls_a_function_with_its_parameters(name: str, trained: bool) -> None:
    given = {"monet_tiny": Path("file.pt"), "convformer_s36": Path("file.pt")}
    for entry in entries(name, data=ALL_DATA, weights=given, train=trained):
        if entry.experiment is not None:
            function = getattr(calls, entry.experiment.function.__name__)
            assert function is entry.experiment.function
            inspect.signature(function).bind(**entry.experiment.arguments)
            assert json.loads(json.dumps(entry.experiment.arguments)) == entry.experiment.arguments


def test_ablations_run_at_the_given_scale() -> None:
    rows = {(c.row, c.column): c for c in entries("3", scale="digits", budget=20)}
    changed, baseline = rows["addition", "difference"], rows["cpolynext unchanged", "accuracy"]
    assert changed.experiment is not None and changed.experiment.arguments["scale"] == "digits"
    assert (changed.printed, baseline.printed) == ("-22.3", "80.2")
    names = {c.row for c in rows.values()} - {"cpolynext unchanged", "apolynext unchanged"}
    assert len({c.experiment.name for c in rows.values()}) == len(names)  # rows fail alone
    assert [name for name, one in PAPER_TABLES.items() if one.scaled] == ["3", "4", "5", "dropin", "dropout"]


def test_results_of_ablations_are_means_over_seeds() -> None:
    def found(column: str, **outcome) -> str:
        whole = {"name": "addition", "diverged_at_step": {}, "accuracies": {}, "differences": []} | outcome
        entry = next(c for c in entries("3", scale="digits") if (c.row, c.column) == ("addition", column))
        return entry.read({"rows": [whole]})

    assert found("difference", differences=[-1.0, -2.0]) == "-1.50 ± 0.71"
    assert found("accuracy", accuracies={"0": 80.0}) == "80.00"
    assert found("difference", diverged_at_step={"0": 7}) == "diverged at step 7"
    assert found("difference", accuracies={"0": 80.0}) == "its baseline diverged"


def test_a_table_at_another_scale_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Results, "run", lambda self, experiment: "not now")
    reproduce("4", Setup(out=tmp_path, scale="digits"))
    assert "Here on digits: another experiment than the paper's on ImageNet." in (tmp_path / "4.md").read_text()


def test_the_figure_has_our_accuracies() -> None:
    about = {"row": "CPolyNeXt-T", "column": "imagenet", "paper": "80.2", "here": "80.1", "missing": "", "failed": ""}
    size, _ = table_report("figure-1", "Figure 1", [], [about]).draw().axes
    (ours,) = (line for line in size.lines if line.get_label() == "measured here")
    assert ours.get_xydata().tolist() == [[6.4, 80.1]]
    assert table_report("1", "Table 1", [], [about]).draw is None


def test_segmentation_weights_have_names(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("polynext.segmentation.checkpoints.hf_hub_download", lambda *a: asked.append(a) or "file.pth")
    assert fetch_segmentation_weights("ade20k_apolynext") == Path("file.pth")
    assert asked == [("JJWCactus/PolyNeXt", "uper_apolynexts.pth")]
    with pytest.raises(PolyNeXtError, match="no published weights of 'camvid'"):
        fetch_segmentation_weights("camvid")

    def offline(*arguments: str) -> str:
        raise ConnectionError

    monkeypatch.setattr("polynext.segmentation.checkpoints.hf_hub_download", offline)
    with pytest.raises(PolyNeXtError, match="cannot be downloaded"):
        fetch_segmentation_weights("ade20k")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9"], "there is no table '9' here"),
        (["1", "--data", "imagenet"], "--data 'imagenet' has no path: give it as NAME=PATH"),
        (["1", "--data", "imaginet=x"], "--data imaginet=... is not a known data set"),
        (["1", "--weights", "monet_tinny=x"], "did you mean monet_tiny"),
        (["1", "--weights", "monet_tiny=absent"], "--weights monet_tiny=absent: there is no such file or folder"),
        (["1", "--data", "imagenet=absent"], "--data imagenet=absent: there is no such file or folder"),
        (["3", "--scale", "digits", "--seeds", "0"], "--seeds is 0: give at least 1"),
        (["1", "--data", "imagenet=EMPTY"], "--data imagenet=EMPTY: EMPTY has no images"),
        (["2", "--data", "imagenet-c=EMPTY"], "--data imagenet-c=EMPTY: there is no EMPTY/gaussian_noise/1"),
        (["6", "--data", "ade20k=EMPTY"], "--data ade20k=EMPTY: there is no folder EMPTY/images"),
        (["S5", "--data", "svhn=EMPTY"], "--data svhn=EMPTY: svhn is not in EMPTY"),
        (["S5", "--workers", "-1"], "--workers is -1: give at least 0"),
        (["S1", "--out", __file__], "test_reproduction.py is not a folder"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").mkdir()
    assert main(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err
