"""`polynext evaluate`."""

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from polynext.files import require_place, write_atomically
from polynext.tables import table

if TYPE_CHECKING:
    from polynext.runs import Run


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
    """Measure the accuracy of a network, and show the paper's beside it.

    The network is a model of polynext or timm; torchrun starts several processes. Sets that end in -c have 15
    corruptions at 5 severities: imagenet-c from its files, with the mCE, and others on the fly, which is not comparable
    with the released ImageNet-C. The same command resumes an interrupted evaluation of such a set.

    Args:
        network: folder of a training run, a weights file, a model's name, or a shipped network: mnist, digits, cifar10,
            cifar10-deep.
        data: digits, cifar10, svhn, tiny-imagenet, folder, webdataset, imagenet, imagenet-real, imagenet-v2,
            imagenet-a, imagenet-r, imagenet-sketch, imagenet-c, or digits-c, cifar10-c and so on; by default the data
            that the network was trained on.
        root: folder of the data, or a .npz file.
        checkpoint: weights file; by default the best weights of a run.
        pretrained: use the published weights of the model.
        batch_size: images at a time; the result does not depend on it.
        workers: worker processes that prepare images.
        per_class: show the accuracy of every class.
        out: JSON file to write; by default beside the checkpoint, or in runs/evaluate without one.
        json: print the JSON instead of a table.
    """
    from polynext.distributed import processes
    from polynext.evaluation import evaluate
    from polynext.runs import load_run

    with processes() as group:
        run = load_run(network, checkpoint, pretrained, group.device)
        run.require_trained()
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


def result_file(run: "Run", data: str) -> Path:
    data = data.replace("/", "-")
    if run.checkpoint is None:
        return Path("runs") / "evaluate" / f"{run.tagged_name}.{data}.json"
    return run.checkpoint.with_name(f"{run.checkpoint.stem}.{data}.json")


def show(record: dict[str, Any], per_class: bool, target: Path) -> None:
    published = "-" if record["published"] is None else f"{record['published']:.1f}"
    print(f"{record['model']} ({record['weights']} weights) on {record['data']}\n")
    of = record["published_of"]
    if record["published"] is None and of and "." in of:
        print(f"The paper's accuracy is that of other weights: give {of} and --pretrained.\n")
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
    from polynext.evaluation.corruptions import SEVERITIES

    rows = []
    for corruption in dict.fromkeys(key.split("/")[0] for key in record["corruptions"]):
        errors = [100 - record["corruptions"][f"{corruption}/{s}"]["top1"] for s in SEVERITIES]
        rows.append((corruption, *(f"{e:.1f}" for e in errors), f"{sum(errors) / len(errors):.1f}"))
    print(table(("error (%) at severity", *map(str, SEVERITIES), "mean"), rows))
    print(f"\nmean error {record['mean_error']:.2f}%")
    if "mce" in record:
        print(f"mCE {record['mce']:.2f}, paper {published}")
    else:
        print("Corrupted on the fly: not comparable with the released ImageNet-C.")
