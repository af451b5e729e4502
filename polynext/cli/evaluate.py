"""`polynext evaluate`."""

import hashlib
import json as jsonlib
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import tyro
from tqdm import tqdm

import polynext
from polynext.cli.runs import load_run
from polynext.cli.table import table
from polynext.data import DataConfig
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from polynext.evaluation.scores import ALEXNET_ERRORS, Scores, mean_corruption_error, score
from polynext.evaluation.sets import ALL_NAMES, corrupted_folder, open_corrupted, open_set
from polynext.models.checkpoints import identify, load_weights, model_for, read_weights
from polynext.paper import published_figure


@dataclass(frozen=True)
class Subject:
    """What is evaluated: a network, its weights and how its images are prepared."""

    name: str
    model: Any
    weights: str  # a hash, or what they are instead of trained
    checkpoint: Path | None
    data: DataConfig


def main(
    model: Annotated[str, tyro.conf.Positional],
    data: str = "",
    root: Path | None = None,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    batch_size: int = 64,
    workers: int = 0,
    per_class: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Measure how often a network is right, and show the paper's figure beside it.

    Works for our models and for any of timm's; for several processes, under torchrun. Sets ending in -c are corrupted
    in 15 ways at 5 severities: imagenet-c from its files, with the mCE; the others on the fly by our own corruptions,
    whose figures are not comparable with the released ImageNet-C. An interrupted evaluation of such a set goes on where
    it was.

    Args:
        model: a model's name, or the folder of a finished training run.
        data: digits, cifar10, svhn, tiny-imagenet, folder, imagenet, imagenet-real, imagenet-v2, imagenet-a,
            imagenet-r, imagenet-sketch, imagenet-c, or digits-c, cifar10-c and so on; a run's own data by default.
        root: folder of the data, or a .npz file.
        checkpoint: weights, ours or published; a run's best by default.
        pretrained: fetch the published weights of the model instead.
        batch_size: images at a time; the result does not depend on it.
        workers: processes that prepare images.
        per_class: show the accuracy of every class.
        out: the JSON file to write; beside the checkpoint by default.
        json: print the JSON instead of a table.
    """
    with processes() as group:
        subject = load_subject(model, checkpoint, pretrained, group)
        name = data or subject.data.name
        if name not in ALL_NAMES:
            raise PolyNeXtError(f"there is no evaluation set {name!r}: choose one of {', '.join(ALL_NAMES)}.")
        config = replace(subject.data, root=root or (subject.data.root if name.startswith(subject.data.name) else None))
        target = out or result_file(subject, name)
        if name.endswith("-c"):
            found = evaluate_corrupted(subject, name, config, group, batch_size, workers, target)
        else:
            found = evaluate_clean(subject, name, config, group, batch_size, workers)
        if not group.first:
            return
        record = {**header(subject, name, config), **found}
        if target:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(jsonlib.dumps(record, indent=2))
        if json:
            print(jsonlib.dumps(record, indent=2))
        else:
            show(record, per_class, target)


def load_subject(name: str, checkpoint: Path | None, pretrained: bool, group: Processes) -> Subject:
    if Path(name).is_dir():
        run = load_run(Path(name))
        best = Path(name) / "best.safetensors"
        return Subject(run.config.model.name, run.model.to(group.device), digest(best), best, run.config.data)
    if not timm.is_model(name):
        raise PolyNeXtError(f"{name!r} is neither a model nor the folder of a run: see `polynext models`.")
    if checkpoint is not None and name.split(".")[0] in polynext.list_models():
        weights = read_weights(checkpoint)
        if identify(weights) != name.split(".")[0]:
            raise PolyNeXtError(f"{checkpoint} holds weights of {identify(weights)}, not of {name}.")
        model: Any = model_for(name.split(".")[0], weights, device="cpu")
    else:
        model = timm.create_model(name, pretrained=pretrained)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    weights_name = digest(checkpoint) if checkpoint else "published" if pretrained else "untrained"
    return Subject(name, model.to(group.device), weights_name, checkpoint, preprocessing(model))


def preprocessing(model: Any) -> DataConfig:
    """What a timm model says about its images."""
    given = timm.data.resolve_model_data_config(model)
    size = given["input_size"][-1]
    return DataConfig(
        name="imagenet",
        image_size=size,
        evaluation_resize=int(size / given["crop_pct"] + 1e-6),
        evaluation_interpolation=given["interpolation"],
        mean=tuple(given["mean"]),
        std=tuple(given["std"]),
    )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def result_file(subject: Subject, data: str) -> Path | None:
    if subject.checkpoint is None:
        return None
    return subject.checkpoint.with_name(f"{subject.checkpoint.stem}.{data}.json")


def header(subject: Subject, data: str, config: DataConfig) -> dict[str, Any]:
    return {
        "model": subject.name,
        "weights": subject.weights,
        "data": data,
        "root": str(config.root) if config.root else None,
        "published": published_figure(subject.name, data),
        "command": " ".join(["polynext", *sys.argv[1:]]),
        "versions": {
            "polynext": polynext.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }


def evaluate_clean(
    subject: Subject, name: str, config: DataConfig, group: Processes, batch_size: int, workers: int
) -> dict[str, Any]:
    chosen = open_set(name, config)
    found = score(subject.model, chosen, group, batch_size, workers)
    classes = {
        label: {"images": n, "right": r}
        for label, n, r in zip(chosen.examples.classes, found.class_images, found.class_right, strict=True)
    }
    return {**counts(found), "classes": classes}


def counts(found: Scores) -> dict[str, Any]:
    return {
        "images": found.images,
        "right": found.right,
        "right_in_5": found.right_in_5,
        "top1": found.top1,
        "top5": found.top5,
    }


def evaluate_corrupted(
    subject: Subject,
    name: str,
    config: DataConfig,
    group: Processes,
    batch_size: int,
    workers: int,
    target: Path | None,
) -> dict[str, Any]:
    """All corruptions and severities. What is done is kept in a file until all is."""
    partial = target.with_suffix(".partial.json") if target else None
    done: dict[str, dict[str, Any]] = {}
    if partial and partial.is_file():
        kept = jsonlib.loads(partial.read_text())
        done = kept["done"] if kept["weights"] == subject.weights else {}
    tasks = [(c, s) for c in CORRUPTIONS for s in SEVERITIES]
    if name == "imagenet-c":
        for task in tasks:  # before an hour's work is lost to a missing folder
            corrupted_folder(config, *task)
    for corruption, severity in tqdm(tasks, unit="set", leave=False, disable=None if group.first else True):
        key = f"{corruption}/{severity}"
        if key in done:
            continue
        chosen = open_corrupted(name, config, corruption, severity)
        done[key] = counts(score(subject.model, chosen, group, batch_size, workers))
        if partial and group.first:
            partial.write_text(jsonlib.dumps({"weights": subject.weights, "done": done}))
    if partial and group.first:
        partial.unlink(missing_ok=True)
    errors = {c: [100 - done[f"{c}/{s}"]["top1"] for s in SEVERITIES] for c in CORRUPTIONS}
    mean = sum(map(sum, errors.values())) / (len(CORRUPTIONS) * len(SEVERITIES))
    found: dict[str, Any] = {"corruptions": done, "mean_error": mean}
    if name == "imagenet-c":
        found["mce"] = mean_corruption_error(errors, ALEXNET_ERRORS)
    return found


def show(record: dict[str, Any], per_class: bool, target: Path | None) -> None:
    published = "-" if record["published"] is None else f"{record['published']:.1f}"
    print(f"{record['model']} ({record['weights']} weights) on {record['data']}\n")
    if "corruptions" in record:
        show_corruptions(record, published)
    else:
        header = ("images", "top-1 (%)", "paper", "top-5 (%)")
        row = (str(record["images"]), f"{record['top1']:.2f}", published, f"{record['top5']:.2f}")
        print(table(header, [row], left=()))
        if per_class:
            classes = record["classes"].items()
            rows = [(n, str(c["images"]), f"{100 * c['right'] / c['images']:.1f}") for n, c in classes if c["images"]]
            print("\n" + table(("class", "images", "top-1 (%)"), rows))
    if target:
        print(f"\n{target}")


def show_corruptions(record: dict[str, Any], published: str) -> None:
    rows = []
    for corruption in CORRUPTIONS:
        errors = [100 - record["corruptions"][f"{corruption}/{s}"]["top1"] for s in SEVERITIES]
        rows.append((corruption, *(f"{e:.1f}" for e in errors), f"{sum(errors) / len(errors):.1f}"))
    print(table(("error (%) at severity", *map(str, SEVERITIES), "mean"), rows))
    print(f"\nmean error {record['mean_error']:.2f}%")
    if "mce" in record:
        print(f"mCE {record['mce']:.2f}, paper {published}")
    else:
        print("Our own corruptions: not comparable with the released ImageNet-C.")
