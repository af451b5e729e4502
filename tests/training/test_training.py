"""Training: what the recipe says happens, interrupted runs end like others, and mistakes cost nothing."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import timm
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import polynext
from polynext.cli import main
from polynext.data import AugmentConfig, DataConfig, Preprocessing
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.models import read_weights
from polynext.recipes import recipe
from polynext.training import (
    Classification,
    EmaConfig,
    Interrupted,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    TrainingLoop,
    from_yaml,
    to_yaml,
    train,
)
from polynext.training.classification import build_model, set_head_dropout
from polynext.training.diagnostics import Diagnostics
from polynext.training.folder import RunFolder
from polynext.training.loop import SKIPS_IN_A_ROW, averaged
from polynext.training.report import draw_panel
from polynext.training.schedule import averages_from

ALONE = Processes(0, 1, torch.device("cpu"))
COLOUR = DataConfig(preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3))


def short(**changes) -> TrainConfig:
    """Two epochs of a few steps, with everything random switched on."""
    base = dataclasses.replace(
        recipe("digits"),
        data=DataConfig(limit=128),
        augment=AugmentConfig(crop="shift", hflip=0.5, rand_augment="", erasing=0.0),
        model=ModelConfig(name="cpolynext_nano", dropout=0.2, drop_path=0.2),
        ema=EmaConfig(decay=0.9, start=0.5),
        schedule=ScheduleConfig(warmup_epochs=1),
        epochs=2,
        batch_size=32,
        micro_batch=16,
        log_steps=1,
    )
    return dataclasses.replace(base, **changes)


def test_one_image_at_once_is_too_few_for_batch_norm_on_one_position(tmp_path: Path) -> None:
    config = short(model=ModelConfig(name="resnet18"), batch_size=2, micro_batch=1, compile=False)
    with pytest.raises(PolyNeXtError, match="`micro_batch` is 1, and Mixup and CutMix combine pairs"):
        train(config, tmp_path / "run", quiet=True)
    plain = dataclasses.replace(config, augment=dataclasses.replace(config.augment, mixup=0.0, cutmix=0.0))
    with pytest.raises(PolyNeXtError, match="give a `micro_batch` of at least 2"):
        train(plain, tmp_path / "run", quiet=True)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = RunFolder(folder).load_state()
    assert state is not None
    return {**state["model"], **{f"average.{k}": v for k, v in (state["average"] or {}).items()}}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [k for k in a if not torch.equal(a[k], b[k])]
    assert different == []


def loop_of(config: TrainConfig, folder: Path) -> TrainingLoop:
    return TrainingLoop(Classification(config, ALONE), config, RunFolder(folder), ALONE)


def command(out: Path, *options: str) -> list[str]:
    path = out.with_suffix(".yaml")
    return [sys.executable, "-m", "polynext", "train", str(path), "--out", str(out), *options]


# What a step does


def test_the_average_starts_at_its_epoch_from_the_current_weights(tmp_path) -> None:
    config = short(ema=EmaConfig(decay=0.9, start=0.5))
    loop = loop_of(config, tmp_path)
    assert averages_from(config) == 1
    model = nn.Linear(2, 2)
    average = averaged(model, 0.9)
    seen = []
    for step in range(3):
        nn.init.constant_(model.weight, float(step + 1))
        average.update_parameters(model)
        seen.append(average.module.weight[0, 0].item())
    assert seen == pytest.approx([1.0, 0.9 * 1 + 0.1 * 2, 0.9 * 1.1 + 0.1 * 3])
    assert loop.average is None


def test_evaluation_is_in_float32_after_training_in_bf16(tmp_path) -> None:
    """The logged figures are those of the saved weights in float32."""
    config = short(precision="bf16", ema=EmaConfig(decay=0.0))
    run = train(config, tmp_path / "run", quiet=True)
    record = RunFolder(run).records()[-1]
    task = Classification(config, ALONE)
    task.model.load_state_dict(read_weights(run / "last.safetensors"))
    logged = {name: record[name] for name in ("test_accuracy", "test_loss")}
    assert task.evaluate(task.model) == pytest.approx(logged, rel=1e-5)


def test_head_dropout_is_set_and_refused_without_dropout_in_the_head() -> None:
    model = polynext.create_model("cpolynext_nano")
    set_head_dropout(model, 0.3)
    assert model.head.drop.p == 0.3
    with pytest.raises(polynext.PolyNeXtError, match="no dropout in its head"):
        set_head_dropout(nn.Linear(2, 2), 0.3)


def test_head_dropout_of_a_metaformer_is_before_its_classifier() -> None:
    model = timm.create_model("convformer_s18", drop_rate=0.4, device="meta")
    set_head_dropout(model, 0.3)
    assert (model.head.drop.p, model.head.fc.head_drop.p) == (0.0, 0.3)


# Where a run starts from, and what it refuses


def test_a_network_for_other_classes_is_fine_tuned(tmp_path) -> None:
    before = polynext.create_model("cpolynext_nano", num_classes=7, in_chans=1)
    save_file(before.state_dict(), tmp_path / "seven.safetensors")
    config = short(model=ModelConfig(name="cpolynext_nano", initial_weights=tmp_path / "seven.safetensors"))
    with pytest.warns(UserWarning, match=r"is for other classes: head\.fc\.bias, head\.fc\.weight are initialised"):
        model = build_model(config, 10)
    torch.testing.assert_close(model.stem.weight, before.stem.weight)
    assert len(model.head.fc.weight) == 10
    with pytest.raises(polynext.PolyNeXtError, match="misshapen"):
        build_model(dataclasses.replace(config, data=COLOUR), 7)


def test_different_classes_in_testing_are_refused(tmp_path) -> None:
    for split, names in (("train", "abc"), ("val", "bc")):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / split / name / "0.png")
    config = short(data=DataConfig(name="folder", root=tmp_path), batch_size=2, micro_batch=2)
    with pytest.raises(polynext.PolyNeXtError, match=r"3 classes for training \(a, b, c\) and others for testing"):
        Classification(config, ALONE)


def test_a_resumed_run_takes_new_options_and_keeps_its_network(tmp_path) -> None:
    config = short(epochs=1)
    train(config, tmp_path / "run", quiet=True)
    other = dataclasses.replace(config, model=ModelConfig(name="apolynext_nano"))
    with pytest.raises(polynext.PolyNeXtError, match="is of another network: keep --model unchanged"):
        train(other, tmp_path / "run", resume=True, quiet=True)
    assert from_yaml((tmp_path / "run" / "config.yaml").read_text()) == config
    heavier = dataclasses.replace(config, epochs=2, optimizer=dataclasses.replace(config.optimizer, weight_decay=0.7))
    loop = loop_of(heavier, tmp_path / "run")
    loop.restore(RunFolder(tmp_path / "run").load_state())
    assert loop.optimizer.param_groups[0]["weight_decay"] == 0.7
    assert loop.optimizer.state  # its moments are those of before


def test_images_that_are_too_small_get_a_message(tmp_path, capsys) -> None:
    """DTTN halves its images five times."""
    assert main(["train", "digits", "--model.name", "dttn_tiny", "--out", str(tmp_path / "run")]) == 2
    assert "the network reduces images by 32 but got 8x8 pixels: give at least 32x32" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_its_epochs_and_optimiser(tmp_path) -> None:
    config = short(epochs=1, ema=EmaConfig(decay=0.9, start=0.0))
    train(config, tmp_path / "run", quiet=True)
    state = RunFolder(tmp_path / "run").load_state()
    for changed, message in (
        (
            {"batch_size": config.batch_size // 2, "micro_batch": config.batch_size // 2},
            "steps in an epoch and now has",
        ),
        ({"optimizer": OptimizerConfig(name="lamb")}, "with another optimiser: keep `optimizer.name` unchanged"),
    ):
        with pytest.raises(polynext.PolyNeXtError, match=message):
            loop_of(dataclasses.replace(config, **changed), tmp_path / "run").restore(state)
    loop = loop_of(dataclasses.replace(config, ema=EmaConfig(decay=0.0)), tmp_path / "run")
    loop.restore(state)
    assert loop.average is None  # it was not wanted any more


# Accumulation, processes, interruption


def test_diagnostics_record_a_cell() -> None:
    model = polynext.create_model("cpolynext_nano", num_classes=3).train()
    images = torch.randn(4, 1, 8, 8)
    with Diagnostics(model).watching() as records:
        model(images).logsumexp(dim=1).sum().backward()
    (record,) = records.values()
    cell = model.stages[0].cells[0]
    output = model.forward_intermediates(images, intermediates_only=True)[0].detach().requires_grad_()
    model.head(model.norm(output)).logsumexp(dim=1).sum().backward()
    assert record["activation"] == pytest.approx(output.square().mean().sqrt().item(), rel=1e-5)
    assert record["gradient"] == pytest.approx(output.grad.square().mean().sqrt().item(), rel=1e-4)
    assert record["scales"] == cell.scale.scales().tolist()
    x = model.stem(images)
    h = cell.stacks[0].mixer.w_in(cell.norm(cell.skip(x, x)))
    first = (cell.stacks[0].mixer.k_coarse(h) * cell.stacks[0].mixer.k_fine(h).flip(1)).abs().max().item()
    assert record["largest_product"] >= first * (1 - 1e-5)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_diagnostics_do_not_change_training(tmp_path) -> None:
    train(short(), tmp_path / "plain", quiet=True)
    watched = train(short(diagnostics=True), tmp_path / "watched", quiet=True)
    assert_same(weights(tmp_path / "plain"), weights(watched))
    records = [r for r in RunFolder(watched).records() if "cells" in r]
    assert [r["step"] for r in records] == list(range(1, 9))
    assert (watched / "diagnostics.png").stat().st_size > 5000
    with pytest.raises(polynext.PolyNeXtError, match="ResNet has no PolyNeXt cells"):
        train(short(diagnostics=True, model=ModelConfig(name="test_resnet")), tmp_path / "resnet", quiet=True)


def losses(folder: Path) -> list[float]:
    return [r["loss"] for r in RunFolder(folder).records() if "loss" in r]


def test_accumulated_batches_equal_one_large_batch(tmp_path) -> None:
    plain = AugmentConfig(crop="none", hflip=0.0, rand_augment="", erasing=0.0, mixup=0.0, cutmix=0.0)
    quiet = short(augment=plain, model=ModelConfig(name="apolynext_nano"), ema=EmaConfig(decay=0.0))
    for parts, name in ((32, "whole"), (8, "parts")):
        train(dataclasses.replace(quiet, micro_batch=parts), tmp_path / name, quiet=True)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), abs=1e-4)


@pytest.mark.parametrize("name, variant", [("cpolynext_nano", ""), ("apolynext_nano_bn", "shared-statistics")])
def test_two_processes_give_the_losses_of_one(tmp_path, name: str, variant: str) -> None:
    plain = AugmentConfig(crop="none", hflip=0.0, rand_augment="", erasing=0.0, mixup=0.0, cutmix=0.0)
    model = ModelConfig(name=name, variant=variant)
    config = short(augment=plain, model=model, micro_batch=32, ema=EmaConfig(decay=0.9, start=0.0))
    train(config, tmp_path / "one", quiet=True)
    config = dataclasses.replace(config, micro_batch=16)
    (tmp_path / "two.yaml").write_text(to_yaml(config))
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(20000 + os.getpid() % 20000),
    ]
    arguments = [sys.executable, *torchrun, *command(tmp_path / "two")[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment, timeout=300)
    assert "UserWarning" not in ended.stderr
    assert len(losses(tmp_path / "one")) == 8
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    one, two = ([r for r in RunFolder(tmp_path / n).records() if "test_accuracy" in r][-1] for n in ("one", "two"))
    assert two["test_accuracy"] == one["test_accuracy"]  # 364 test images: 182 each, every one counted once
    assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-4)


# Muon, and statistics that are estimated for averaged weights, have a state of their own.
FULLY_POLYNOMIAL = dict(
    model=ModelConfig(name="cpolynext_nano_bn", drop_path=0.2),
    optimizer=OptimizerConfig(name="muon", lr=4e-3),
    ema=EmaConfig(decay=0.5, start=0.0, statistics="estimated"),
)


@pytest.mark.parametrize("changes", [{}, FULLY_POLYNOMIAL], ids=["layer norm", "fully polynomial"])
def test_resuming_gives_the_weights_of_an_uninterrupted_run(changes: dict, tmp_path, monkeypatch) -> None:
    config = short(**changes)
    train(config, tmp_path / "whole", quiet=True)

    steps = 0
    step = TrainingLoop.step

    def interrupt_after_three(self, micro_batches) -> None:
        nonlocal steps
        step(self, micro_batches)
        steps += 1
        if steps == 3:
            self.stop.signal = signal.SIGINT

    monkeypatch.setattr(TrainingLoop, "step", interrupt_after_three)
    with pytest.raises(Interrupted, match="--resume") as stop:
        train(config, tmp_path / "parts", quiet=True)
    assert stop.value.exit_status == 130
    assert RunFolder(tmp_path / "parts").load_state()["progress"]["step"] == 3  # in the middle of an epoch
    train(config, tmp_path / "parts", resume=True, quiet=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))

    def without_speed(folder: str) -> list[dict]:
        return [
            {k: v for k, v in r.items() if k != "images_per_second"} for r in RunFolder(tmp_path / folder).records()
        ]

    assert without_speed("parts") == without_speed("whole")


@pytest.mark.parametrize("changes", [{}, FULLY_POLYNOMIAL], ids=["layer norm", "fully polynomial"])
def test_results_do_not_depend_on_worker_processes(changes: dict, tmp_path) -> None:
    config = short(epochs=1, **changes)
    for workers, name in ((0, "none"), (64, "many")):
        train(
            dataclasses.replace(config, data=dataclasses.replace(config.data, workers=workers)),
            tmp_path / name,
            quiet=True,
        )
    assert_same(weights(tmp_path / "none"), weights(tmp_path / "many"))


def test_only_running_statistics_can_be_estimated(tmp_path) -> None:
    config = short(ema=EmaConfig(decay=0.5, statistics="estimated"))
    with pytest.raises(polynext.PolyNeXtError, match="PolyNeXt has no running statistics: use a `_bn` model"):
        train(config, tmp_path / "run", quiet=True)


@pytest.fixture
def running(tmp_path):
    """Starts a real run in a process of its own, and waits until it has saved a state of its first epoch."""
    started = []

    def start(name: str, **changes) -> subprocess.Popen:
        out = tmp_path / name
        out.with_suffix(".yaml").write_text(to_yaml(short(epochs=50, **changes)))
        process = subprocess.Popen(
            command(out), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        deadline = time.monotonic() + 300
        while not list((out / "states").glob("*[1-9]-*.pt")):  # after the one of step 0
            assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
            time.sleep(0.05)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_print_how_to_resume(running, tmp_path, number, status: int) -> None:
    process = running("run", data=DataConfig(limit=128, workers=1))
    os.killpg(process.pid, number)  # as a terminal and a cluster do: to the workers too
    _, error = process.communicate(timeout=60)
    assert process.returncode == status
    assert f"resume it with `polynext train --resume {tmp_path / 'run'}`" in error
    assert "Traceback" not in error


def test_a_killed_run_loses_at_most_the_current_epoch(running, tmp_path) -> None:
    process = running("run")
    time.sleep(0.5)
    process.kill()
    process.communicate()
    folder = RunFolder(tmp_path / "run")
    saved = folder.load_state()["progress"]["step"] // 4
    finished = [r["epoch"] + 1 for r in folder.records() if "test_accuracy" in r]
    assert saved >= max(finished) - 1
    config = dataclasses.replace(from_yaml((tmp_path / "run" / "config.yaml").read_text()), epochs=saved + 1)
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert folder.load_state()["progress"]["step"] == 4 * (saved + 1)


KILLED_MID_WRITE = """
import os, signal, sys
from pathlib import Path
from polynext.training import from_yaml, train

