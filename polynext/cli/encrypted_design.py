"""`polynext encrypted design`."""

import json as jsonlib
import sys
from pathlib import Path

from polynext.cli.sweeps import train_all
from polynext.errors import require_at_least
from polynext.experiments.architectures.report import (
    HEADER,
    LEFT,
    collect,
    draw,
    markdown,
    sentences,
    table_rows,
    to_json,
)
from polynext.experiments.architectures.sweep import DESIGNS, DesignSweep, design_trials, forget_plans
from polynext.tables import table


def main(
    designs: tuple[str, ...] = DESIGNS,
    root: Path = Path("data"),
    images: int = 10_000,
    epochs: int = 4,
    processes: int = 2,
    memory: int = 8192,
    key_memory: int = 1536,
    error: float = 1e-2,
    plan_again: bool = False,
    out: Path = Path("runs/design"),
    json: bool = False,
) -> None:
    """Compare networks for encrypted 32x32 photographs: what each takes encrypted, and what it learns in a short time.

    A design is the network cpolynext_cipher_bn, called cipher, or a change of it: widths-64 (channels; widths-32-128 is
    two stages, the second at half the resolution), stacks-3 (in each stage; stacks-1-3 if they differ), patch-2 (pixels
    that the first layer makes one position of), coarse-5 (the larger kernel), or several joined by +.

    Each is trained on CIFAR-10 and then planned at ring degrees 2^14 and 2^15. Interrupted, the same command goes on;
    designs can be added and limits changed later. A design has an ordinary run folder, OUT/DESIGN/seed-0.

    Args:
        designs: which; without it a dozen that differ in one thing at a time.
        root: CIFAR-10, as a .npz or the folder that torchvision makes.
        images: how many training images to use; 0 for all.
        epochs: of each training.
        processes: how many designs at a time.
        memory: megabytes that the server's process may take.
        key_memory: megabytes that rotation keys may take.
        error: how far logits may be off, in units of the largest.
        plan_again: make the plans anew, as after a change of the planner or the machine.
        out: folder of the runs and of report.md, report.json and report.png.
        json: print JSON instead of a table.
    """
    require_at_least(0, images=images)
    require_at_least(1, epochs=epochs, processes=processes, memory=memory, key_memory=key_memory)
    sweep = DesignSweep(epochs, memory, key_memory, error, images=images, root=str(root))
    trials = design_trials(designs, sweep)
    forget_plans(trials, sweep, out, all_of_them=plan_again)
    train_all("polynext encrypted design", sweep, trials, out, processes)
    found = collect(sweep, trials, out)
    record = to_json(sweep, found)
    (out / "report.json").write_text(jsonlib.dumps(record, indent=2))
    (out / "report.md").write_text(markdown(sweep, found))
    draw(sweep, found, out / "report.png")
    if json:
        print(jsonlib.dumps(record, indent=2))
    else:
        print(table(HEADER, table_rows(found), left=LEFT))
        print("\n".join(["", *sentences(found), *[str(out / f"report.{kind}") for kind in ("md", "json", "png")]]))
    failed = [one for one in found if one.problem]
    if failed:
        print(
            f"polynext encrypted design: {len(failed)} design(s) failed, the same command tries them again; "
            f"the first: {failed[0].name}, {failed[0].problem}",
            file=sys.stderr,
        )
        raise SystemExit(1)
