"""`polynext ablate`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from polynext import paper
from polynext.errors import PolyNeXtError, require_at_least
from polynext.tables import table

COMMAND = "polynext ablate"


def main(
    tables: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    list_rows: Annotated[bool, tyro.conf.arg(name="list")] = False,
    recipe: str = "digits",
    budget: int = 0,
    images: int = 0,
    seeds: int = 3,
    root: Path | None = None,
    processes: int = 1,
    report: bool = False,
    diagnostics: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Train the rows of an ablation table with several seeds, and compare them with the baseline.

    Every run has its own folder. If interrupted, the same command resumes. A row that fails or diverges is reported and
    does not stop the others. Rows and seeds can be added later.

    Args:
        tables: modules, stabilisation, recipes, dropin, dropout, norms, further, discussion (which measures the
            paper's explanations) or a part of it (coupling, scales, amplification, sensitivity), or names of rows;
            modules by default.
        list_rows: list all rows with the paper's differences, and exit.
        recipe: digits, cifar10, or imagenet, which is the paper's scale.
        budget: optimiser steps of each run; the recipe's length by default.
        images: number of training images; all by default.
        seeds: runs of each row.
        root: folder or .npz file of the data; the recipe's by default.
        processes: number of runs at a time.
        report: do not train; show the results in --out.
        diagnostics: record statistics inside the cells, and draw them for each row.
        out: folder of the runs and the report; runs/ablate-RECIPE by default.
        json: print JSON instead of a table.
    """
    from polynext.cli.sweeps import show_report, train_all
    from polynext.experiments.ablation import ROWS, AblationSweep, collect
    from polynext.experiments.ablation.rows import QUESTIONS
    from polynext.experiments.discussion import discussion_reports
    from polynext.experiments.sweep import Trial
    from polynext.models import is_polynext
    from polynext.training.diagnostics import draw_diagnostics
    from polynext.training.folder import RunFolder

    if list_rows:
        rows = [(r.name, r.table, r.family, r.what, paper.ablation_difference(r.name)) for r in ROWS.values()]
        print(table(("row", "table", "baseline", "what changes", "paper's difference"), rows, left=(0, 1, 2, 3)))
        return 0
    discusses = not {"discussion", *QUESTIONS}.isdisjoint(tables)
    require_at_least(1, seeds=seeds, processes=processes)
    require_at_least(0, budget=budget, images=images)
    folder = out or Path("runs") / f"ablate-{recipe}"
    if report:
        sweep = AblationSweep.read(folder)
        sweep = replace(sweep, root=str(root)) if root else sweep
    else:
        sweep = AblationSweep(recipe, budget, diagnostics or discusses, images=images, root=str(root or ""))
    trials = sweep.trials(rows_of(tables or ("modules",), sweep.recipe), seeds)
    if not report:
        train_all(COMMAND, sweep, trials, folder, processes)
    status = show_report(COMMAND, sweep, trials, folder, json)
    if sweep.diagnostics:
        watched = [one for one in collect(sweep, trials, folder) if is_polynext(sweep.config(one.name).model.name)]
        first = {f"{one.name}: {one.what}": RunFolder(Trial(one.name, 0).folder(folder)) for one in watched}
        draw_diagnostics(first, folder / "diagnostics.png")
    if discusses:
        for name, part in discussion_reports(sweep, trials, folder).items():
            part.write(folder, name)
            print(f"\n{part.text()}" if not json else part.json())
    return 0 if report else status


def rows_of(tables: tuple[str, ...], scale: str) -> list[str]:
    """The rows that tables and row names select. Rows of a table that do not apply at this scale are left out."""
    from polynext.experiments.ablation.rows import ABLATION_TABLES, ROWS, obstacle

    names: dict[str, None] = {}
    for name in tables:
        if name not in ABLATION_TABLES and name not in ROWS:
            known = ", ".join(ABLATION_TABLES)
            raise PolyNeXtError(f"there is no ablation {name!r}: give a table ({known}) or a row that --list shows.")
        for row in ABLATION_TABLES.get(name, [ROWS[name]] if name in ROWS else []):
            reason = obstacle(row.name, scale)
            if reason and name in ROWS:
                raise PolyNeXtError(reason)
            if reason:
                print(f"{COMMAND}: {row.name}: left out, {reason}", file=sys.stderr)
            else:
                names[row.name] = None
    return list(names)
