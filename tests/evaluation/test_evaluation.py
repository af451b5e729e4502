"""Evaluation: exact counts, named mistakes, corruptions that corrupt."""

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import polynext  # noqa: F401  (registers the models)
from polynext import paper
from polynext.cli import main
from polynext.cli.evaluate import show
from polynext.data import DataConfig, Preprocessing
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.evaluation.corruptions import CORRUPTIONS, corrupt
from polynext.evaluation.measure import evaluate, paper_figure
from polynext.evaluation.scores import ALEXNET_ERRORS, mean_corruption_error, score
from polynext.evaluation.sets import open_corrupted, open_set, synsets
from polynext.paper import published_figure
from polynext.recipes import recipe
from polynext.runs import Run, digest
from polynext.training import ModelConfig, TrainConfig, train

ALONE = Processes(0, 1, torch.device("cpu"))
COLOUR = Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short digits run."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = recipe("digits")
    train(replace(config, epochs=2, schedule=replace(config.schedule, warmup_epochs=1)), folder, quiet=True)
    return folder


class Brightest(nn.Module):
    """A fixed classifier that the tests can follow: by the mean of the image."""

    def __init__(self, classes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -(x.mean(dim=(1, 2, 3))[:, None] - self.weight).abs()


@pytest.mark.parametrize("batch_size, workers", [(1, 0), (7, 0), (64, 2), (1000, 1)])
def test_accuracy_does_not_depend_on_batches_or_workers(batch_size: int, workers: int) -> None:
    chosen = open_set("digits", DataConfig())
    model = Brightest(10)
    assert score(model, chosen, ALONE, batch_size, workers) == score(model, chosen, ALONE)


def test_processes_share_the_images_exactly() -> None:
    chosen = open_set("digits", DataConfig())
    whole = score(Brightest(10), chosen, ALONE)
    parts = [score(Brightest(10), chosen, LoneShare(rank, 3)) for rank in range(3)]
    assert whole.images == 364 == sum(p.images for p in parts)
    assert whole.right == sum(p.right for p in parts)
    assert whole.class_right == np.sum([p.class_right for p in parts], axis=0).tolist()


def test_a_terminal_gets_a_progress_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation on ImageNet may take hours."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    score(Brightest(10), open_set("digits", DataConfig()), ALONE)
    assert "0/364" in capsys.readouterr().err
    score(Brightest(10), open_set("digits", DataConfig()), LoneShare(1, 2))
    assert not capsys.readouterr().err


class LoneShare(Processes):
    """One of several processes whose sums are added up by the test."""

    def __init__(self, rank: int, count: int):
        super().__init__(rank, count, torch.device("cpu"))

    def total(self, *values: float) -> list[float]:
        return list(values)


def test_scores_equal_a_direct_count() -> None:
    chosen = open_set("digits", DataConfig())
    model, pictures = Brightest(10), [chosen.examples.image(i) for i in range(len(chosen.examples))]
    with torch.no_grad():
        logits = model(torch.stack([torch.from_numpy(chosen.preprocessing(picture)) for picture in pictures]))
    order = logits.argsort(dim=1, descending=True).numpy()
    found = score(model, chosen, ALONE)
    assert found.right == (order[:, 0] == chosen.examples.labels).sum()
    assert found.right_in_5 == (order[:, :5] == chosen.examples.labels[:, None]).any(axis=1).sum()


def image_folders(root: Path, classes: list[str]) -> None:
    for i, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (i % 256, 0, 0)).save(root / name / f"ILSVRC2012_val_{i + 1:08d}.JPEG")


def test_imagenet_variants_are_scored_on_their_classes(tmp_path: Path) -> None:
    data = DataConfig(root=tmp_path / "a", preprocessing=COLOUR)
    image_folders(tmp_path / "a", synsets("imagenet-a"))
    chosen = open_set("imagenet-a", data)
    assert chosen.among is not None and len(chosen.among) == 200
    assert [synsets("imagenet")[i] for i in chosen.among[:3]] == synsets("imagenet-a")[:3]
    assert score(Brightest(1000), chosen, ALONE).images == 200
    with pytest.raises(PolyNeXtError, match="the network has 10 classes: this set needs ImageNet's 1000"):
        score(Brightest(10), chosen, ALONE)
    image_folders(tmp_path / "r", synsets("imagenet-r"))
    assert open_set("imagenet-r", replace(data, root=tmp_path / "r")).preprocessing.interpolation == "bilinear"


