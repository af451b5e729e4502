"""`polynext evaluate`."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from polynext.distributed import processes
from polynext.evaluation import evaluate
from polynext.evaluation.corruptions import SEVERITIES
from polynext.files import require_place, write_atomically
from polynext.runs import Run, load_run
from polynext.tables import table


def main(
    network: Annotated[str, tyro.conf.Positional],
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
        network: folder of a training run, a file of weights, or a model's name.
        data: digits, cifar10, svhn, tiny-imagenet, folder, webdataset, imagenet, imagenet-real, imagenet-v2,
            imagenet-a, imagenet-r, imagenet-sketch, imagenet-c, or digits-c, cifar10-c and so on; what the network was
            trained on by default.
        root: folder of the data, or a .npz file.
        checkpoint: weights, ours or published; a run's best by default.
        pretrained: fetch the published weights of the model instead.
        batch_size: images at a time; the result does not depend on it.
        workers: processes that prepare images.
        per_class: show the accuracy of every class.
        out: the JSON file to write; beside the checkpoint, or in runs/evaluate without one, by default.
        json: print the JSON instead of a table.
    """
    with processes() as group:
        run = load_run(network, checkpoint, pretrained, group.device)
        target = out or result_file(run, data or run.data.name)
        require_place(target)
        partial = target.with_suffix(".partial.json")
        record = evaluate(run, data, root, batch_size, workers, partial, group)
        if not group.first:
            return
        record["command"] = " ".join(["polynext", *sys.argv[1:]])
        if json:
            print(jsonlib.dumps(record, indent=2))
        else:
            show(record, per_class, target)
        write_atomically(target, jsonlib.dumps(record, indent=2).encode())


def result_file(run: Run, data: str) -> Path:
    data = data.replace("/", "-")
    if run.checkpoint is None:
        return Path("runs") / "evaluate" / f"{run.tagged_name}.{data}.json"
    return run.checkpoint.with_name(f"{run.checkpoint.stem}.{data}.json")


def show(record: dict[str, Any], per_class: bool, target: Path) -> None:
    published = "-" if record["published"] is None else f"{record['published']:.1f}"
    print(f"{record['model']} ({record['weights']} weights) on {record['data']}\n")
    of = record["published_of"]
    if record["published"] is None and of and "." in of:
        print(f"The paper's figure is of other weights, {of}: give that name, and --pretrained.\n")
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
    for corruption in dict.fromkeys(key.split("/")[0] for key in record["corruptions"]):
        errors = [100 - record["corruptions"][f"{corruption}/{s}"]["top1"] for s in SEVERITIES]
        rows.append((corruption, *(f"{e:.1f}" for e in errors), f"{sum(errors) / len(errors):.1f}"))
    print(table(("error (%) at severity", *map(str, SEVERITIES), "mean"), rows))
    print(f"\nmean error {record['mean_error']:.2f}%")
    if "mce" in record:
        print(f"mCE {record['mce']:.2f}, paper {published}")
    else:
        print("Our own corruptions: not comparable with the released ImageNet-C.")
