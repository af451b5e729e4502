"""`polynext evaluate`."""

import json as jsonlib
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import tyro
from tqdm import tqdm

import polynext
from polynext.cli.runs import Subject, load_subject
from polynext.cli.table import table
from polynext.data import DataConfig
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError, require_at_least
from polynext.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from polynext.evaluation.scores import ALEXNET_ERRORS, Scores, mean_corruption_error, score
from polynext.evaluation.sets import ALL_NAMES, corrupted_folder, open_corrupted, open_set
from polynext.models.published import some
from polynext.paper import published_figure
from polynext.training.folder import write_atomically


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
        out: the JSON file to write; beside the checkpoint, or in runs/evaluate without one, by default.
        json: print the JSON instead of a table.
    """
    require_at_least(1, batch_size=batch_size)
    with processes() as group:
        subject = load_subject(model, checkpoint, pretrained, group.device)
        name = data or subject.data.name
        if name not in (*ALL_NAMES, subject.data.name):
            raise PolyNeXtError(f"there is no evaluation set {name!r}: choose one of {', '.join(ALL_NAMES)}.")
        config = replace(subject.data, root=root or (subject.data.root if name.startswith(subject.data.name) else None))
        target = out or result_file(subject, name)
        about = header(subject, name, config)
        if name.endswith("-c"):
            found = evaluate_corrupted(subject, about, config, group, batch_size, workers, target)
        else:
            found = evaluate_clean(subject, name, config, group, batch_size, workers)
        if not group.first:
            return
        record = about | found
        if json:
            print(jsonlib.dumps(record, indent=2))
        else:
            show(record, per_class, target)
        write_atomically(target, jsonlib.dumps(record, indent=2).encode())


def result_file(subject: Subject, data: str) -> Path:
    data = data.replace("/", "-")
    if subject.checkpoint is None:
        return Path("runs") / "evaluate" / f"{subject.name}.{data}.json"
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
    if subject.classes and name == subject.data.name and chosen.examples.classes != subject.classes:
        raise PolyNeXtError(
            f"{name} has the classes {some(chosen.examples.classes, 3)} and the network {some(subject.classes, 3)}: "
            "evaluate it on data of its own classes."
        )
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
    about: dict[str, Any],
    config: DataConfig,
    group: Processes,
    batch_size: int,
    workers: int,
    target: Path,
) -> dict[str, Any]:
    """All corruptions and severities. What is done is kept in a file until all is."""
    name = about["data"]
    partial = target.with_suffix(".partial.json")
    done: dict[str, dict[str, Any]] = {}
    task_of = {key: about[key] for key in ("model", "weights", "data", "root")}
    if partial.is_file():
        kept = jsonlib.loads(partial.read_text())
        done = kept["done"] if kept["of"] == task_of else {}
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
        if group.first:
            write_atomically(partial, jsonlib.dumps({"of": task_of, "done": done}).encode())
    if group.first:
        partial.unlink(missing_ok=True)
    errors = {c: [100 - done[f"{c}/{s}"]["top1"] for s in SEVERITIES] for c in CORRUPTIONS}
    mean = sum(map(sum, errors.values())) / (len(CORRUPTIONS) * len(SEVERITIES))
    found: dict[str, Any] = {"corruptions": done, "mean_error": mean}
    if name == "imagenet-c":
        found["mce"] = mean_corruption_error(errors, ALEXNET_ERRORS)
    return found


def show(record: dict[str, Any], per_class: bool, target: Path) -> None:
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