def test_imagenet_may_come_as_arrays(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 999])
    np.savez(tmp_path / "x.npz", test_x=images, test_y=labels, names=synsets("imagenet"))
    chosen = open_set("imagenet", DataConfig(root=tmp_path / "x.npz", preprocessing=COLOUR))
    assert chosen.examples.labels.tolist() == [0, 999]


def test_an_imagenet_variant_does_not_use_the_folder_of_imagenet(tmp_path: Path) -> None:
    config = TrainConfig(data=DataConfig(name="imagenet", root=tmp_path, preprocessing=COLOUR))
    run = Run("none", Brightest(1000), COLOUR, config=config)
    for name in ("imagenet-a", "imagenet-c"):
        with pytest.raises(PolyNeXtError, match=f"{name} needs its folder as `root`: none was given"):
            evaluate(run, name)


def test_wrong_folders_are_reported(tmp_path: Path) -> None:
    data = DataConfig(root=tmp_path / "a", preprocessing=COLOUR)
    image_folders(tmp_path / "a", synsets("imagenet-a")[1:])
    with pytest.raises(PolyNeXtError, match=f"lacks 1 of 200 classes, such as {synsets('imagenet-a')[0]}"):
        open_set("imagenet-a", data)
    image_folders(tmp_path / "a", ["n99999999"])
    with pytest.raises(PolyNeXtError, match="not classes of this data set: n99999999"):
        open_set("imagenet-a", data)
    (tmp_path / "a" / synsets("imagenet-a")[0]).mkdir()
    with pytest.raises(PolyNeXtError, match="classes without images"):
        open_set("imagenet-a", data)
    with pytest.raises(PolyNeXtError, match=r"there is no .*gaussian_noise.*needs all 15 corruptions"):
        open_corrupted("imagenet-c", data, "gaussian_noise", 1)
    with pytest.raises(PolyNeXtError, match="the network has 7 classes and the data set 10"):
        score(Brightest(7), open_set("digits", DataConfig()), ALONE)


def test_the_mean_corruption_error_equals_the_papers() -> None:
    assert mean_corruption_error({c: [e] * 5 for c, e in ALEXNET_ERRORS.items()}, ALEXNET_ERRORS) == pytest.approx(100)
    half = {c: [e / 2] * 5 for c, e in ALEXNET_ERRORS.items()}
    assert mean_corruption_error(half, ALEXNET_ERRORS) == pytest.approx(50)
    with pytest.raises(KeyError):
        mean_corruption_error({"snow": [1.0]}, ALEXNET_ERRORS)
    assert list(ALEXNET_ERRORS) == list(CORRUPTIONS)


def test_published_accuracies_agree_with_each_other() -> None:
    assert published_figure("cpolynext_small", "imagenet-c") == 47.9
    assert published_figure("cpolynext_lowres", "cifar10") == 97.1
    assert published_figure("resnet18", "imagenet") is None
    assert published_figure("cpolynext_small_bn", "imagenet") == 82.7
    assert published_figure("convformer_b36", "imagenet-a") == 40.1  # in the text only
    robustness = {row["model"]: row["imagenet"] for row in paper.rows("2")}
    for row in paper.main_results():
        assert robustness.get(row["model"], row["top1"]) == row["top1"], row
    costs = {row["model"]: row["flops"] for row in paper.main_results()}
    for row in paper.rows("S4"):
        assert row["flops"] == costs[row["model"]], row


def test_the_papers_accuracy_is_shown_for_its_weights_only() -> None:
    assert published_figure("convnext_tiny.fb_in1k", "imagenet") == 82.1
    assert published_figure("convnext_tiny.in12k_ft_in1k", "imagenet") is None
    assert published_figure("cpolynext_lowres.svhn", "svhn") == 98.1
    assert published_figure("cpolynext_lowres.svhn", "cifar10") is None
    network = nn.Identity()
    network.pretrained_cfg = {}
    plain = Run("cpolynext_tiny", network, Preprocessing())
    trained = replace(plain, config=recipe("cpolynext_tiny"))
    assert paper_figure(plain, "imagenet") is None, "untrained"
    assert paper_figure(replace(plain, tag="in1k"), "imagenet") == 80.2
    assert paper_figure(replace(plain, name="convnext_tiny", tag="in12k_ft_in1k"), "imagenet") is None
    assert paper_figure(trained, "imagenet") == 80.2
    model = trained.config.model
    for other in (replace(model, pretrained=True), replace(model, variant="addition")):
        assert paper_figure(replace(trained, config=replace(trained.config, model=other)), "imagenet") is None
    elsewhere = replace(trained.config, data=replace(trained.config.data, name="folder"))
    assert paper_figure(replace(trained, config=elsewhere), "imagenet") is None


