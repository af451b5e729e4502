"""Every table of the paper: `reproduce` runs the experiments behind it and writes it with the paper's figures."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polynext import paper
from polynext.errors import PolyNeXtError
from polynext.experiments.report import Report, bullets
from polynext.experiments.reproduction.ablations import ablation
from polynext.experiments.reproduction.claims import claims
from polynext.experiments.reproduction.entries import Entries, Entry
from polynext.experiments.reproduction.experiments import Results
from polynext.experiments.reproduction.hyperparameters import (
    architectures,
    low_resolution,
    segmentation_details,
    training_details,
)
from polynext.experiments.reproduction.networks import (
    fully_polynomial,
    main_results,
    on_data_sets,
    segmentation,
    throughput,
)
from polynext.experiments.reproduction.setup import Setup
from polynext.experiments.speed.figures import draw


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        title: what it shows.
        entries: lists its figures.
        scaled: whether its experiments can run at a smaller scale.
        place: where it is in the paper, if it is not a table there.
    """

    title: str
    entries: Callable[[Setup], Entries]
    scaled: bool = False
    place: str = ""


PAPER_TABLES = {
    "1": PaperTable("ImageNet-1K classification", main_results),
    "2": PaperTable("Robustness", on_data_sets("2")),
    "3": PaperTable("Polynomial modules or activations", ablation("3", "modules"), scaled=True),
    "4": PaperTable("Stabilisation and architecture", ablation("4", "stabilisation"), scaled=True),
    "5": PaperTable("Recipes crossed", ablation("5", "recipes"), scaled=True),
    "dropin": PaperTable("Modules in CAFormer-S18", ablation("dropin", "dropin"), scaled=True, place="Section 4.3"),
    "dropout": PaperTable("Constant dropout", ablation("dropout", "dropout"), scaled=True, place="Appendix C.3"),
    "6": PaperTable("ADE20K segmentation", segmentation),
    "segmentation": PaperTable("Training on ADE20K", segmentation_details, place="Section 4.5"),
    "7": PaperTable("Fully polynomial variants", fully_polynomial),
    "S1": PaperTable("Training hyperparameters", training_details),
    "S2": PaperTable("Architectures", architectures),
    "S3": PaperTable("Low-resolution setup", low_resolution),
    "S4": PaperTable("Throughput and memory", throughput),
    "S5": PaperTable("Smaller data sets", on_data_sets("S5")),
    "claims": PaperTable("Claims of the text, from the paper's tables", claims, place="Text"),
    "figure-1": PaperTable("Accuracy against size and cost", main_results, place="Figure 1"),
}


def reproduce(
    name: str, setup: Setup, on_step: Callable[[str], None] = lambda line: None, results: Results | None = None
) -> Report:
    """Runs the experiments of a table that have no result yet, and writes NAME.md and NAME.json.

    The report has every figure as printed and as found here, what failed, and what could not be run and why. A script
    must call this function under `if __name__ == "__main__":`, because experiments run in processes that import it.

    Args:
        name: a key of `PAPER_TABLES`.
        setup: what to reproduce with.
        on_step: called with a line of text before each experiment.
        results: the results of another table; experiments that failed there are not repeated.
    """
    if name not in PAPER_TABLES:
        raise PolyNeXtError(f"there is no table {name!r} here: choose one of {', '.join(PAPER_TABLES)}.")
    table, results = PAPER_TABLES[name], results or Results(setup.out)
    entries = list(table.entries(setup))
    experiments = {entry.experiment.name: entry.experiment for entry in entries if entry.experiment is not None}
    pending = [one for one in experiments.values() if results.read(one) is None and one.name not in results.failed]
    if any(one.fetches for one in pending) and not results.find_hub():
        on_step("the Hugging Face hub cannot be reached: only weights on this machine are used")
    for number, experiment in enumerate(pending, 1):
        on_step(f"[{number}/{len(pending)}] {experiment.call} > {results.file(experiment, 'log')}")
        if (reason := results.run(experiment)) is not None:
            results.failed[experiment.name] = reason
            on_step(f"    failed: {reason}")
    notes = paper.remarks(entry.row for entry in entries)
    if table.scaled and setup.scale != "imagenet":
        notes.append(f"Here on {setup.scale}: another experiment than the paper's on ImageNet.")
    title = f"{table.place or f'Table {name}'}: {table.title}"
    cells = [described(entry, results) for entry in entries]
    compute_from_rows(entries, cells)
    report = table_report(name, title, notes, cells)
    report.write(setup.out, name)
    return report


