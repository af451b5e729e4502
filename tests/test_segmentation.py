"""Segmentation: the paper's network, what it is trained and measured on, and the mistakes one can make."""

import json
import os
import random
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import polynext
from polynext.cli import main
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.models.costs import count_macs, count_parameters
from polynext.models.network import Cell
from polynext.segmentation.checkpoints import load_segmentation_weights, rename_segmentation
from polynext.segmentation.config import (
    SegmentationConfig,
    SegmentationDataConfig,
    SegmentationModelConfig,
    SegmentationOptimizerConfig,
)
from polynext.segmentation.data import CAMVID_CLASSES, IGNORED, load_pairs
from polynext.segmentation.engine import (
    SegmentationTrainer,
    build_optimizer,
    evaluate,
    learning_rate,
    pixel_loss,
    train_segmentation,
)
from polynext.segmentation.gradients import limit_cell_gradients
from polynext.segmentation.overlay import draw_overlay, palette
from polynext.segmentation.recipes import RECIPES
from polynext.segmentation.scores import score
from polynext.segmentation.sliding import predict, slide, windows
from polynext.segmentation.transforms import TestTransform, TrainingTransform, fitted_size
from polynext.segmentation.upernet import UPerNet
from polynext.training import Interrupted, from_yaml, to_yaml
from polynext.training.folder import RunFolder

ALONE = Processes(0, 1, torch.device("cpu"))


# The network


@pytest.mark.parametrize(
    ("backbone", "parameters", "macs"),
    [("cpolynext_small", 54, 941), ("apolynext_small", 55, 1121), ("convformer_s18", 54, 925)],
)
def test_cost_is_the_papers(backbone: str, parameters: int, macs: int) -> None:
    """Table 6 prints whole numbers: CPolyNeXt-S has 941.5."""
    model = UPerNet(backbone, 150, device="meta")
    assert round(count_parameters(model) / 1e6) == parameters
    assert abs(count_macs(model, (3, 512, 2048)) / 1e9 - macs) < 0.51


@pytest.mark.parametrize("backbone", ["cpolynext_tiny", "convnextv2_atto", "test_resnet", "cpolynext_lowres"])
def test_any_backbone_with_features(backbone: str) -> None:
    model = UPerNet(backbone, 5, width=16)
    images = torch.randn(2, 3, 64, 96)
    logits, auxiliary = model.train()(images)
    assert logits.shape == auxiliary.shape == (2, 5, 64, 96)
    (pixel_loss(logits, torch.zeros(2, 64, 96, dtype=torch.long)) + auxiliary.mean()).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert model.eval()(images).shape == (2, 5, 64, 96)


def test_segmentation_models_pytorch_takes_our_backbones() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    model = smp.UPerNet(encoder_name="tu-cpolynext_tiny", encoder_weights=None, classes=5, decoder_channels=32)
    assert model.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 5, 64, 64)


def theirs(model: UPerNet) -> dict[str, torch.Tensor]:
    """A state dict as mmsegmentation would write it: our names turned back, for two stages' worth of kinds."""
    back = {
        "head.pyramid.": "decode_head.psp_modules.",
        "head.bottleneck.": "decode_head.bottleneck.",
        "head.lateral.": "decode_head.lateral_convs.",
        "head.smooth.": "decode_head.fpn_convs.",
        "head.merge.": "decode_head.fpn_bottleneck.",
        "head.classifier.": "decode_head.conv_seg.",
        "auxiliary.conv.": "auxiliary_head.convs.0.",
        "auxiliary.classifier.": "auxiliary_head.conv_seg.",
        "norms.": "backbone.extra_norms.",
    }
    written = {}
    for key, value in model.state_dict().items():
        for ours, name in back.items():
            if key.startswith(ours):
                rest = key.removeprefix(ours).replace("norm.", "bn.") if ours != "norms." else key.removeprefix(ours)
                if ours == "head.pyramid.":
                    rest = rest.replace(".", ".1.", 1)
                written[name + rest] = torch.randn_like(value.float()).to(value.dtype)
    return written


