"""The paper's tables again: every figure has a count, a command or a reason, and what was run is not run again."""

import json
import sys
from pathlib import Path

import pytest

from polynext import paper
from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.experiments.reproduction import TABLES, Cell, Experiment, Setup, experiments, reproduce
from polynext.experiments.reproduction import report as report_module
from polynext.experiments.reproduction.experiments import Results, resumed
from polynext.experiments.reproduction.tables import Table
from polynext.segmentation.checkpoints import fetch_segmentation_weights

DATA = ("imagenet", "imagenet-a", "imagenet-c", "imagenet-r", "imagenet-sketch", "cifar10", "svhn", "tiny-imagenet")
ALL_DATA = {name: Path("data") / name for name in (*DATA, "ade20k")}


@pytest.fixture(autouse=True)
def no_counting(monkeypatch) -> None:
    """Counting and building are tested with the models; here they would take most of the time."""
    monkeypatch.setattr("polynext.experiments.reproduction.ablations.obstacle", lambda row, scale: None)
    monkeypatch.setattr("polynext.experiments.reproduction.networks.size_of", lambda name: (10**6, 10**9))
    monkeypatch.setattr("polynext.experiments.reproduction.settings.size_of", lambda name: (10**6, 10**9))
    monkeypatch.setattr("polynext.experiments.reproduction.networks.segmentation_costs", lambda backbone: (54.0, 941.0))


def cells(name: str, **options) -> list[Cell]:
    return list(TABLES[name].cells(Setup(out=Path("out"), **options)))


@pytest.mark.parametrize("name", TABLES)
def test_every_figure_has_a_count_a_command_or_a_reason(name: str) -> None:
    for options in ({}, {"data": ALL_DATA}, {"data": ALL_DATA, "train": True}):
        for cell in cells(name, **options):
            ways = [bool(cell.found), cell.experiment is not None, bool(cell.missing)]
            assert sum(ways) == 1, cell


@pytest.mark.parametrize("name", ["1", "2", "7", "S5", "3", "4", "5", "dropin", "6", "S1", "S2", "S3"])
def test_no_printed_figure_is_left_out(name: str) -> None:
    parts = ("conv", "attention", "text") if name == "1" else ("rows", "text")
    rows = [row for part in parts for row in paper.rows(name, part)]
    names = ("model", "variant of", "row", "data")
    printed = sum(value == value for row in rows for key, value in row.items() if key not in names)
    printed += sum(row["table"] == name for row in paper.rows("baselines"))
    assert sum(bool(cell.printed) for cell in cells(name)) == printed


def test_figures_are_as_printed() -> None:
    robust = {(c.row, c.column): c.printed for c in cells("2")}
    assert robust["Swin-S", "imagenet"] == "83.0" and robust["Swin-T", "imagenet-c (mCE)"] == "62.0"
    plain = {(c.row, c.column): c for c in cells("7", data=ALL_DATA)}
    assert plain["DTTN-S no norm", "params"].printed == "12.3"
    assert plain["CPolyNeXt-S BN", "imagenet with LayerNorm"].experiment.name == "cpolynext_small.in1k.imagenet"


@pytest.mark.parametrize("name", ["S1", "S2", "S3"])
def test_networks_and_recipes_are_as_printed(name: str) -> None:
    assert [c for c in cells(name) if c.found != c.printed and c.column != "params"] == []


def test_published_weights_are_fetched_by_the_tag_of_the_figure() -> None:
    commands = {c.row: c.experiment.commands[-1] for c in cells("1", data=ALL_DATA) if c.experiment}
    assert commands["ConvNeXt-T"][:3] == ("evaluate", "convnext_tiny.fb_in1k", "--pretrained")
    low = {(c.row, c.column): c.experiment for c in cells("S5", data=ALL_DATA)}
    assert low["CPolyNeXt-LR", "svhn"].commands[0][1] == "cpolynext_lowres.svhn"
    assert low["MONet-T", "svhn"] is None
    segmented = {c.row: c.experiment for c in cells("6", data=ALL_DATA) if c.column == "mIoU"}
    assert segmented["APolyNeXt-S"].commands[0][:4] == ("segment", "evaluate", "ade20k_apolynext", "--pretrained")
    assert segmented["ConvFormer-S36"] is None


