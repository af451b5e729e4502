"""Dry runs: every published run goes through all its phases on a small stand-in for its data."""

import dataclasses
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import polynext
from polynext.cli import main
from polynext.data import DataConfig
from polynext.distributed import alone
from polynext.models.polynext import CONFIGS
from polynext.recipes import RECIPES, baselines, recipe
from polynext.segmentation import RECIPES as SEGMENTATION_RECIPES
from polynext.segmentation import UPerNet, segmentation_recipe
from polynext.segmentation.task import Segmentation
from polynext.training import Classification, OptimizerConfig, TrainConfig, dry_run

module = importlib.import_module("polynext.training.dry_run")  # the function of that name hides it
CLASSES = {"imagenet": 1000, "cifar10": 10, "svhn": 10, "tiny-imagenet": 200, "mnist-drawings": 10}


class NarrowClassification(Classification):
    """The recipe's network, with an eighth of its width."""

    def build_model(self) -> nn.Module:
        name, chosen = self.config.model.name, self.config.model
        options = {"num_classes": len(self.classes), "drop_rate": chosen.dropout}
        if name not in CONFIGS and name.removesuffix("_bn") not in CONFIGS:
            return polynext.create_model(name, **options)
        config = CONFIGS[name.removesuffix("_bn")]
        stages = tuple(
            dataclasses.replace(stage, width=8 * max(1, stage.width // 64), cells=1) for stage in config.stages
        )
        options |= {"img_size": self.config.data.preprocessing.size, "drop_path_rate": chosen.drop_path}
        return polynext.create_model(name, architecture=dataclasses.replace(config, stages=stages), **options)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    """Data sets of the recipes' kinds, as arrays of 40x40 pixels; one batch of the largest recipe."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    images = rng.integers(0, 256, (4096, 40, 40, 3), dtype=np.uint8)
    for name, classes in CLASSES.items():
        labels, names = np.arange(4096) % classes, [f"class {i}" for i in range(classes)]
        np.savez(root / f"{name}.npz", train_x=images, train_y=labels, test_x=images, test_y=labels, names=names)
    return root


def small(config: TrainConfig, root: Path) -> TrainConfig:
    preprocessing = config.data.preprocessing
    if preprocessing.crop != "drawing":
        size = min(32, preprocessing.size)
        preprocessing = dataclasses.replace(preprocessing, size=size, resize=size + 2)
    file = root / f"{config.data.name}.npz"
    validation = min(config.data.validation, 1000)
    data = dataclasses.replace(config.data, root=file, workers=0, preprocessing=preprocessing, validation=validation)
    return dataclasses.replace(config, data=data)


# Of the networks that the paper compares with, which this test cannot make narrow: one for each optimiser, and one
# whose last batch norms have a single position in each image.
COMPARED = ("resnet18_lowres_cifar10", "resmlp_12_lowres_svhn", "mixer_s_lowres_cifar10", "monet_tiny_bn")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in RECIPES
        if name != "digits" and (name.removesuffix("_frozen") not in baselines.RECIPES or name in COMPARED)
    ],
)
def test_every_recipe_has_a_dry_run(name: str, stand_ins: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "check_resume", lambda *given: None)  # a new process for each: see below
    config = small(recipe(name), stand_ins)
    with torch.compiler.set_stance("force_eager"):  # compiling is tested with the models
        report = dry_run(NarrowClassification, config, tmp_path / "run", minutes=0.01)
    assert [problem for problem in report.problems if "bf16" not in problem] == []
    assert {"first steps", "last epoch", "evaluation"} <= report.checks.keys()
    assert ("end of warmup" in report.checks) == bool(config.schedule.warmup_epochs)
    assert ("start of averaging" in report.checks) == bool(config.ema.decay)
    assert list(tmp_path.iterdir()) == []


class NarrowSegmentation(Segmentation):
    """The recipe's decoder on the smallest backbone of its family."""

    def build_model(self) -> nn.Module:
        family = self.config.model.backbone.split("_")[0]
        return UPerNet(f"{family}_tiny", len(self.train_pairs.classes), width=8, image_size=self.config.data.crop)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    """ADE20K's layout and CamVid's arrays, with 16 pairs each."""
    root, rng = tmp_path_factory.mktemp("scenes"), np.random.default_rng(0)
    for split in ("training", "validation"):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for i in range(16):
            Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(root / f"images/{split}/{i}.jpg")
            Image.fromarray(rng.integers(0, 151, (70, 90), dtype=np.uint8)).save(root / f"annotations/{split}/{i}.png")
    pairs = {"x": rng.integers(0, 256, (16, 70, 90, 3), dtype=np.uint8), "y": rng.integers(0, 11, (16, 70, 90))}
    arrays = {f"{split}_{kind}": value.astype(np.uint8) for split in ("train", "val") for kind, value in pairs.items()}
    np.savez(root / "camvid.npz", **arrays)
    return root


@pytest.mark.parametrize("name", SEGMENTATION_RECIPES)
def test_every_segmentation_recipe_has_a_dry_run(name: str, scenes: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "check_resume", lambda *given: None)
    monkeypatch.setattr(module, "EVALUATED", 2)
    config = segmentation_recipe(name)
    root = scenes / "camvid.npz" if config.data.name == "camvid" else scenes
    data = dataclasses.replace(config.data, root=root, resize=(90, 70), crop=64, stride=40, workers=0)
    config = dataclasses.replace(config, data=data)
    report = dry_run(NarrowSegmentation, config, tmp_path / "run", minutes=0.01)
    assert [problem for problem in report.problems if "bf16" not in problem] == []
    assert {"first steps", "end of warmup", "last steps", "evaluation"} <= report.checks.keys()
    assert f"iteration {config.iterations - 2}/{config.iterations}" in report.checks["last steps"]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_resumes_in_a_new_process_and_leaves_no_file(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--dry-run", "--data.limit", "128"]) == 0
    printed = capsys.readouterr().out
    assert "no problems found" in printed and ", the same" in printed
    for word in ("memory", "images/s", "minutes", "disk"):
        assert word in printed
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_dry_run_leaves_no_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "check_evaluation", lambda *given: signal.raise_signal(signal.SIGTERM))
    assert main(["train", "digits", "--dry-run", "--data.limit", "128"]) == 130
    assert list(tmp_path.iterdir()) == []


def test_several_processes_share_a_dry_run(tmp_path: Path) -> None:
    port = str(20000 + os.getpid() % 20000)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    arguments = ["-m", "polynext", "train", "digits", "--dry-run", "--micro-batch", "32", "--data.limit", "128"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=True
    )
    assert result.stdout.count("no problems found") == 1
    assert "2 process(es)" in result.stdout and "in a new process" in result.stdout
    assert list(tmp_path.iterdir()) == []


def quick(**changes) -> TrainConfig:
    return dataclasses.replace(recipe("digits"), data=DataConfig(limit=128), **changes)


def test_problems_are_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "check_resume", lambda *given: None)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10))
    monkeypatch.setattr(module, "available_memory", lambda: 3 * 2**20)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")  # as torchrun tells of three processes on this machine
    config = quick(optimizer=OptimizerConfig(lr=1e30, clip_grad=0.0))
    with np.errstate(all="ignore"):
        report = dry_run(Classification, config, tmp_path / "run")
    problems = " ".join(report.problems)
    assert "is not finite at" in problems
    assert "images at once need about" in problems and "`micro_batch`" in problems
    assert "1 MB are free for each" in problems
    assert "give another `out`" in problems


