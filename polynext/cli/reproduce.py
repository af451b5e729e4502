"""`polynext reproduce`."""

import json as jsonlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from polynext.errors import PolyNeXtError, require_at_least
from polynext.experiments.reproduction import Setup
from polynext.files import require_place
from polynext.tables import table

DEFAULT = Setup()


def main(
    tables: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    data: tuple[str, ...] = (),
    weights: tuple[str, ...] = (),
    setup: Annotated[Setup, tyro.conf.arg(name="")] = DEFAULT,
    json: bool = False,
) -> int:
    """Run the experiments behind a table of the paper, and write the table with the paper's figures beside ours.

    Each experiment runs in its own process and has a log in OUT/results. If interrupted, the same command resumes;
    finished experiments are not repeated. If data, weights or a network are missing, the table says which and why.

    Args:
        tables: 1 to 7, S1 to S5, dropin, dropout, segmentation, claims, figure-1; without one, list all.
        data: where data sets are, as in imagenet=/data/imagenet imagenet-c=/data/imagenet-c ade20k=/data/ade.
        weights: weights to use instead of published ones, as in monet_tiny=runs/monet, a run folder or a file; for one
            data set only, as in monet_tiny:svhn=runs/monet-svhn.
        setup: limits of the runs.
        json: print JSON instead of tables.
    """
    from polynext.experiments.reproduction import PAPER_TABLES, Results, reproduce
    from polynext.experiments.reproduction.setup import require_data
    from polynext.models import check_model
    from polynext.training.stopping import termination_as_interrupt

    if not tables:
        listed = [
            (name, f"{one.title} ({one.place})" if one.place else one.title) for name, one in PAPER_TABLES.items()
        ]
        print(table(("table", "what"), listed, left=(0, 1)))
        return 0
    setup = replace(setup, data=pairs("data", data), weights=pairs("weights", weights))
    for name, path in setup.weights.items():
        check_model(name.split(":")[0])
        if not path.exists():
            raise PolyNeXtError(f"--weights {name}={path}: there is no such file or folder.")
    require_at_least(1, seeds=setup.seeds, batch_size=setup.batch_size)
    require_at_least(0, budget=setup.budget, images=setup.images, workers=setup.workers)
    for name, path in setup.data.items():
        require_data(name, path)
    require_place(setup.out / "results" / "log")
    try:
        with termination_as_interrupt():
            results = Results(setup.out)
            reports = [reproduce(name, setup, partial(print, file=sys.stderr), results) for name in tables]
    except KeyboardInterrupt:
        print("polynext reproduce: stopped, all saved; the same command resumes", file=sys.stderr)
        return 130
    if json:
        print(jsonlib.dumps([report.record for report in reports], indent=2))
    else:
        print("\n".join(report.markdown() for report in reports))
    return int(any(cell["failed"] for report in reports for cell in report.record["cells"]))


def pairs(option: str, given: tuple[str, ...]) -> dict[str, Path]:
    """Splits values of the form NAME=PATH."""
    split = [value.partition("=") for value in given]
    if wrong := [value for value, (name, _, path) in zip(given, split, strict=True) if not (name and path)]:
        raise PolyNeXtError(f"--{option} {wrong[0]!r} has no path: give it as NAME=PATH.")
    return {name: Path(path) for name, _, path in split}