def test_weights_that_are_not_the_papers_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"model": "convnext_tiny.in12k_ft_in1k", "weights": "published", "data": "imagenet", "published": None}
    record |= {"published_of": "convnext_tiny.fb_in1k", "images": 1, "top1": 84.0, "top5": 97.0}
    show(record, per_class=False, target=Path("x.json"))
    assert "The paper's accuracy is that of other weights: give convnext_tiny.fb_in1k" in capsys.readouterr().out


def test_the_papers_models_are_timms() -> None:
    names = [name for model in paper.paper()["names"] if (name := paper.weights_name(model, "cifar10"))]
    assert [name for name in names if not timm.is_model(name.split(".")[0])] == []
    assert [name for name in names if "." in name and not timm.models.is_model_pretrained(name)] == []


def photograph(size: int, channels: int = 3) -> np.ndarray:
    """Something with edges, gradients and colour."""
    y, x = np.mgrid[:size, :size] / size
    planes = [0.5 + 0.4 * np.sin(9 * x + 2 * c) * np.cos(7 * y) + 0.1 * (x > 0.5) for c in range(channels)]
    return np.round(np.clip(np.stack(planes, axis=2), 0, 1) * 255).astype(np.uint8)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [8, 32, 96])
def test_corruptions_increase_with_severity(name: str, size: int) -> None:
    image = photograph(size)
    damage = []
    for severity in range(1, 6):
        results = [corrupt(image, name, severity, seed) for seed in range(5)]
        assert all(r.shape == image.shape and r.dtype == np.uint8 for r in results)
        damage.append(np.mean([np.square(r.astype(float) - image).mean() for r in results]))
    assert min(damage) > 0 and damage[4] > damage[0]


@given(st.sampled_from(list(CORRUPTIONS)), st.integers(1, 5), st.integers(0, 9), st.sampled_from([(7, 9), (12, 5, 3)]))
@settings(deadline=None, max_examples=40)
def test_corruptions_are_reproducible_for_any_shape(name: str, severity: int, seed: int, shape: tuple) -> None:
    image = np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)
    once, twice = (corrupt(image, name, severity, seed) for _ in range(2))
    assert once.shape == shape
    np.testing.assert_array_equal(once, twice)


def test_unknown_corruptions_are_refused() -> None:
    with pytest.raises(PolyNeXtError, match="no corruption 'rain' of severity 3"):
        corrupt(photograph(8), "rain", 3)
    with pytest.raises(PolyNeXtError, match="of severity 6"):
        corrupt(photograph(8), "snow", 6)