def test_problems_of_the_data_are_reported(tmp_path: Path, monkeypatch, capsys) -> None:
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (8, 8)).save(tmp_path / "data" / split / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "check_resume", lambda *given: None)
    options = ["--data.name", "imagenet", "--data.root", "data", "--data.most-memory", "0", "--batch-size", "2"]
    colour = ["--data.preprocessing.mean", *["0.5"] * 3, "--data.preprocessing.std", *["0.5"] * 3]
    assert main(["train", "digits", "--dry-run", *options, *colour, "--micro-batch", "2"]) == 1
    assert "imagenet has 1000 classes and 2 were found" in capsys.readouterr().out
    (tmp_path / "data" / "train" / "b" / "1.png").write_bytes(b"not an image")
    assert main(["train", "digits", "--dry-run", *options, *colour, "--micro-batch", "2"]) == 1
    assert "1.png cannot be read as an image" in capsys.readouterr().out
    assert main(["train", "digits", "--dry-run", "--data.name", "imagenet", "--data.root", "absent"]) == 1
    assert "there is no folder absent" in capsys.readouterr().out


def test_a_folder_with_another_run_is_not_removed(stand_ins: Path, tmp_path: Path, monkeypatch) -> None:
    runs = tmp_path / "runs"
    monkeypatch.setattr(module, "check_resume", lambda *given: (runs / "another").mkdir(parents=True))
    with torch.compiler.set_stance("force_eager"):
        dry_run(NarrowClassification, small(recipe("cifar10"), stand_ins), runs / "run", minutes=0.01)
    assert [folder.name for folder in runs.iterdir()] == ["another"]


@pytest.mark.parametrize(("step_seconds", "images"), [(1.0, 32), (8.0, 8), (1000.0, 2)])
def test_a_slower_machine_gets_fewer_images(step_seconds: float, images: int, monkeypatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    loop = SimpleNamespace(micro_batch=32, group=alone())
    module.keep_to_time(module.DryRunReport(), loop, 2, step_seconds, steps=4, end=110.0)
    assert loop.micro_batch == images


@pytest.mark.parametrize(
    ("name", "side", "images"),
    [("cpolynext_nano_bn", 8, 2), ("monet_tiny_bn", 32, 16), ("monet_tiny_bn", 224, 2), ("resnet18", 64, 4)],
)
def test_batch_norms_of_small_maps_need_more_images(name: str, side: int, images: int) -> None:
    """Two values of a channel give gradients of 1e17 or NaN, which the run with its own number does not have."""
    batches = lambda: (batch for batch in [(torch.zeros(2, 3, side, side), None)])  # noqa: E731
    loop = SimpleNamespace(model=polynext.create_model(name, device="meta"), batches_left=batches)
    assert module.smallest_batch(loop) == images


def test_the_old_names_still_work_for_a_release(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, "check_run", lambda *given: None)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--rehearse"]) == 0
    captured = capsys.readouterr()
    assert "--rehearse is now --dry-run" in captured.err
    assert "no problems found" in captured.out
    with pytest.warns(DeprecationWarning, match="rehearse is now dry_run"):
        assert polynext.training.rehearse is dry_run
