"""Segmentation runs, from the config to the picture."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import polynext
from polynext.cli import main
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.segmentation.checkpoints import load_segmentation_weights
from polynext.segmentation.classes import CAMVID
from polynext.segmentation.config import (
    SegmentationConfig,
    SegmentationModelConfig,
    SegmentationOptimizerConfig,
)
from polynext.segmentation.data import load_pairs
from polynext.segmentation.recipes import RECIPES
from polynext.segmentation.scores import score
from polynext.segmentation.sliding import predict
from polynext.segmentation.task import (
    Segmentation,
    build_optimizer,
    evaluate,
    learning_rate,
    load_backbone,
    train_segmentation,
)
from polynext.segmentation.transforms import TestTransform
from polynext.segmentation.upernet import UPerNet
from polynext.training import EmaConfig, Interrupted, TrainingLoop, from_yaml, to_yaml
from polynext.training.folder import RunFolder
from tests.segmentation.test_data import folder, write_pairs

ALONE = Processes(0, 1, torch.device("cpu"))


def quick(root: Path, **changes) -> SegmentationConfig:
    config = SegmentationConfig(
        model=SegmentationModelConfig(backbone="cpolynext_micro", drop_path=0.0, width=8),
        data=folder(root, factors=(0.8, 1.2)),
        optimizer=SegmentationOptimizerConfig(lr=1e-3, warmup=2, clip_cells=5.0),
        iterations=6,
        batch_size=2,
        evaluate_every=4,
        checkpoint_minutes=0.0,
        log_steps=2,
        precision="float32",
    )
    return replace(config, **changes)


def test_the_learning_rate_falls_from_the_first_iteration_and_warmup_multiplies_it() -> None:
    config = RECIPES["ade20k"]()
    for step in (0, 1, 750, 1499, 1500, 80_000, 159_999, 160_000):
        poly = 1e-4 * (1 - step / 160_000)
        warmup = 1 - (1 - step / 1500) * (1 - 1e-6) if step < 1500 else 1.0
        assert learning_rate(config, step) == pytest.approx(poly * warmup), step
    assert learning_rate(config, 1500) < 1e-4


def test_evaluation_is_in_float32_after_training_in_bf16(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    seen = set()

    class Watched(Segmentation):
        def build_model(self) -> torch.nn.Module:
            model = super().build_model()
            model.head.merge.conv.register_forward_hook(lambda m, _, y: seen.add((m.training, y.dtype)))
            return model

    config = quick(tmp_path / "data", precision="bf16", iterations=2)
    TrainingLoop(Watched(config, ALONE), config, RunFolder(tmp_path / "run"), ALONE, quiet=True).run()
    assert seen == {(True, torch.bfloat16), (False, torch.float32)}


def test_heads_learn_faster_and_scales_do_not_decay() -> None:
    config = RECIPES["ade20k_apolynext"]()
    model = UPerNet("apolynext_tiny", 5, width=8, device="meta")
    groups = build_optimizer(model, config).param_groups
    of = {id(p): g for g in groups for p in g["params"]}
    named = dict(model.named_parameters())
    assert len(of) == len(named)
    assert of[id(named["head.classifier.weight"])]["factor"] == 10
    assert of[id(named["norms.0.bias"])]["factor"] == 1
    decays = {name: of[id(p)]["weight_decay"] for name, p in named.items()}
    assert decays["backbone.model.stem.weight"] == 0.05
    for name in ("norms.0.weight", "head.merge.norm.weight"):
        assert decays[name] == 0
    assert all(decays[n] == 0 for n in named if n.endswith(("logits", "s0", "s1")) or ".norm." in n)
    assert (config.optimizer.clip_grad, config.optimizer.clip_cells) == (5.0, 5.0)


def test_a_run_learns_evaluates_and_predicts(tmp_path: Path, capsys) -> None:
    write_pairs(tmp_path / "data")
    run = train_segmentation(quick(tmp_path / "data"), tmp_path / "run", quiet=True)
    records = RunFolder(run).records()
    assert [r["step"] for r in records if "miou" in r] == [4, 6]
    assert from_yaml((run / "config.yaml").read_text(), kind=SegmentationConfig) == quick(tmp_path / "data")
    assert {f.name for f in run.iterdir()} >= {"curves.png", "tensorboard", "last.safetensors", "environment.json"}
    assert main(["segment", "evaluate", str(run)]) == 0
    assert "3 images: mIoU" in capsys.readouterr().out
    best = max(r["miou"] for r in records if "miou" in r)
    assert json.loads((run / "evaluation.json").read_text())["miou"] == pytest.approx(best)
    image = (tmp_path / "data" / "images" / "val" / "0.png").rename(tmp_path / "0.png")
    shutil.rmtree(tmp_path / "data")  # a network knows its classes without its data
    command = ["segment", "predict", str(run), str(image), "--out", str(tmp_path / "seen"), "--labels"]
    assert main(command) == 0
    with Image.open(tmp_path / "seen" / "0.png") as picture:
        assert picture.width > 40
    with Image.open(tmp_path / "seen" / "0.labels.png") as labels:
        assert labels.size == (40, 30)
        assert labels.getextrema()[1] <= 2
    assert main([*command[:3], str(tmp_path / "0.jpg"), *command[3:]]) == 2
    assert "two images have the same name" in capsys.readouterr().err


def test_weights_without_a_run_predict_by_their_recipe(tmp_path: Path, capsys) -> None:
    recipe = RECIPES["camvid"]()
    model = UPerNet(recipe.model.backbone, len(CAMVID), width=recipe.model.width)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    Image.new("RGB", (60, 40), "gray").save(tmp_path / "gray.png")
    command = ["segment", "predict", "camvid", str(tmp_path / "gray.png"), "--out", str(tmp_path / "seen")]
    assert main([*command, "--checkpoint", str(tmp_path / "weights.safetensors")]) == 0
    assert (tmp_path / "seen" / "gray.png").is_file()
    assert main(command) == 2
    assert "camvid is a recipe, not the folder of a run: give its weights" in capsys.readouterr().err


def test_an_interrupted_run_ends_like_an_uninterrupted_one(tmp_path: Path, monkeypatch) -> None:
    write_pairs(tmp_path / "data")
    config = quick(tmp_path / "data")
    train_segmentation(config, tmp_path / "whole", quiet=True)
    step = TrainingLoop.step

    def interrupted(self, batches) -> None:
        step(self, batches)
        if self.progress.step == 3:
            self.stop.signal = signal.SIGTERM

    monkeypatch.setattr(TrainingLoop, "step", interrupted)
    with pytest.raises(Interrupted, match="polynext segment train --resume"):
        train_segmentation(config, tmp_path / "parts", quiet=True)
    monkeypatch.setattr(TrainingLoop, "step", step)
    train_segmentation(config, tmp_path / "parts", resume=True, quiet=True)
    one, two = (RunFolder(tmp_path / name).load_state()["model"] for name in ("whole", "parts"))
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_segmentation_has_all_that_the_loop_has(tmp_path: Path, capsys) -> None:
    """Accumulation, compilation, averaged weights, diagnostics."""
    write_pairs(tmp_path / "data", count=4)
    config = quick(
        tmp_path / "data",
        iterations=2,
        batch_size=4,
        micro_batch=2,
        evaluate_every=1,
        compile=True,
        ema=EmaConfig(decay=0.5, start=0.5),
        diagnostics=True,
        log_steps=2,
    )
    with torch.compiler.set_stance("force_eager"):  # the graph itself is tested with the models
        run = train_segmentation(config, tmp_path / "run")
    assert "iteration 2: mIoU" in capsys.readouterr().out
    first, last = [r for r in RunFolder(run).records() if "miou" in r]
    assert "ema_miou" not in first and "ema_miou" in last
    assert RunFolder(run).load_state()["average"] is not None
    assert [r["step"] for r in RunFolder(run).records() if "cells" in r] == [2]


def test_evaluation_counts_each_image_once(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    config = quick(tmp_path)
    pairs = load_pairs(config.data, "val")
    model = UPerNet("cpolynext_micro", 3, width=8).eval()
    found = evaluate(model, pairs, config, ALONE)
    assert found.images == 3
    transform = TestTransform(config.data)
    direct = [
        (predict(model, transform.image(i), m.shape, 32, 16), torch.tensor(m)) for i, m in (pairs[j] for j in range(3))
    ]
    assert found == score(direct, 3, ALONE)


def test_two_processes_train_and_count_each_image_once(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", count=4)
    (tmp_path / "config.yaml").write_text(to_yaml(quick(tmp_path / "data", iterations=2, batch_size=4)))
    port = str(20000 + os.getpid() % 20000)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    arguments = ["-m", "polynext", "segment", "train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]
    subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=300)
    weights = tmp_path / "run" / "best.safetensors"
    model = UPerNet("cpolynext_micro", 3, width=8)
    load_segmentation_weights(model, weights)
    config = quick(tmp_path / "data")
    alone = evaluate(model.eval(), load_pairs(config.data, "val"), config, ALONE)
    record = [r for r in RunFolder(tmp_path / "run").records() if "miou" in r][-1]
    assert record["images"] == 4
    assert record["miou"] == pytest.approx(alone.miou, abs=0.2)  # sums in another order


def test_one_image_is_too_few_for_batch_norm(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    with pytest.raises(PolyNeXtError, match="at least two images in each process"):
        Segmentation(quick(tmp_path / "data", batch_size=1), ALONE)


def test_a_backbone_starts_from_a_classifier(tmp_path: Path) -> None:
    classifier = polynext.create_model("cpolynext_micro", num_classes=10)
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    write_pairs(tmp_path / "data")
    config = quick(tmp_path / "data")
    config = replace(config, model=replace(config.model, backbone_weights=tmp_path / "classifier.safetensors"))
    task = Segmentation(config, ALONE)
    torch.testing.assert_close(task.model.backbone.model.stem.weight, classifier.stem.weight)


def test_a_backbone_of_timm_starts_from_a_classifier_too(tmp_path: Path) -> None:
    classifier = timm.create_model("test_convnext")
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    model = UPerNet("test_convnext", 3, width=8)  # a feature extractor with flattened names
    load_backbone(model, tmp_path / "classifier.safetensors")
    torch.testing.assert_close(model.backbone.state_dict()["stem_0.weight"], classifier.stem[0].weight)
    with pytest.raises(PolyNeXtError, match="do not fit the backbone: missing"):
        load_backbone(UPerNet("test_resnet", 3, width=8), tmp_path / "classifier.safetensors")


def test_a_resumed_run_takes_new_rates_and_keeps_its_network(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    config = quick(tmp_path / "data")
    train_segmentation(config, tmp_path / "run", quiet=True)
    wider = replace(config, model=replace(config.model, width=12))
    with pytest.raises(PolyNeXtError, match="is of another network: keep --model unchanged"):
        train_segmentation(wider, tmp_path / "run", resume=True, quiet=True)
    assert from_yaml((tmp_path / "run" / "config.yaml").read_text(), kind=SegmentationConfig) == config
    longer = replace(config, iterations=8, optimizer=replace(config.optimizer, head_factor=3.0, weight_decay=0.5))
    loop = TrainingLoop(Segmentation(longer, ALONE), longer, RunFolder(tmp_path / "run"), ALONE)
    loop.restore(RunFolder(tmp_path / "run").load_state())
    assert {group["factor"] for group in loop.optimizer.param_groups} == {1.0, 3.0}
    assert {group["weight_decay"] for group in loop.optimizer.param_groups} == {0.0, 0.5}


def test_a_run_killed_before_its_first_state_starts_over(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    config = quick(tmp_path / "data", iterations=2)
    RunFolder(tmp_path / "run").create(to_yaml(config))
    RunFolder(tmp_path / "run").log({"step": 1, "loss": 7.0})
    train_segmentation(config, tmp_path / "run", resume=True, quiet=True)
    assert 7.0 not in [r.get("loss") for r in RunFolder(tmp_path / "run").records()]


def test_other_classes_than_the_networks_are_refused(tmp_path: Path, capsys) -> None:
    write_pairs(tmp_path / "data")
    run = train_segmentation(quick(tmp_path / "data", iterations=2), tmp_path / "run", quiet=True)
    (tmp_path / "data" / "classes.txt").write_text("two\none\nthree\n")
    assert main(["segment", "evaluate", str(run)]) == 2
    assert "evaluate it on data of its own classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["segment", "train", "nothing"], "there is no segmentation recipe 'nothing'"),
        (["segment", "train", "camvid", "--data.root", "absent"], "there is no camvid at absent"),
        (["segment", "train", "camvid", "--data.stride", "161"], "a stride of 161 leaves gaps between windows of 160"),
        (["segment", "train", "camvid", "--evaluate-every", "0"], "evaluate-every is 0: give at least 1"),
        (["segment", "train", "camvid", "--iterations", "0"], "iterations is 0: give at least 1"),
        (["segment", "train", "camvid", "--iterations", "99"], "iterations is 99, too few for a warmup of 100"),
        (["segment", "train", "camvid", "--data.factors", "2", "1"], "data.factors is 2 1: give the smaller"),
        (["segment", "train", "camvid", "--data.resize", "0", "9"], "data.resize is 0: give at least 1"),
        (["segment", "train", "camvid", "--data.std", "1", "0", "1"], "data.std is 0.0: give more than 0"),
        (["segment", "train", "--resume", "one", "--out", "two"], "there is no file one/config.yaml"),
        (["segment", "evaluate", "absent"], "absent is neither the folder of a segmentation run nor a recipe"),
        (["segment", "costs", "cpolynext_tiny", "--size", "0", "5"], "size is 0: give at least 1"),
        (["segment", "train", "camvid", "--resume", "absent"], "both the recipe 'camvid' and --resume"),
        (["segment", "dance"], "there is no command 'dance'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