def test_published_heads_load_by_name() -> None:
    model = UPerNet("cpolynext_tiny", 7, width=16)
    written = theirs(model)
    renamed = rename_segmentation({"state_dict": written, "meta": {}})
    expected = {k: v for k, v in model.state_dict().items() if not k.startswith("backbone.")}
    assert renamed.keys() == expected.keys()
    assert all(renamed[k].shape == v.shape for k, v in expected.items())
    torch.testing.assert_close(
        renamed["head.pyramid.2.conv.weight"], written["decode_head.psp_modules.2.1.conv.weight"]
    )
    torch.testing.assert_close(renamed["norms.1.bias"], written["backbone.extra_norms.1.bias"])
    with pytest.raises(PolyNeXtError, match=r"entries that no UPerNet has: decode_head\.extra"):
        rename_segmentation(written | {"decode_head.extra": torch.zeros(1)})


def test_a_published_checkpoint_loads_strictly(tmp_path: Path) -> None:
    from tests.test_published import small_checkpoint  # a backbone in the authors' layout

    model = UPerNet("cpolynext_lowres", 7, width=16)
    backbone = {k: v for k, v in small_checkpoint().items() if not k.startswith(("norm.", "proj.", "head."))}
    weights = (
        theirs(model) | {f"backbone.{k}": v for k, v in backbone.items()} | {"backbone.norm.weight": torch.ones(3)}
    )
    torch.save({"state_dict": weights, "meta": {"iter": 160000}}, tmp_path / "uper.pth")
    load_segmentation_weights(model, tmp_path / "uper.pth")
    torch.testing.assert_close(model.backbone.model.stem.weight, backbone["stem.weight"])
    del weights["backbone.stem.weight"]
    torch.save(weights, tmp_path / "part.pth")
    with pytest.raises(PolyNeXtError, match=r"missing backbone\.model\.stem\.weight"):
        load_segmentation_weights(model, tmp_path / "part.pth")


# Windows and scores


@given(st.integers(1, 300), st.integers(1, 64), st.data())
def test_windows_cover_everything(length: int, window: int, data) -> None:
    stride = data.draw(st.integers(1, window))
    seen = np.zeros(length, dtype=int)
    for piece in windows(length, window, stride):
        assert piece.stop - piece.start == min(window, length)
        seen[piece] += 1
    assert seen.min() >= 1


def test_one_window_is_the_whole_image() -> None:
    model = UPerNet("cpolynext_tiny", 4, width=8).eval()
    image = torch.randn(1, 3, 64, 80)
    with torch.no_grad():
        torch.testing.assert_close(slide(model, image, 96, 64), model(image), atol=1e-5, rtol=0)


def test_sliding_averages_what_several_windows_see() -> None:
    """A network that tells each window's mean: where windows overlap, the mean of theirs."""
    image = torch.arange(6.0).reshape(1, 1, 1, 6).repeat(1, 1, 4, 1)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.mean() * torch.ones_like(x)

    found = slide(mean, image, 4, 2)[0, 0, 0]
    torch.testing.assert_close(found, torch.tensor([1.5, 1.5, 2.5, 2.5, 3.5, 3.5]))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31))
def test_miou_is_what_numpy_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 6))
    pairs = []
    for _ in range(3):
        wanted = rng.integers(0, classes, (5, 7))
        wanted[rng.random((5, 7)) < 0.3] = IGNORED
        pairs.append((rng.integers(0, classes, (5, 7)), wanted))
    found = score([(torch.tensor(p), torch.tensor(w)) for p, w in pairs], classes, ALONE)
    predicted, wanted = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    predicted, wanted = predicted[wanted != IGNORED], wanted[wanted != IGNORED]
    if not len(wanted):
        return
    ious = []
    for c in range(classes):
        union = ((predicted == c) | (wanted == c)).sum()
        ious.append(100 * ((predicted == c) & (wanted == c)).sum() / union if union else np.nan)
    np.testing.assert_allclose(found.iou, ious)
    assert found.miou == pytest.approx(np.nanmean(ious))
    assert found.accuracy == pytest.approx(100 * (predicted == wanted).mean())
    assert found.images == 3


# Gradients