def test_own_weights_and_own_runs_come_before_published_ones(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{model: {name: monet_tiny}, data: {name: folder}}")
    given = {"monet_tiny": tmp_path / "run", "cpolynext_tiny": tmp_path / "file.pt"}
    commands = {
        c.row: c.experiment.commands for c in cells("1", data=ALL_DATA, weights=given, train=True) if c.experiment
    }
    low = cells("S5", data=ALL_DATA, weights={"monet_tiny:svhn": tmp_path / "run"})
    assert [c.column for c in low if c.row == "MONet-T" and c.experiment] == ["svhn"]
    assert commands["MONet-T"][0][:2] == ("evaluate", str(tmp_path / "run"))
    assert commands["CPolyNeXt-T"][0][1:4] == ("cpolynext_tiny", "--checkpoint", str(tmp_path / "file.pt"))
    train, evaluate = commands["CPolyNeXt-S"]
    assert train[:2] == ("train", "cpolynext_small") and evaluate[1] == train[-1]


def test_a_run_of_another_network_is_not_taken(tmp_path: Path) -> None:
    """Its figure would stand beside one of the paper's that it has nothing to do with."""
    (tmp_path / "config.yaml").write_text("model: {name: cpolynext_micro}")
    given = {"cpolynext_lowres": tmp_path}
    reasons = [c.missing for c in cells("S5", data=ALL_DATA, weights=given) if c.row == "CPolyNeXt-LR"]
    assert len(reasons) == 3
    assert all("is a run of cpolynext_micro, not of cpolynext_lowres" in reason for reason in reasons)


def test_a_run_on_other_data_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{model: {name: monet_tiny}, data: {name: cifar10}}")
    found = {c.column: c for c in cells("S5", data=ALL_DATA, weights={"monet_tiny": tmp_path}) if c.row == "MONet-T"}
    assert found["cifar10"].experiment is not None
    assert found["svhn"].missing == f"{tmp_path} has learned cifar10, not svhn"


def test_a_segmentation_takes_a_segmentation_of_its_backbone(tmp_path: Path) -> None:
    classifier, other, own = (tmp_path / name for name in ("classifier", "other", "own"))
    for folder, config in (
        (classifier, {"name": "cpolynext_small"}),
        (other, {"backbone": "cpolynext_tiny"}),
        (own, {}),
    ):
        folder.mkdir()
        (folder / "config.yaml").write_text(json.dumps({"model": config}))

    def cell(weights: dict[str, Path]) -> Cell:
        return next(
            c for c in cells("6", data=ALL_DATA, weights=weights) if (c.row, c.column) == ("CPolyNeXt-S", "mIoU")
        )

    assert "has the unknown field model.name" in cell({"cpolynext_small": classifier}).missing
    assert cell({"cpolynext_small": other}).missing == f"{other} is a run of cpolynext_tiny, not of cpolynext_small"
    taken = cell({"cpolynext_small": classifier, "cpolynext_small:ade20k": own}).experiment
    assert taken.commands[0][:3] == ("segment", "evaluate", str(own))


def test_a_training_on_other_data_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its figure would be of the data that it began on."""
    run = tmp_path / "runs" / "cpolynext_lowres_cifar10"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("data: {name: cifar10, root: part.npz}")

    def low_resolution(place: str) -> Cell:
        setup = Setup(out=tmp_path, data={"cifar10": Path(place)}, train=True)
        return next(c for c in TABLES["S5"].cells(setup) if (c.row, c.column) == ("CPolyNeXt-LR", "cifar10"))

    assert low_resolution("whole.npz").missing == (
        f"{run} is a training on part.npz, not on whole.npz: give that again, or another --out"
    )
    assert low_resolution("./part.npz").experiment is not None


def test_a_training_that_was_begun_goes_on(tmp_path: Path) -> None:
    command = ("train", "digits", "--data.root", "x", "--out", str(tmp_path))
    assert resumed(command) == list(command)
    (tmp_path / "states").mkdir()
    assert resumed(command) == ["train", "--resume", str(tmp_path)]
    assert resumed(("segment", *command)) == ["segment", "train", "--resume", str(tmp_path)]


def test_a_table_is_run_once_and_written_with_what_is_missing(tmp_path: Path, monkeypatch, capsys) -> None:
    """With real processes: one that prints JSON, and one that fails."""
    program = "import sys; sys.exit('there is no such model') if 'bad' in sys.argv else print('{\"size\": 12345}')"
    monkeypatch.setattr(experiments, "PROGRAM", (sys.executable, "-c", program))
    good, bad = (
        Experiment("good", (("models", "nano"),), prints=True),
        Experiment("bad", (("models", "bad"),), prints=True),
    )

    def content(setup: Setup):
        yield Cell(row="nano", column="parameters", printed="7", experiment=good, read=lambda r: str(r["size"]))
        yield Cell(row="none", column="parameters", printed="8", experiment=bad)
        yield Cell(row="far", column="parameters", printed="9", missing="no data")

    monkeypatch.setitem(TABLES, "7", Table("Toys", content))
    told: list[str] = []
    record = reproduce("7", Setup(out=tmp_path), told.append)
    here = {cell["row"]: cell["here"] for cell in record["cells"]}
    assert here["nano"] == "12345" and here["none"] == here["far"] == ""
    written = (tmp_path / "7.md").read_text()
    assert "| nano | 7 | 12345 |" in written and "Not run:\n\n- parameters of far: no data." in written
    assert "Failed, with logs in results:\n\n- parameters of none: there is no such model." in written
    assert json.loads((tmp_path / "7.json").read_text()) == record
    assert [line.split()[0] for line in told] == ["[1/2]", "[2/2]", "failed:"]

    results = Results(tmp_path)
    assert reproduce("7", Setup(out=tmp_path), told.append, results)["cells"] == record["cells"]
    assert len(told) == 5  # what failed is tried again, but not twice for two tables of one command
    reproduce("7", Setup(out=tmp_path), told.append, results)
    assert len(told) == 5
    monkeypatch.setattr(Results, "run", lambda self, experiment: f"ran {experiment.name} again")
    assert main(["reproduce", "7", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "ran bad again" in shown.out and "ran good again" not in shown.out


def test_speeds_go_on_where_they_were_and_memory_may_be_untold(tmp_path: Path, monkeypatch) -> None:
    speeds = {paper.timm_name(row["model"]): row["throughput"] for row in paper.rows("S4")}
    found = [{"model": name, "images_per_second": s, "memory_bytes": None} for name, s in speeds.items()]
    asked: list[Experiment] = []
    monkeypatch.setattr(Results, "run", lambda self, experiment: asked.append(experiment))
    monkeypatch.setattr(Results, "read", lambda self, experiment: {"measurements": found} if asked else None)
    record = reproduce("S4", Setup(out=tmp_path))
    assert asked[0].commands[0][-2:] == ("--out", str(tmp_path / "results" / "bench.parts.json"))
    shown = {(c["row"], c["column"]): c for c in record["cells"]}
    assert shown["CPolyNeXt-S", "ratio to ConvFormer-S18"]["here"] == "0.44"
    assert "- memory (MB) of all rows: memory of compiled networks" in (tmp_path / "S4.md").read_text()


def test_what_is_missing_everywhere_is_said_once() -> None:
    about = {"paper": "1", "here": "", "failed": ""}
    rows = [about | {"row": row, "column": "a", "missing": "no data."} for row in ("x", "y")]
    rows += [about | {"row": "x", "column": "b", "missing": "no weights"}, about | {"row": "y", "column": "b"}]
    assert report_module.reasons([{"missing": ""} | row for row in rows], "missing") == [
        "- a of all rows: no data.",
        "- b of x: no weights.",
    ]
    assert report_module.reasons([{"missing": ""} | row for row in rows[:2]], "missing") == ["- Everything: no data."]


def test_without_the_hub_no_command_waits_for_it(tmp_path: Path, monkeypatch) -> None:
    program = "import os, sys; sys.exit('polynext evaluate: offline ' + os.environ.get('HF_HUB_OFFLINE', '0'))"
    monkeypatch.setattr(experiments, "PROGRAM", (sys.executable, "-c", program))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    fetching, own = (Experiment(name, (("evaluate", name, f"--{name}"),)) for name in ("pretrained", "checkpoint"))
    monkeypatch.setattr(experiments, "hub_answers", lambda: False)
    assert (fetching.fetches, own.fetches) == (True, False)
    for experiment, sentence in ((own, "offline 0"), (fetching, "offline 1")):
        one = Cell(row="a", column="b", printed="1", experiment=experiment)
        monkeypatch.setitem(TABLES, "7", Table("Toys", lambda setup, one=one: iter([one])))
        told: list[str] = []
        record = reproduce("7", Setup(out=tmp_path), told.append)
        assert record["cells"][0]["failed"] == sentence
        assert any("hub cannot be reached" in line for line in told) == experiment.fetches


WAITING = """
import os, signal, sys
def save(*given):
    print("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""


def test_interrupted_it_lets_the_command_under_way_save(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(experiments, "PROGRAM", (sys.executable, "-c", WAITING))
    one = Cell(row="a", column="b", printed="1", experiment=Experiment("a", (("train", "--out", "run"), ("evaluate",))))
    monkeypatch.setitem(TABLES, "7", Table("Toys", lambda setup: iter([one])))
    assert main(["reproduce", "7", "--out", str(tmp_path)]) == 130
    assert "go on with the same command" in capsys.readouterr().err
    assert (tmp_path / "results" / "a.log").read_text() == "training\nsaved\n"


def test_the_reason_of_a_failure_is_what_the_command_says(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("epoch 1\npolynext segment train: there is no folder x.\nepoch 2\n\n")
    assert experiments.last_sentence(log) == "there is no folder x."
    log.write_text("Traceback\n  ValueError: 7\n")
    assert experiments.last_sentence(log) == "ValueError: 7"


def test_a_result_of_other_commands_is_none_of_this_task(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.folder.mkdir()
    (results.folder / "x.json").write_text("{}")
    (results.folder / "experiments.json").write_text(json.dumps({"x": [["evaluate", "a"]]}))
    assert results.read(Experiment("x", (("evaluate", "a"),))) == {}
    assert results.read(Experiment("x", (("evaluate", "b"),))) is None


def test_ablations_say_what_scale_they_are_of() -> None:
    rows = {(c.row, c.column): c for c in cells("3", scale="digits", budget=20)}
    changed, baseline = rows["addition", "difference"], rows["cpolynext unchanged", "accuracy"]
    assert changed.experiment is not None and changed.experiment.commands[0][2:4] == ("--recipe", "digits")
    assert (changed.printed, baseline.printed) == ("-22.3", "80.2")
    names = {c.row for c in rows.values()} - {"cpolynext unchanged", "apolynext unchanged"}
    assert len({c.experiment for c in rows.values()}) == len(names)  # a row that fails is no other's failure
    assert [name for name, one in TABLES.items() if one.scaled] == ["3", "4", "5", "dropin"]


def test_what_ablations_found_is_over_seeds() -> None:
    def found(column: str, **outcome) -> str:
        whole = {"name": "addition", "diverged_at_step": {}, "accuracies": {}, "differences": []} | outcome
        cell = next(c for c in cells("3", scale="digits") if (c.row, c.column) == ("addition", column))
        return cell.read({"rows": [whole]})

    assert found("difference", differences=[-1.0, -2.0]) == "-1.50 ± 0.71"
    assert found("accuracy", accuracies={"0": 80.0}) == "80.00"
    assert found("difference", diverged_at_step={"0": 7}) == "diverged at step 7"
    assert found("difference", accuracies={"0": 80.0}) == "its baseline diverged"


def test_another_scale_is_said_to_be_another_experiment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Results, "run", lambda self, experiment: "not now")
    reproduce("4", Setup(out=tmp_path, scale="digits"))
    assert "Here on digits: another experiment than the paper's on ImageNet." in (tmp_path / "4.md").read_text()


def test_the_figure_has_what_was_found(tmp_path: Path) -> None:
    found = [{"row": "CPolyNeXt-T", "column": "imagenet", "here": "80.1"}]
    report_module.draw_figure({"cells": found}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


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
    ("arguments", "sentence"),
    [
        (["9"], "there is no table '9' here"),
        (["1", "--data", "imagenet"], "--data 'imagenet' names no place: give it as NAME=PLACE"),
        (["1", "--data", "imaginet=x"], "--data imaginet=... is none of the data sets"),
        (["1", "--weights", "monet_tinny=x"], "did you mean monet_tiny"),
        (["1", "--weights", "monet_tiny=absent"], "--weights monet_tiny=absent: there is no such file or folder"),
        (["1", "--data", "imagenet=absent"], "--data imagenet=absent: there is no such file or folder"),
        (["3", "--scale", "digits", "--seeds", "0"], "--seeds is 0: give at least 1"),
        (["1", "--data", "imagenet=EMPTY"], "--data imagenet=EMPTY: EMPTY has no images"),
        (["2", "--data", "imagenet-c=EMPTY"], "--data imagenet-c=EMPTY: there is no EMPTY/gaussian_noise/1"),
        (["6", "--data", "ade20k=EMPTY"], "--data ade20k=EMPTY: there is no folder EMPTY/images"),
        (["S5", "--data", "svhn=EMPTY"], "--data svhn=EMPTY: svhn is not in EMPTY"),
        (["S5", "--workers", "-1"], "--workers is -1: give at least 0"),
        (["S1", "--out", __file__], "test_reproduction.py is no folder"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").mkdir()
    assert main(["reproduce", *arguments]) == 2
    assert sentence in capsys.readouterr().err
