"""A table run and written down: what is printed, what was found, and what could not be had."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polynext import paper
from polynext.errors import PolyNeXtError
from polynext.experiments.reproduction.cells import Cell, Setup
from polynext.experiments.reproduction.experiments import Results
from polynext.experiments.reproduction.tables import TABLES
from polynext.files import write_atomically


def reproduce(
    name: str, setup: Setup, tell: Callable[[str], None] = lambda line: None, results: Results | None = None
) -> dict[str, Any]:
    """Runs whatever a table takes and was not run yet, and writes `name`.md and .json into the folder.

    The record has every figure as printed and as found, what failed, and what could not be run with the reason. With
    the `results` of another table, what failed for that one is not tried again.
    """
    if name not in TABLES:
        raise PolyNeXtError(f"there is no table {name!r} here: choose one of {', '.join(TABLES)}.")
    cells, results = list(TABLES[name].cells(setup)), results or Results(setup.out)
    experiments = list(dict.fromkeys(cell.experiment for cell in cells if cell.experiment is not None))
    pending = [one for one in experiments if results.read(one) is None and one not in results.failed]
    if any(one.fetches for one in pending) and not results.find_hub():
        tell("the Hugging Face hub cannot be reached: taking only weights that are on this machine already")
    for number, experiment in enumerate(pending, 1):
        commands = (shlex.join(["polynext", *arguments]) for arguments in results.arguments(experiment))
        tell(f"[{number}/{len(pending)}] {' && '.join(commands)} > {results.file(experiment, 'log')}")
        if (reason := results.run(experiment)) is not None:
            results.failed[experiment] = reason
            tell(f"    failed: {reason}")
    notes = paper.remarks(cell.row for cell in cells)
    if TABLES[name].scaled and setup.scale != "imagenet":
        notes.append(f"Here on {setup.scale}: another experiment than the paper's on ImageNet.")
    record = {
        "table": name,
        "note": " ".join(notes),
        "title": f"{TABLES[name].place or f'Table {name}'}: {TABLES[name].title}",
        "command": shlex.join(["polynext", *sys.argv[1:]]),
        "cells": [described(cell, results) for cell in cells],
    }
    setup.out.mkdir(parents=True, exist_ok=True)
    write_atomically(setup.out / f"{name}.json", json.dumps(record, indent=2).encode())
    write_atomically(setup.out / f"{name}.md", markdown(record).encode())
    if name == "figure-1":
        draw_figure(record, setup.out / "figure-1.png")
    return record


def described(cell: Cell, results: Results) -> dict[str, Any]:
    found, missing, failure = cell.found, cell.missing, ""
    if cell.experiment is not None:
        failure = results.failed.get(cell.experiment, "")
        content = None if failure else results.read(cell.experiment)
        found = cell.read(content) if content is not None else ""
        missing = "" if found or failure else cell.untold
    about = {"row": cell.row, "column": cell.column, "paper": cell.printed, "here": found}
    return about | {"missing": missing, "failed": failure}


def markdown(record: dict[str, Any]) -> str:
    """The table with two columns for each of the paper's, and below it what is not there and why."""
    cells = record["cells"]
    rows, columns = dict.fromkeys(c["row"] for c in cells), dict.fromkeys(c["column"] for c in cells)
    at = {(c["row"], c["column"]): c for c in cells}
    lines = [f"# {record['title']}", "", f"`{record['command']}`", ""]
    heads = [f"{column}, {whose}" for column in columns for whose in ("paper", "here")]
    lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in rows:
        values = [at.get((row, column), {}).get(whose, "") for column in columns for whose in ("paper", "here")]
        lines.append(f"| {row} | " + " | ".join(value or "-" for value in values) + " |")
    if record["note"]:
        lines += ["", record["note"]]
    for what, why in (("Failed, with logs in results", "failed"), ("Not run", "missing")):
        if any(c[why] for c in cells):
            lines += ["", f"{what}:", "", *reasons(cells, why)]
    return "\n".join([*lines, ""])


def reasons(cells: list[dict[str, Any]], why: str) -> list[str]:
    """A line for each reason why figures are not there, with all it is the reason for."""
    groups: dict[str, dict[str, list[str]]] = {}
    for c in cells:
        if c[why]:
            groups.setdefault(c[why], {}).setdefault(c["row"], []).append(c["column"])
    lines = []
    for reason, columns in groups.items():
        if sum(map(len, columns.values())) == len(cells):
            return [f"- Everything: {reason.rstrip('.')}."]
        alike: dict[tuple[str, ...], list[str]] = {}
        for row, missing in columns.items():
            alike.setdefault(tuple(missing), []).append(row)
        whose = [f"{', '.join(missing)} of {some_or_all(rows, missing, cells)}" for missing, rows in alike.items()]
        lines.append(f"- {'; '.join(whose)}: {reason.rstrip('.')}.")
    return lines


def some_or_all(rows: list[str], columns: tuple[str, ...], cells: list[dict[str, Any]]) -> str:
    return "all rows" if set(rows) == {c["row"] for c in cells if c["column"] in columns} else ", ".join(rows)


def draw_figure(record: dict[str, Any], path: Path) -> None:
    """The paper's scaling figure, with the accuracies that were found here."""
    from polynext.experiments.speed.figures import draw

    found = {c["row"]: float(c["here"]) for c in record["cells"] if c["column"] == "imagenet" and c["here"]}
    draw(path, found=found)
