"""Speed and memory of networks, measured side by side."""

import importlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polynext  # noqa: F401  (registers the models)
from polynext import paper
from polynext.cli import main
from polynext.errors import PolyNeXtError
from polynext.experiments.speed import figures, paper_table, timing
from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.report import leaders, paper_comparison
from polynext.experiments.speed.timing import Measurement, Timing, take_turns


@given(st.lists(st.floats(1e-4, 1e3), min_size=2, max_size=20))
def test_median_and_quartiles(seconds: list[float]) -> None:
    timing = Timing(seconds)
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    assert timing.median == pytest.approx(middle)
    assert timing.spread == pytest.approx((high - low) / middle, abs=1e-12)


def test_workloads_take_turns_in_every_round() -> None:
    calls: list[str] = []
    turns = {name: lambda name=name: calls.append(name) or len(calls) / 10 for name in "ab"}
    timings = take_turns(turns, rounds=3)
    assert calls == ["a", "b"] * 3
    assert timings["b"].seconds == [0.2, 0.4, 0.6]


def start_workload(label: str) -> tuple[object, str]:
    return lambda: sum(range(10**5)), f"{label} in another process: {multiprocessing.parent_process() is not None}"


def test_a_workload_runs_in_its_own_process(monkeypatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    workload = importlib.import_module("workload").WorkloadProcess(start_workload, "sums")
    assert workload.found == "sums in another process: True"
    assert 0 < workload.turn() < 10
    workload.process.shutdown()


def test_candidates_take_turns(monkeypatch) -> None:
    calls: list[tuple[str, int]] = []

    def prepare(candidate: Candidate, setting: Setting):
        return lambda images: calls.append((candidate.model, len(images))), torch.zeros(setting.batch_size, 1)

    monkeypatch.setattr(timing, "prepare", prepare)
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.0)
    models = ("cpolynext_nano", "apolynext_nano")
    candidates = [Candidate(model, "eager") for model in models]
    found = timing.measure(candidates, Setting("cpu", batch_size=3), rounds=4, memory=())
    round_of_turns = [(model, size) for model in models for size in (3, 1)]
    warm_up = [turn for turn in round_of_turns for _ in range(2)]
    assert calls == warm_up + 4 * round_of_turns
    assert [len(m.batch.seconds) for m in found] == [4, 4]
    assert all(m.memory is None for m in found)


def test_each_measurement_uses_its_own_gpu(monkeypatch) -> None:
    used = []
    for name in ("synchronize", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None, name=name: used.append((name, device)))
    monkeypatch.setattr(timing, "prepare", lambda candidate, setting: (lambda images: None, torch.zeros(1)))
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.0)
    timing.turn(lambda images: None, torch.zeros(1), "cuda:1")
    timing.measure_memory(Candidate("cpolynext_nano", "eager"), Setting("cuda:1", batch_size=1))
    assert {name for name, _ in used} == {"synchronize", "reset_peak_memory_stats", "max_memory_allocated"}
    assert {device for _, device in used} == {"cuda:1"}


