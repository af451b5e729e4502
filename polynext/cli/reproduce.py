"""`polynext reproduce`."""

import json as jsonlib
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polynext.errors import PolyNeXtError, require_at_least
from polynext.experiments.reproduction import TABLES, Results, Setup, reproduce
from polynext.experiments.reproduction.places import require_data
from polynext.experiments.reproduction.report import markdown
from polynext.files import require_place
from polynext.models import check_model
from polynext.tables import table
from polynext.training.stopping import termination_as_interrupt


def main(
    tables: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    data: tuple[str, ...] = (),
    weights: tuple[str, ...] = (),
    train: bool = False,
    scale: Literal["imagenet", "cifar10", "digits"] = "imagenet",
    seeds: int = 1,
    budget: int = 0,
    images: int = 0,
    batch_size: int = 64,
    workers: int = 0,
    out: Path = Path("runs/reproduce"),
    json: bool = False,
) -> int:
    """Run what a table of the paper takes, and write it with the paper's figures beside ours.

    Every command that it takes is shown, and run in a process of its own, whose log is in OUT/results. Interrupted, the
    same command goes on; what is done is not done again. Where data, weights or a network are missing, the table says
    which and why.

    Args:
        tables: 1 to 7, dropin, S1 to S5, figure-1; without one, all are listed.
        data: where data sets are, as in imagenet=/data/imagenet imagenet-c=/data/imagenet-c ade20k=/data/ade.
        weights: what to evaluate instead of published weights, as in monet_tiny=runs/monet, a run or a file; for one
            data set alone as in monet_tiny:svhn=runs/monet-svhn.
        train: train by the paper's recipes what has one, instead of fetching published weights.
        scale: of the ablations: imagenet is the paper's.
        seeds: runs of each row of an ablation.
        budget: optimiser steps of such a run; the recipe's own length by default.
        images: training images of such a run; all by default.
        batch_size: images at a time in evaluations.
        workers: processes that prepare images.
        out: folder of the tables and of all that is run for them.
        json: print JSON instead of tables.
    """
    if not tables:
        print(
            table(
                ("table", "what"),
                [(name, f"{one.title} ({one.place})" if one.place else one.title) for name, one in TABLES.items()],
                left=(0, 1),
            )
        )
        return 0
    places, own = pairs("data", data), pairs("weights", weights)
    for name, place in own.items():
        check_model(name.split(":")[0])
        if not place.exists():
            raise PolyNeXtError(f"--weights {name}={place}: there is no such file or folder.")
    require_at_least(1, seeds=seeds, batch_size=batch_size)
    require_at_least(0, budget=budget, images=images, workers=workers)
    for name, place in places.items():
        require_data(name, place)
    require_place(out / "results" / "experiments.json")
    setup = Setup(
        out=out,
        data=places,
        weights=own,
        train=train,
        scale=scale,
        seeds=seeds,
        budget=budget,
        images=images,
        batch_size=batch_size,
        workers=workers,
    )
    try:
        with termination_as_interrupt():
            results = Results(out)
            records = [reproduce(name, setup, partial(print, file=sys.stderr), results) for name in tables]
    except KeyboardInterrupt:
        print("polynext reproduce: stopped, all saved: go on with the same command", file=sys.stderr)
        return 130
    if json:
        print(jsonlib.dumps(records, indent=2))
    else:
        print("\n".join(map(markdown, records)))
    return int(any(cell["failed"] for record in records for cell in record["cells"]))


def pairs(option: str, given: tuple[str, ...]) -> dict[str, Path]:
    split = [value.partition("=") for value in given]
    if wrong := [name for name, equals, place in split if not (name and equals and place)]:
        raise PolyNeXtError(f"--{option} {wrong[0]!r} names no place: give it as NAME=PLACE.")
    return {name: Path(place) for name, _, place in split}