def test_a_run_is_evaluated_and_recorded(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--per-class"]) == 0
    shown = capsys.readouterr().out
    record = json.loads((run / "best.digits.json").read_text())
    assert record["images"] == 364 and f"{record['top1']:.2f}" in shown
    assert sum(c["right"] for c in record["classes"].values()) == record["right"]
    best = max(json.loads(line).get("test_accuracy", 0) for line in (run / "metrics.jsonl").read_text().splitlines())
    assert record["top1"] == pytest.approx(best)


def test_other_weights_of_a_run_can_be_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--checkpoint", str(run / "last.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == digest(run / "last.safetensors")
    assert (run / "last.digits.json").is_file()
    assert main(["evaluate", str(run), "--pretrained"]) == 2
    assert "leave out --pretrained" in capsys.readouterr().err


def test_a_run_of_a_timm_model_is_used_like_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And without its data."""
    for label in "ab":
        for split in ("train", "val"):
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for i in range(4):
                Image.fromarray(photograph(32)).save(tmp_path / "data" / split / label / f"{i}.png")
    config = replace(recipe("digits"), epochs=2, batch_size=4, micro_batch=4)
    data = DataConfig(name="folder", root=tmp_path / "data", preprocessing=replace(COLOUR, size=32, resize=32))
    train(replace(config, data=data, model=ModelConfig(name="test_resnet")), tmp_path / "run", quiet=True)
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 8
    picture = (tmp_path / "data" / "val" / "a" / "0.png").rename(tmp_path / "0.png")
    shutil.rmtree(tmp_path / "data")
    assert main(["predict", str(tmp_path / "run"), str(picture), "--json"]) == 0
    assert {c["class"] for c in json.loads(capsys.readouterr().out)["classes"]} == {"a", "b"}


def test_an_interrupted_evaluation_of_corrupted_digits_resumes(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from polynext.evaluation import measure

    real, calls = measure.score, []

    def stops(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(measure, "CORRUPTIONS", {n: CORRUPTIONS[n] for n in ("contrast", "pixelate")})
    monkeypatch.setattr(measure, "score", stops)
    assert main(["evaluate", str(run), "--data", "digits-c"]) == 130
    partial = run / "best.digits-c.partial.json"
    assert len(json.loads(partial.read_text())["done"]) == 3
    assert main(["evaluate", str(run), "--data", "digits-c"]) == 0
    assert len(calls) == 4 + 7 and not partial.exists()
    record = json.loads((run / "best.digits-c.json").read_text())
    assert len(record["corruptions"]) == 10 and "mce" not in record
    assert "not comparable with the released ImageNet-C" in capsys.readouterr().out


def test_evaluation_mistakes_are_messages(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (["nonesuch"], "is not a model, the folder of a run or a weights file"),
        ([str(run), "--data", "cats"], "there is no evaluation set 'cats'"),
        (["digits", "--data", "imagenet"], "imagenet needs its folder as --root"),
        (["cpolynext_tiny", "--checkpoint", str(run / "best.safetensors")], "holds weights of cpolynext_nano"),
        (["resnet18", "--checkpoint", str(tmp_path / "x.pt")], "there is no file"),
        ([str(run), "--batch-size", "0"], "batch-size is 0: give at least 1"),
        ([str(run), "--workers", "-1"], "workers is -1: give at least 0"),
        ([str(run), "--out", str(tmp_path)], "is a folder: give a file"),
        ([str(run), "--out", str(run / "config.yaml" / "x.json")], "config.yaml is not a folder"),
    ]:
        assert main(["evaluate", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_images_of_all_kinds_are_read(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grey = Image.fromarray(photograph(16)[:, :, 0])
    pictures = {
        "grey.png": grey,
        "alpha.png": grey.convert("RGBA"),
        "palette.gif": grey.convert("P"),
        "cmyk.jpg": grey.convert("CMYK"),
        "deep.png": Image.fromarray((photograph(16)[:, :, 0].astype(np.uint16)) * 257),
    }
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
    turned = Image.Exif()
    turned[0x0112] = 6
    grey.rotate(90).save(tmp_path / "turned.png", exif=turned)
    names = [*pictures, "turned.png"]
    assert main(["predict", str(run), *(str(tmp_path / n) for n in names), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    chances = [{c["class"]: c["probability"] for c in f["classes"]} for f in found]
    for name, other in zip(names, chances, strict=True):
        if name != "cmyk.jpg":  # lossy
            assert other == pytest.approx(chances[0], abs=0.02), name
    assert sum(chances[0].values()) <= 1 + 1e-6 and len(chances[0]) == 5


def test_unreadable_images_do_not_stop_the_rest(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(photograph(16)).save(tmp_path / "good.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:100])
    (tmp_path / "text.png").write_text("no picture")
    assert main(["predict", str(run), str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "good.png: " in shown.out and len(shown.out.splitlines()) == 1
    assert "cut.png cannot be read" in shown.err and "text.png cannot be read" in shown.err
    data = io.BytesIO((tmp_path / "good.png").read_bytes())
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": data}))
    assert main(["predict", str(run), "-", "--top", "1"]) == 0
    assert capsys.readouterr().out.startswith("-: ")
    assert main(["predict", str(run), "absent.png"]) == 2
    assert main(["predict", "cpolynext_nano", str(tmp_path / "good.png")]) == 2
    assert "has no trained weights" in capsys.readouterr().err
