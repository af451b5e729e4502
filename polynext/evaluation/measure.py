"""The accuracy of a network on a data set, as a record with the network, the data and the versions."""

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
from tqdm import tqdm

import polynext
from polynext.acceleration import accelerate
from polynext.data import DATA_SETS, DataConfig, Examples
from polynext.distributed import Processes, alone
from polynext.errors import PolyNeXtError, preview, require_at_least
from polynext.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from polynext.evaluation.scores import ALEXNET_ERRORS, Scores, mean_corruption_error, score
from polynext.evaluation.sets import ALL_NAMES, IMAGENETS, corrupted_folder, open_corrupted, open_set
from polynext.files import read_json, write_atomically
from polynext.paper import figure_of, published_figure

if TYPE_CHECKING:
    from polynext.runs import Run


def evaluate(
    run: "Run",
    data: str = "",
    root: Path | None = None,
    batch_size: int = 64,
    workers: int = 0,
    partial: Path | None = None,
    group: Processes | None = None,
) -> dict[str, Any]:
    """Evaluates a network and returns the record.

    Args:
        run: the network, from `polynext.load_run`.
        data: one of `polynext.evaluation.ALL_NAMES`; by default the data that the network was trained on.
        root: the folder of the data, or a .npz file.
        batch_size: images at a time; the result does not depend on it.
        workers: worker processes that prepare images.
        partial: a file for the finished part of a corrupted set, from which an interrupted evaluation resumes.
        group: the processes of a distributed evaluation, which all return the whole result.
    """
    require_at_least(1, batch_size=batch_size)
    require_at_least(0, workers=workers)
    group = group or alone()
    own = run.data
    name = data or own.name
    if name not in (*ALL_NAMES, own.name):
        raise PolyNeXtError(f"there is no evaluation set {name!r}: choose one of {', '.join(ALL_NAMES)}.")
    same_images = name.removesuffix("-c").removesuffix("-real") == own.name and name != "imagenet-c"
    place = replace(own, root=root or (own.root if same_images else None))
    if root and (known := DATA_SETS.get(name.removesuffix("-c"))) and not known.needs_root:
        raise PolyNeXtError(f"`root` is {root}, and {name} is part of the package: leave `root` out.")
    about = describe(run, name, place.root)
    accelerate(run.model)
    if name.endswith("-c"):
        return about | evaluate_corrupted(run, about, place, group, batch_size, workers, partial)
    return about | evaluate_clean(run, name, place, group, batch_size, workers)


def describe(run: "Run", data: str, root: Path | None) -> dict[str, Any]:
    return {
        "model": run.tagged_name,
        "weights": run.weights,
        "data": data,
        "root": str(root) if root else None,
        "published": paper_figure(run, data),
        "published_of": (figure_of(run.name, data) or (None, None))[1],
        "versions": {
            "polynext": polynext.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }


def paper_figure(run: "Run", data: str) -> float | None:
    """The accuracy in the paper, for the published weights or a network trained from scratch on the same data."""
    if run.tag is not None:
        return published_figure(run.tagged_name, data)
    if run.config is None:
        return None
    model, learned = run.config.model, run.config.data.name
    comparable = data == learned or (learned == "imagenet" and data in IMAGENETS)
    return published_figure(model.name.split(".")[0], data) if comparable and model.as_published else None


def evaluate_clean(
    run: "Run", name: str, data: DataConfig, group: Processes, batch_size: int, workers: int
) -> dict[str, Any]:
    chosen = open_set(name, data)
    require_its_kind(run, name, chosen.examples)
    scores = score(run.model, chosen, group, batch_size, workers)
    per_class = {
        label: {"images": n, "right": r}
        for label, n, r in zip(chosen.examples.classes, scores.class_images, scores.class_right, strict=True)
    }
    return {**counts(scores), "classes": per_class}


def require_its_kind(run: "Run", name: str, examples: Examples) -> None:
    """Raises if the data has other classes than the network or, where classes have no names, grey instead of colour."""
    classes = examples.classes
    known = run.classes or tuple(classes)
    other = name not in IMAGENETS and examples.named and {*classes}.isdisjoint(known)
    own = name == run.data.name
    if other or (own and tuple(classes) != known):
        raise PolyNeXtError(
            f"{name} has the classes {preview(classes, 3)} and the network {preview(known, 3)}: "
            "evaluate it on data with its classes."
        )
    if not own and not examples.named and run.data.preprocessing.channels == 3 and examples.image(0).mode == "L":
        raise PolyNeXtError(
            f"the images given as {name} are grey, and the network classifies colour images ({preview(known, 3)}): "
            "evaluate it on data with its classes."
        )


def counts(scores: Scores) -> dict[str, Any]:
    return {
        "images": scores.images,
        "right": scores.right,
        "right_in_5": scores.right_in_5,
        "top1": scores.top1,
        "top5": scores.top5,
    }


def evaluate_corrupted(
    run: "Run",
    about: dict[str, Any],
    data: DataConfig,
    group: Processes,
    batch_size: int,
    workers: int,
    partial: Path | None,
) -> dict[str, Any]:
    """Evaluates all corruptions and severities. The file `partial` has the finished ones until the last."""
    name = about["data"]
    done: dict[str, dict[str, Any]] = {}
    task_of = {key: about[key] for key in ("model", "weights", "data", "root")}
    if partial is not None and partial.is_file():
        kept = read_json(partial)
        done = kept["done"] if kept.get("of") == task_of else {}
    tasks = [(c, s) for c in CORRUPTIONS for s in SEVERITIES]
    if name == "imagenet-c":
        for task in tasks:  # a missing folder should be reported at once
            corrupted_folder(data, *task)
    else:
        plain = name.removesuffix("-c")
        require_its_kind(run, plain, open_set(plain, data).examples)
    for corruption, severity in tqdm(tasks, unit="set", leave=False, disable=None if group.first else True):
        key = f"{corruption}/{severity}"
        if key in done:
            continue
        chosen = open_corrupted(name, data, corruption, severity)
        done[key] = counts(score(run.model, chosen, group, batch_size, workers))
        if partial is not None and group.first:
            write_atomically(partial, json.dumps({"of": task_of, "done": done}).encode())
    if partial is not None and group.first:
        partial.unlink(missing_ok=True)
    errors = {c: [100 - done[f"{c}/{s}"]["top1"] for s in SEVERITIES] for c in CORRUPTIONS}
    mean = sum(map(sum, errors.values())) / (len(CORRUPTIONS) * len(SEVERITIES))
    result: dict[str, Any] = {"corruptions": done, "mean_error": mean}
    if name == "imagenet-c":
        result["mce"] = mean_corruption_error(errors, ALEXNET_ERRORS)
    return result