states = 0
fsync = os.fsync

def die_at_the_third(descriptor):
    global states
    states += os.readlink(f"/proc/self/fd/{descriptor}").split("/")[-2] == "states"
    if states == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = die_at_the_third
out = Path(sys.argv[1])
train(from_yaml(out.with_suffix(".yaml").read_text()), out, quiet=True)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds out what is being written from /proc")
def test_a_run_killed_during_a_write_resumes_to_the_same_weights(tmp_path) -> None:
    config = short(epochs=3)
    (tmp_path / "killed.yaml").write_text(to_yaml(config))
    process = subprocess.run(
        [sys.executable, "-c", KILLED_MID_WRITE, str(tmp_path / "killed")], check=False, timeout=300
    )
    assert process.returncode == -signal.SIGKILL
    states = tmp_path / "killed" / "states"
    assert len(list(states.glob("*.pt"))) == 2 and len(list(states.glob(".*.pt.*"))) == 1  # the third one under way
    train(config, tmp_path / "killed", resume=True, quiet=True)
    train(config, tmp_path / "whole", quiet=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert not list(states.glob(".*.pt.*"))


def test_a_damaged_state_is_skipped(tmp_path) -> None:
    train(short(), tmp_path / "run", quiet=True)
    folder = RunFolder(tmp_path / "run")
    older, newest = sorted(folder.states.glob("*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"is damaged and now named .*; the state before it is used"):
        state = folder.load_state()
    assert state["progress"]["step"] == 4
    assert older.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    train(short(epochs=1), tmp_path / "run", quiet=True)
    folder = RunFolder(tmp_path / "run")
    before = (folder.path / "last.safetensors").read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(polynext.PolyNeXtError, match=r"No space left on device.*Saved files are intact"):
        folder.save_weights("last", {"x": torch.zeros(3)})
    assert (folder.path / "last.safetensors").read_bytes() == before
    assert not list(folder.path.glob(".*"))


def test_a_run_folder_is_complete_and_starts_another_run(tmp_path, capsys) -> None:
    config = short()
    train(config, tmp_path / "run", quiet=True)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    expected = {"config.yaml", "environment.json", "metrics.jsonl", "tensorboard", "curves.png", "states"}
    assert names == expected | {"best.safetensors", "last.safetensors"}
    about = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert about["versions"]["torch"] == torch.__version__
    model = polynext.create_model("cpolynext_nano")
    polynext.load_weights(model, tmp_path / "run" / "best.safetensors")
    assert main(["train", str(tmp_path / "run" / "config.yaml"), "--print-config"]) == 0
    assert from_yaml(capsys.readouterr().out) == config
    with pytest.raises(polynext.PolyNeXtError, match="already has a run"):
        train(config, tmp_path / "run", quiet=True)
    with (
        RunFolder(tmp_path / "run").alone(),
        pytest.raises(polynext.PolyNeXtError, match=r"another process trains in .*run: wait until it ends"),
    ):
        train(config, tmp_path / "run", resume=True, quiet=True)


# Numbers that are not numbers


@pytest.mark.parametrize("model", ["cpolynext_nano", "apolynext_nano_bn"])  # the latter has statistics to spoil
def test_a_step_that_is_not_finite_never_reaches_the_weights(tmp_path, model: str) -> None:
    loop = loop_of(short(model=ModelConfig(name=model), epochs=100, schedule=ScheduleConfig()), tmp_path)
    before = {k: v.clone() for k, v in loop.model.state_dict().items()}
    bad = [(torch.full((16, 1, 8, 8), torch.nan), torch.zeros(16, dtype=torch.long))] * 2
    loop.model.train()
    for _ in range(SKIPS_IN_A_ROW - 1):
        loop.step(bad)
    assert_same(before, loop.model.state_dict())
    assert loop.progress.skipped == 4
    good = [(torch.randn(16, 1, 8, 8), torch.zeros(16, dtype=torch.long))] * 2
    loop.step(good)
    assert loop.skips_in_a_row == 0
    with pytest.raises(polynext.PolyNeXtError, match=r"5 steps in a row, up to step 10 at learning rate 0\.004"):
        for _ in range(SKIPS_IN_A_ROW):
            loop.step(bad)


# A model that has learned


@pytest.mark.slow
@pytest.mark.parametrize(("model", "least"), [("cpolynext_nano", 98.0), ("cpolynext_nano_bn", 97.0)])
def test_digits_are_learned(tmp_path, model: str, least: float) -> None:
    config = recipe("digits")
    train(dataclasses.replace(config, model=ModelConfig(name=model)), tmp_path / "run", quiet=True)
    records = [r for r in RunFolder(tmp_path / "run").records() if "test_accuracy" in r]
    assert max(r["ema_test_accuracy"] for r in records if "ema_test_accuracy" in r) >= least


def test_one_enormous_loss_leaves_the_others_readable() -> None:
    axes = Figure().subplots()
    losses = [(epoch, 2.0 / epoch) for epoch in range(1, 9)]
    draw_panel(axes, {"train": losses, "test": [*losses[:3], (4, 1e28), (5, math.nan), *losses[5:]]})
    assert axes.get_ylim()[1] < 3
    marks = axes.lines[-1]
    assert marks.get_xdata().tolist() == [4, 5] and marks.get_label().startswith("test above")
    plain = Figure().subplots()
    draw_panel(plain, {"train": losses, "test": []})
    assert len(plain.lines) == 1 and plain.get_legend() is None
