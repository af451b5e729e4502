"""The ablation tables: the accuracy of each row, and its difference from the baseline."""

from collections.abc import Callable
from functools import partial
from typing import Any

from polynext import paper
from polynext.experiments.ablation import ABLATION_TABLES
from polynext.experiments.ablation.report import over_seeds
from polynext.experiments.ablation.rows import obstacle
from polynext.experiments.reproduction.calls import ablate
from polynext.experiments.reproduction.entries import Entries, Entry, printed
from polynext.experiments.reproduction.experiments import Experiment
from polynext.experiments.reproduction.setup import Setup


def ablation(number: str, table: str) -> Callable[[Setup], Entries]:
    """The entries of a table of the paper, by its number there and its name in `ABLATION_TABLES`."""

    def entries(setup: Setup) -> Entries:
        baselines = {row["family"]: row["accuracy"] for row in paper.rows("baselines") if row["table"] == number}
        differences = {row["row"]: row["difference"] for row in paper.rows(number)}
        for family in dict.fromkeys(row.family for row in ABLATION_TABLES[table]):
            sources = {row.name: source(setup, row.name) for row in ABLATION_TABLES[table] if row.family == family}
            # Every row's experiment trains the baseline too, unless it is trained already.
            any_source = next((s for s in sources.values() if "experiment" in s), next(iter(sources.values())))
            entry = partial(Entry, row=f"{family} unchanged", column="accuracy", read=partial(accuracy, name=family))
            yield entry(printed=printed(baselines.get(family, "")), **any_source)
            for name, of_row in sources.items():
                yield Entry(row=name, column="accuracy", printed="", read=partial(accuracy, name=name), **of_row)
                entry = partial(Entry, row=name, column="difference", read=partial(difference, name=name))
                yield entry(printed=differences.get(name, ""), **of_row)

    return entries


def source(setup: Setup, row: str) -> dict[str, Any]:
    """The experiment of a row, or why there is none. Each row has its own, so that it fails alone."""
    scale = setup.scale
    if scale != "digits" and scale not in setup.data:
        return {"missing": f"no {scale}: give --data {scale}=FOLDER, or --scale digits for a small experiment"}
    if reason := obstacle(row, scale):
        return {"missing": reason}
    out, root = setup.out / "runs" / f"ablate-{scale}", setup.data.get(scale, "")
    arguments = {"seeds": setup.seeds, "steps": setup.budget, "images": setup.images, "root": str(root)}
    return {
        "experiment": Experiment(
            f"ablate-{scale}.{row}", ablate, {"row": row, "scale": scale, **arguments, "out": str(out)}
        )
    }


def accuracy(record: dict[str, Any], name: str) -> str:
    row = outcome(record, name)
    return divergence(row) or over_seeds(list(row["accuracies"].values()))


def difference(record: dict[str, Any], name: str) -> str:
    row = outcome(record, name)
    return divergence(row) or over_seeds(row["differences"], "+") or "its baseline diverged"


def outcome(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in record["rows"] if row["name"] == name)


def divergence(row: dict[str, Any]) -> str:
    return f"diverged at step {min(row['diverged_at_step'].values())}" if row["diverged_at_step"] else ""