def test_bench_prints_json(capsys, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "bench.json"
    arguments = ["bench", "cpolynext_nano", "--engines", "eager", "folded", "--rounds", "2", "--no-memory"]
    assert main([*arguments, "--batch-size", "2", "--out", str(target), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads(target.read_text())
    assert [m["engine"] for m in record["measurements"]] == ["eager", "folded"]
    for found in record["measurements"]:
        assert found["macs"] > 0
        assert found["images_per_second"] == pytest.approx(2 / np.median(found["batch_seconds"]))
    assert record["setting"]["batch"] == 2


def test_bench_reports_what_it_left_out(capsys) -> None:
    arguments = ["bench", "cpolynext_nano", "test_resnet", "--engines", "eager", "folded", "--no-memory"]
    assert main([*arguments, "--image-size", "32", "--rounds", "1", "--batch-size", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[4:7]] == [
        ["cpolynext_nano", "eager"],
        ["cpolynext_nano", "folded"],
        ["test_resnet", "eager"],
    ]
    assert lines[-1] == "test_resnet folded: not measured, only the package's own models fold"


def test_the_papers_table_shows_what_was_not_measured() -> None:
    """For example because the engine cannot run the reference."""
    rows = paper_comparison("compiled", []).rows
    assert len(rows) == 19 and all("not measured" in row for row in rows)
    assert {"DTTN-T", "DTTN-S", "DTTN-B", "MONet-T", "MONet-S"} <= {row[0] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonet"], "there is no model named 'nonet'"),
        (["cpolynext_nano", "--engines", "fp8"], "there is no engine 'fp8'"),
        (["cpolynext_nano", "--engines", "jit"], "there is no engine 'jit'"),
        (["cpolynext_nano", "--engines", "eager+compiled"], "there is no engine 'eager+compiled'"),
        (["cpolynext_nano", "--engines", "bf16+onnxruntime"], "onnxruntime computes in float32"),
        (["cpolynext_nano", "--engines", "bf16+openvino"], "openvino computes in float32"),
        (["test_resnet", "--engines", "folded"], "no model is left to measure: only the package's own models fold"),
        (["cpolynext_nano", "--rounds", "0"], "--rounds is 0: give at least 1"),
        (["cpolynext_nano", "--image-size", "0"], "--image-size is 0: give at least 1"),
        (["cpolynext_nano", "--threads", "-2"], "--threads is -2: give at least 0"),
        (["cpolynext_nano", "--device", "tpu"], "there is no device 'tpu'"),
        (["cpolynext_nano", "--device", "cpu2"], "there is no device 'cpu2'"),
        (["cpolynext_nano", "--out", "."], ". is a folder: give a file"),
        (["cpolynext_nano", "--plot", "speed.text"], "speed.text has an unknown image format"),
        (["cpolynext_nano", "--paper"], "--paper has its own list of models"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_memory_is_that_of_one_network() -> None:
    """A larger batch takes more, and the memory of the calling process does not count."""
    ballast = torch.ones(200, 2**20)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as process:
        small, large = (
            process.submit(timing.measure_memory, Candidate("cpolynext_nano", "eager"), Setting("cpu", batch)).result()
            for batch in (1, 4096)
        )
    del ballast
    activations = 4096 * 16 * 64 * 4
    assert small < 100 * 2**20
    assert 2 * activations < large < small + 40 * activations


def test_the_papers_table_has_our_figures_beside_it() -> None:
    names = paper_table.paper_models()
    made = [
        Measurement(Candidate(name, "eager"), 10**6, 10**9, Timing([1.0]), Timing([1.0]), batch_size=i + 1)
        for i, name in enumerate(names)
    ]
    rows = {row[0]: row for row in paper_comparison("eager", made).rows}
    assert len(rows) == len(paper.rows("S4")) == 19
    assert [name for name, row in rows.items() if "not measured" in row] == []
    ours = rows["CPolyNeXt-S"]
    assert ours[3:6] == ("1032", "0.44", "1568")
    assert float(ours[6]) == names.index("cpolynext_small") + 1


def test_the_fastest_model_of_each_accuracy_is_named() -> None:
    speeds = {"cpolynext_tiny": 9, "convformer_s18": 4, "cpolynext_small": 3, "caformer_s18": 2}
    made = [
        Measurement(Candidate(name, "eager"), 1, 1, Timing([1.0]), Timing([1.0]), batch_size=speed)
        for name, speed in speeds.items()
    ]
    found = leaders(made)
    assert found[0].startswith("Of at least 80% top-1, CPolyNeXt-T (80.2%) is the fastest at 9 images/s, 2.25 times")
    assert "at least 83% top-1, ConvFormer-S18" in found[3]
    assert "at least 83.5% top-1, CPolyNeXt-S (83.9%) is the fastest at 3 images/s, 1.50 times as fast as" in found[4]
    assert len(found) == 5


def test_parts_are_scaled_by_their_reference_and_resume(monkeypatch, tmp_path) -> None:
    """The machine has half its speed during the second part."""
    speeds = {"convformer_s18": 1.0, "cpolynext_small": 0.5, "cpolynext_tiny": 2.0}
    slowness, measured = [1.0, 2.0], []

    def measure(candidates, setting, rounds, memory, progress, latency):
        if not slowness:
            raise KeyboardInterrupt
        pace = slowness.pop(0)
        measured.append([c.model for c in candidates])
        return [Measurement(c, 1, 1, Timing([pace / speeds[c.model]] * rounds), None, 8) for c in candidates]

    monkeypatch.setattr(paper_table, "measure", measure)
    monkeypatch.setattr(paper_table, "paper_models", lambda: list(speeds))
    setting, out = Setting("cpu", 8), tmp_path / "paper.json"
    with pytest.raises(KeyboardInterrupt):
        paper_table.measure_paper_models(["eager"], setting, rounds=3, memory=False, out=out)
    slowness.append(3.0)
    found = paper_table.measure_paper_models(["eager"], setting, rounds=3, memory=False, out=out)
    assert measured == [["convformer_s18"], ["convformer_s18", "cpolynext_small"], ["convformer_s18", "cpolynext_tiny"]]
    reference, *others = found
    ratios = {m.candidate.model: m.throughput / reference.throughput for m in others}
    assert ratios == {"cpolynext_small": pytest.approx(0.5), "cpolynext_tiny": pytest.approx(2.0)}
    with pytest.raises(PolyNeXtError, match="has measurements with another batch"):
        paper_table.measure_paper_models(["eager"], Setting("cpu", 16), out=out)


def test_the_scaling_figure_has_every_family() -> None:
    points = figures.families("params")
    assert sum(map(len, points.values())) == len(paper.main_results()) == 42
    assert points["CPolyNeXt"] == [
        (6.4, 80.2, "CPolyNeXt-T"),
        (26, 83.9, "CPolyNeXt-S"),
        (40, 84.7, "CPolyNeXt-B"),
        (57, 84.9, "CPolyNeXt-L"),
    ]
    measured = [
        Measurement(Candidate(name, "eager"), 1, 1, Timing([0.5, 0.6]), Timing([1.0]), batch_size=1)
        for name in ("cpolynext_tiny", "convformer_s18", "resnet18")
    ]
    assert set(figures.measured_families(measured)["eager"]) == {"CPolyNeXt", "ConvFormer"}
    size, cost, speed, bars = figures.draw(measured, where=", cpu", found={"CPolyNeXt-T": 80.1}).axes
    labels = ["parameters (M)", "FLOPs (G)", "measured images/s, cpu", "measured images/s, cpu"]
    assert [axes.get_xlabel() for axes in (size, cost, speed, bars)] == labels
    series = {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in size.lines}
    assert points.keys() < series.keys() and series["CPolyNeXt"] == [(x, y) for x, y, _ in points["CPolyNeXt"]]
    assert series["measured here"] == [(6.4, 80.1)]
    assert {line.get_label() for line in speed.lines} == {"CPolyNeXt", "ConvFormer", "eager"}
    assert [patch.get_width() for patch in bars.patches] == pytest.approx(3 * [1 / 0.55])


def test_a_model_without_a_published_accuracy_has_bars_only() -> None:
    measured = [Measurement(Candidate("resnet18", "eager"), 1, 1, Timing([0.5]), None, batch_size=1)]
    *_, last = axes = figures.draw(measured).axes
    assert len(axes) == 3 and [label.get_text() for label in last.get_yticklabels()] == ["resnet18, eager"]