def parameter_gradients(limit: float | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = polynext.create_model("cpolynext_micro", num_classes=4)
    if limit:
        limit_cell_gradients(model, limit)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def test_small_gradients_stay_as_they_are() -> None:
    pairs = zip(parameter_gradients(1e9), parameter_gradients(None), strict=True)
    assert all(torch.equal(limited, free) for limited, free in pairs)


def test_large_gradients_are_held() -> None:
    seen: list[float] = []
    model = polynext.create_model("cpolynext_micro", num_classes=4)
    limit_cell_gradients(model, 5.0)
    for cell in (m for m in model.modules() if isinstance(m, Cell)):
        cell.register_forward_hook(
            lambda m, x, y: y.register_hook(lambda g: seen.append(g.norm().item())) and None
        )  # after the limit
    (1e6 * model(torch.randn(2, 3, 16, 16)).square().sum()).backward()
    assert len(seen) == 3
    assert max(seen) <= 5.0 * (1 + 1e-5)
    assert max(seen) > 4.9
    with pytest.raises(PolyNeXtError, match="no cells to limit"):
        limit_cell_gradients(nn.Linear(2, 2), 5.0)


# Data


def write_pairs(root: Path, count: int = 3, size: tuple[int, int] = (40, 30)) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (root / "images" / split).mkdir(parents=True)
        (root / "masks" / split).mkdir(parents=True)
        for i in range(count):
            mask = rng.integers(0, 3, (size[1] // 10, size[0] // 10)).repeat(10, 0).repeat(10, 1).astype(np.uint8)
            image = (80 * mask[..., None] + rng.integers(0, 60, (*mask.shape, 3))).astype(np.uint8)
            mask[:2] = IGNORED
            Image.fromarray(image).save(root / "images" / split / f"{i}.png")
            Image.fromarray(mask).save(root / "masks" / split / f"{i}.png")
    (root / "classes.txt").write_text("one\ntwo\nthree\n")


def folder(root: Path, **options) -> SegmentationDataConfig:
    return SegmentationDataConfig(name="folder", root=root, resize=(40, 30), crop=32, stride=16, workers=0, **options)


def test_folders_of_images_and_masks(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    pairs = load_pairs(folder(tmp_path), "train")
    image, mask = pairs[0]
    assert (len(pairs), pairs.classes) == (3, ("one", "two", "three"))
    assert image.size == (40, 30)
    assert mask.dtype == np.uint8
    assert set(np.unique(mask)) <= {0, 1, 2, IGNORED}


def break_label(root: Path) -> None:
    Image.fromarray(np.full((30, 40), 3, np.uint8)).save(root / "masks" / "train" / "1.png")


def break_size(root: Path) -> None:
    Image.fromarray(np.zeros((30, 41), np.uint8)).save(root / "masks" / "train" / "1.png")


def break_colour(root: Path) -> None:
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(root / "masks" / "train" / "1.png")


def break_file(root: Path) -> None:
    (root / "masks" / "train" / "1.png").write_bytes(b"no image")


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (break_label, r"train/1\.png has the label 3, of none of the 3 classes"),
        (break_size, r"train/1\.png has an image of 40x30 and a mask of 41x30 pixels"),
        (break_colour, r"train/1\.png has a mask with colours"),
        (break_file, r"train/1\.png cannot be read as an image"),
        (lambda root: (root / "masks" / "train" / "1.png").unlink(), r"train/1\.png has no mask in .*masks/train"),
        (lambda root: (root / "classes.txt").unlink(), r"has no classes\.txt"),
    ],
)
def test_bad_pairs_are_named(tmp_path: Path, harm, sentence: str) -> None:
    write_pairs(tmp_path)
    harm(tmp_path)
    with pytest.raises(PolyNeXtError, match=sentence):
        load_pairs(folder(tmp_path), "train")[1]


def test_ade20k_counts_from_one(tmp_path: Path) -> None:
    (tmp_path / "images" / "training").mkdir(parents=True)
    (tmp_path / "annotations" / "training").mkdir(parents=True)
    stored = np.array([[0, 1, 150]], np.uint8)
    Image.fromarray(np.zeros((1, 3, 3), np.uint8)).save(tmp_path / "images" / "training" / "ADE_train_1.jpg")
    Image.fromarray(stored).save(tmp_path / "annotations" / "training" / "ADE_train_1.png")
    lines = ["Idx\tRatio\tTrain\tVal\tName"] + [f"{i}\t0.1\t1\t1\tname{i}, other" for i in range(1, 151)]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(lines))
    pairs = load_pairs(SegmentationDataConfig(root=tmp_path), "train")
    assert pairs[0][1].tolist() == [[IGNORED, 0, 149]]
    assert (pairs.classes[0], pairs.classes[149]) == ("name1", "name150")
    Image.fromarray(np.array([[0, 1, 151]], np.uint8)).save(tmp_path / "annotations" / "training" / "ADE_train_1.png")
    with pytest.raises(PolyNeXtError, match="has the label 151"):
        pairs[0]


def test_camvid_arrays(tmp_path: Path) -> None:
    images, masks = np.zeros((2, 4, 5, 3), np.uint8), np.full((2, 4, 5), 11, np.uint8)
    masks[0, 0] = 3
    np.savez(tmp_path / "camvid.npz", train_x=images, train_y=masks)
    config = SegmentationDataConfig(name="camvid", root=tmp_path / "camvid.npz")
    pairs = load_pairs(config, "train")
    assert pairs.classes == CAMVID_CLASSES
    assert set(np.unique(pairs[0][1])) == {3, IGNORED}
    with pytest.raises(PolyNeXtError, match="has no val_x"):
        load_pairs(config, "val")
    with pytest.raises(PolyNeXtError, match="there is no camvid at"):
        load_pairs(replace(config, root=tmp_path / "absent"), "train")


def test_training_crops_keep_image_and_mask_together() -> None:
    """Each pixel's colour tells its label, before and after."""
    mask = np.random.default_rng(0).integers(0, 4, (10, 14)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    image = Image.fromarray(np.stack([60 * mask] * 3, axis=2))
    config = SegmentationDataConfig(
        resize=(112, 80), factors=(1.0, 1.0), crop=48, distortion=False, mean=(0.0,) * 3, std=(1.0,) * 3
    )
    transform = TrainingTransform(config)
    for seed in range(20):
        random.seed(seed)
        pixels, labels = transform(image, mask)
        assert pixels.shape == (3, 48, 48)
        torch.testing.assert_close((pixels[0] * 255).round().long(), 60 * labels)


def test_small_images_are_padded_and_the_padding_does_not_count() -> None:
    config = SegmentationDataConfig(resize=(20, 20), factors=(1.0, 1.0), crop=32)
    pixels, labels = TrainingTransform(config)(Image.new("RGB", (20, 10)), np.zeros((10, 20), np.uint8))
    assert pixels.shape == (3, 32, 32)
    assert (labels == IGNORED).sum() == 32 * 32 - 20 * 10
    assert (pixels[:, 10:] == 0).all()


def test_a_crop_of_one_class_is_drawn_again() -> None:
    mask = np.zeros((40, 400), np.uint8)
    mask[:, 380:] = 1
    config = SegmentationDataConfig(resize=(400, 40), factors=(1.0, 1.0), crop=40)
    kept = []
    for seed in range(60):
        random.seed(seed)
        _, labels = TrainingTransform(config).crop(np.zeros((40, 400, 3)), mask)
        kept.append((labels == 1).any())
    free = []
    for seed in range(60):
        random.seed(seed)
        start = random.randint(0, 0), random.randint(0, 360)
        free.append(start[1] > 340)
    assert sum(kept) > 2 * sum(free)


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_images_fit_where_they_should(width: int, height: int) -> None:
    new = fitted_size((width, height), 2048, 512)
    assert max(new) <= 2048
    assert min(new) <= 512
    assert max(new) == 2048 or min(new) == 512


# A run


def quick(root: Path, **changes) -> SegmentationConfig:
    config = SegmentationConfig(
        model=SegmentationModelConfig(backbone="cpolynext_micro", drop_path=0.0, width=8),
        data=folder(root, factors=(0.8, 1.2)),
        optimizer=SegmentationOptimizerConfig(lr=1e-3, warmup=2, clip_cells=5.0),
        iterations=6,
        batch_size=2,
        evaluate_every=4,
        save_every=2,
        log_steps=2,
        precision="float32",
    )
    return replace(config, **changes)


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    config = RECIPES["ade20k"]()
    assert learning_rate(config, 0) == pytest.approx(1e-10)
    assert learning_rate(config, 1500) == pytest.approx(1e-4)
    assert learning_rate(config, (160_000 + 1500) // 2) == pytest.approx(5e-5)
    assert learning_rate(config, 160_000) == 0


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
    image = tmp_path / "data" / "images" / "val" / "0.png"
    assert main(["segment", "predict", str(image), "--run", str(run), "--out", str(tmp_path / "seen")]) == 0
    with Image.open(tmp_path / "seen" / "0.png") as picture:
        assert picture.width > 40


def test_an_interrupted_run_ends_like_another(tmp_path: Path, monkeypatch) -> None:
    write_pairs(tmp_path / "data")
    config = quick(tmp_path / "data")
    train_segmentation(config, tmp_path / "whole", quiet=True)
    step = SegmentationTrainer.train_step

    def interrupted(self, images, labels) -> float:
        loss = step(self, images, labels)
        if self.step == 3:
            self.stop.signal = signal.SIGTERM
        return loss

    monkeypatch.setattr(SegmentationTrainer, "train_step", interrupted)
    with pytest.raises(Interrupted, match="polynext segment train --resume"):
        train_segmentation(config, tmp_path / "parts", quiet=True)
    monkeypatch.setattr(SegmentationTrainer, "train_step", step)
    train_segmentation(config, tmp_path / "parts", resume=True, quiet=True)
    one, two = (RunFolder(tmp_path / name).load_state()["model"] for name in ("whole", "parts"))
    assert all(torch.equal(one[k], two[k]) for k in one)


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
    assert record["miou"] == pytest.approx(alone.miou, abs=0.2)  # sums in another order


def test_one_image_is_too_few_for_batch_norm(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    with pytest.raises(PolyNeXtError, match="at least two images in each process"):
        SegmentationTrainer(quick(tmp_path / "data", batch_size=1), RunFolder(tmp_path / "run"), ALONE)


def test_a_backbone_starts_from_a_classifier(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    classifier = polynext.create_model("cpolynext_micro", num_classes=10)
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    write_pairs(tmp_path / "data")
    config = quick(tmp_path / "data")
    config = replace(config, model=replace(config.model, backbone_weights=tmp_path / "classifier.safetensors"))
    trainer = SegmentationTrainer(config, RunFolder(tmp_path / "run"), ALONE)
    torch.testing.assert_close(trainer.model.backbone.model.stem.weight, classifier.stem.weight)


def test_recipes_survive_yaml() -> None:
    for make in RECIPES.values():
        assert from_yaml(to_yaml(make()), kind=SegmentationConfig) == make()


def test_overlay_names_what_it_shows() -> None:
    labels = np.zeros((60, 80), np.uint8)
    labels[:, 40:] = 2
    labels[:5] = IGNORED
    image = Image.new("RGB", (80, 60), "white")
    picture = np.asarray(draw_overlay(image, labels, ("one", "two", "three"), strength=1.0))
    colours = palette(3)
    assert (picture[30, 10] == colours[0]).all()
    assert (picture[30, 70] == colours[2]).all()
    assert (picture[2, 10] == 255).all()
    assert not (picture == colours[1]).all(axis=2).any()
    assert len({tuple(c) for c in palette(150)}) == 150


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["segment", "train", "nothing"], "there is no segmentation recipe 'nothing'"),
        (["segment", "train", "camvid"], "there is no camvid at"),
        (["segment", "evaluate", "absent"], "there is no absent/config.yaml"),
        (["segment", "dance"], "there is no 'dance'"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, capsys) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_network_without_feature_maps_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(PolyNeXtError, match="there is no backbone 'nonet'"):
            UPerNet("nonet", 3)