def described(entry: Entry, results: Results) -> dict[str, Any]:
    """An entry with our figure, or with the reason why there is none."""
    found, missing, failure = entry.found, entry.missing, ""
    if entry.experiment is not None:
        failure = results.failed.get(entry.experiment.name, "")
        content = None if failure else results.read(entry.experiment)
        found = entry.read(content) if content is not None else ""
        missing = "" if found or failure else entry.unmeasured
    about = {"row": entry.row, "column": entry.column, "paper": entry.printed, "here": found}
    return about | {"missing": missing, "failed": failure}


def compute_from_rows(entries: Sequence[Entry], cells: Sequence[dict[str, Any]]) -> None:
    """Fills in the figures that follow from others in their row."""
    for entry, cell in zip(entries, cells, strict=True):
        if entry.from_row is not None:
            cell["here"] = entry.from_row({c["column"]: c["here"] for c in cells if c["row"] == entry.row})
            cell["missing"] = "" if cell["here"] else "a figure that it is computed from is missing"


def table_report(name: str, title: str, notes: Sequence[str], cells: list[dict[str, Any]]) -> Report:
    """A table with two columns for each of the paper's: the paper's figure and ours."""
    rows, columns = dict.fromkeys(c["row"] for c in cells), dict.fromkeys(c["column"] for c in cells)
    at = {(c["row"], c["column"], whose): c[whose] for c in cells for whose in ("paper", "here")}
    heads = [(column, whose) for column in columns for whose in ("paper", "here")]
    command = shlex.join(["polynext", *sys.argv[1:]])
    found = {c["row"]: float(c["here"]) for c in cells if c["column"] == "imagenet" and c["here"]}
    failed, missing = reasons(cells, "failed"), reasons(cells, "missing")
    return Report(
        title=title,
        columns=("", *(f"{column}, {whose}" for column, whose in heads)),
        rows=[(row, *(at.get((row, *head)) or "-" for head in heads)) for row in rows],
        notes=[*notes, *bullets("Failed, with logs in results", failed), *bullets("Not run", missing), f"`{command}`"],
        record={"table": name, "note": " ".join(notes), "title": title, "command": command, "cells": cells},
        draw=(lambda: draw(found=found)) if name == "figure-1" else None,
    )


def reasons(cells: list[dict[str, Any]], why: str) -> list[str]:
    """A line for each reason why figures are missing, with the figures that it applies to."""
    groups: dict[str, dict[str, list[str]]] = {}
    for c in cells:
        if c[why]:
            groups.setdefault(c[why], {}).setdefault(c["row"], []).append(c["column"])
    lines = []
    for reason, columns in groups.items():
        if sum(map(len, columns.values())) == len(cells):
            return [f"Everything: {reason.rstrip('.')}."]
        alike: dict[tuple[str, ...], list[str]] = {}
        for row, missing in columns.items():
            alike.setdefault(tuple(missing), []).append(row)
        whose = [f"{', '.join(missing)} of {some_or_all(rows, missing, cells)}" for missing, rows in alike.items()]
        lines.append(f"{'; '.join(whose)}: {reason.rstrip('.')}.")
    return lines


def some_or_all(rows: list[str], columns: tuple[str, ...], cells: list[dict[str, Any]]) -> str:
    return "all rows" if set(rows) == {c["row"] for c in cells if c["column"] in columns} else ", ".join(rows)
