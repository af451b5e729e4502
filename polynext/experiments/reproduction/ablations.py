"""The tables of ablations: what each row reaches, and how far that is from its baseline."""

import functools
import statistics
from collections.abc import Callable
from typing import Any

from polynext import paper
from polynext.experiments.ablation import TABLES
from polynext.experiments.ablation.report import deviation, with_spread
from polynext.experiments.ablation.rows import obstacle
from polynext.experiments.reproduction.cells import Cell, Cells, Setup, printed
from polynext.experiments.reproduction.experiments import Arguments, Experiment


def ablation(number: str, table: str) -> Callable[[Setup], Cells]:
    """A table of the paper, by its number and by what it is called among our ablations."""
    return lambda setup: ablation_cells(setup, number, table)


def ablation_cells(setup: Setup, number: str, table: str) -> Cells:
    """Accuracies, and differences in points. Below ImageNet's scale they are another experiment than the paper's."""
    differences = {row["row"]: row["difference"] for row in paper.rows(number)}
    baselines = {row["family"]: row["accuracy"] for row in paper.rows("baselines") if row["table"] == number}
    for family in dict.fromkeys(row.family for row in TABLES[table]):
        ways = {row.name: way_to(setup, row.name) for row in TABLES[table] if row.family == family}
        # Every row's command trains its baseline too, or finds it trained.
        any_way = next((way for way in ways.values() if "experiment" in way), next(iter(ways.values())))
        read = functools.partial(accuracy, name=family)
        unchanged = printed(baselines.get(family, ""))
        yield Cell(row=f"{family} unchanged", column="accuracy", printed=unchanged, read=read, **any_way)
        for name, way in ways.items():
            yield Cell(row=name, column="accuracy", printed="", read=functools.partial(accuracy, name=name), **way)
            change = differences.get(name, "")
            read = functools.partial(difference, name=name)
            yield Cell(row=name, column="difference", printed=change, read=read, **way)


def way_to(setup: Setup, name: str) -> dict[str, Any]:
    """A row's experiment, or why it is missing: one for each row, so that what fails is that row's alone."""
    scale = setup.scale
    if scale != "digits" and scale not in setup.data:
        return {"missing": f"no {scale}: give --data {scale}=FOLDER, or --scale digits for a small one"}
    if reason := obstacle(name, scale):
        return {"missing": reason}
    options: Arguments = ("--recipe", scale, "--seeds", str(setup.seeds), "--json")
    if scale in setup.data:
        options += ("--root", str(setup.data[scale]))
    options += ("--budget", str(setup.budget), "--images", str(setup.images))
    options += ("--out", str(setup.out / "runs" / f"ablate-{scale}"))
    return {"experiment": Experiment(f"ablate-{scale}.{name}", (("ablate", name, *options),), prints=True)}


def outcome(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in record["rows"] if row["name"] == name)


def accuracy(record: dict[str, Any], name: str) -> str:
    row = outcome(record, name)
    return how_it_diverged(row) or over_seeds(list(row["accuracies"].values()))


def difference(record: dict[str, Any], name: str) -> str:
    row = outcome(record, name)
    return how_it_diverged(row) or over_seeds(row["differences"], "+") or "its baseline diverged"


def how_it_diverged(row: dict[str, Any]) -> str:
    return f"diverged at step {min(row['diverged_at_step'].values())}" if row["diverged_at_step"] else ""


def over_seeds(values: list[float], sign: str = "") -> str:
    return with_spread(statistics.fmean(values), deviation(values), sign) if values else ""
