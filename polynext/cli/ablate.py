"""`polynext ablate`."""

import json as jsonlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from polynext.cli.sweeps import train_all
from polynext.errors import PolyNeXtError
from polynext.experiments.ablation.report import HEADER, collect, draw, paper_difference, table_rows, to_json
from polynext.experiments.ablation.rows import ROWS, TABLES, obstacle
from polynext.experiments.ablation.sweep import AblationSweep, all_trials
from polynext.experiments.sweep import Trial
from polynext.models import is_polynext
from polynext.tables import table
from polynext.training.diagnostics import draw_diagnostics
from polynext.training.folder import RunFolder


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
) -> None:
    """Train the rows of an ablation table, several seeds each, and compare them with the baseline.

    Every run has a folder of its own. Interrupted, the same command goes on; a row that fails or diverges is reported
    and does not stop the others. More seeds or rows can be added later.

    Args:
        tables: modules, stabilisation, recipes, dropin, further, or names of rows; modules by default.
        list_rows: list all rows with the paper's differences, and stop.
        recipe: digits, cifar10, or imagenet for the paper's own scale.
        budget: optimiser steps of each run; the recipe's own length by default.
        images: how many training images to use; all by default.
        seeds: runs of each row.
        root: folder or .npz file of the data; the recipe's by default.
        processes: how many runs at a time.
        report: train nothing, show what there is in --out.
        diagnostics: watch what happens inside the cells, and draw it for each row.
        out: folder of the runs and the report; runs/ablate-RECIPE by default.
        json: print JSON instead of a table.
    """
    if list_rows:
        rows = [(r.name, r.table, r.family, r.what, paper_difference(r.name)) for r in ROWS.values()]
        print(table(("row", "table", "baseline", "what changes", "paper's difference"), rows, left=(0, 1, 2, 3)))
        return
    if min(seeds, processes) < 1 or min(budget, images) < 0:
        raise PolyNeXtError("a sweep needs at least one seed and one process, and no negative budget or images.")
    folder = out or Path("runs") / f"ablate-{recipe}"
    names = rows_of(tables or ("modules",), AblationSweep.read(folder).recipe if report else recipe)
    if report:
        sweep = AblationSweep.read(folder)
        sweep = replace(sweep, root=str(root)) if root else sweep
    else:
        sweep = AblationSweep(recipe, budget, diagnostics, images=images, root=str(root) if root else "")
        train_all("polynext ablate", sweep, all_trials(names, seeds), folder, processes)
    outcomes = collect(sweep, names, seeds, folder)
    record = to_json(sweep, outcomes)
    (folder / "report.json").write_text(jsonlib.dumps(record, indent=2))
    steps, limit = f", {sweep.steps} steps" if sweep.steps else "", f", {sweep.images} images" if sweep.images else ""
    scale = f"{sweep.recipe}{steps}{limit}"
    draw(outcomes, f"{scale}, {seeds} seeds", folder / "report.png")
    if sweep.diagnostics:
        watched = [one for one in outcomes if is_polynext(sweep.config(one.name).model.name)]
        first = {f"{one.name}: {one.what}": RunFolder(Trial(one.name, 0).folder(folder)) for one in watched}
        draw_diagnostics(first, folder / "diagnostics.png")
    if json:
        print(jsonlib.dumps(record, indent=2))
    else:
        print(table(HEADER, table_rows(outcomes), left=(0, 1, 7)))
        print(f"\n{folder / 'report.json'}, {folder / 'report.png'}")
    failed = [error for one in outcomes for error in one.errors.values()]
    if failed and not report:
        again = "the same command tries them again"
        print(f"polynext ablate: {len(failed)} run(s) failed, {again}; the first: {failed[0]}", file=sys.stderr)
        raise SystemExit(1)


def rows_of(tables: tuple[str, ...], scale: str) -> list[str]:
    """The names of all rows asked for, each once; those of a table that make no sense at this scale are left out."""
    names: dict[str, None] = {}
    for name in tables:
        if name in TABLES:
            for row in TABLES[name]:
                if reason := obstacle(row.name, scale):
                    print(f"polynext ablate: {row.name}: left out, {reason}", file=sys.stderr)
                else:
                    names[row.name] = None
        elif name in ROWS:
            if reason := obstacle(name, scale):
                raise PolyNeXtError(reason)
            names[name] = None
        else:
            raise PolyNeXtError(
                f"there is no ablation {name!r}: give a table ({', '.join(TABLES)}) or a row that --list shows."
            )
    return list(names)
