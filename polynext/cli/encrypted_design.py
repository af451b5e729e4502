"""`polynext encrypted design`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from polynext.cli.sweeps import show_report, train_all
from polynext.errors import require_at_least
from polynext.experiments.architectures import ARCHITECTURES, Architecture, ArchitectureSweep

COMMAND = "polynext encrypted design"
UNCHANGED = Architecture()
DEFAULT = ArchitectureSweep(architectures=ARCHITECTURES, images=10_000, root="data")


def main(
    architecture: Annotated[Architecture, tyro.conf.arg(name="")] = UNCHANGED,
    sweep: Annotated[ArchitectureSweep, tyro.conf.arg(name="")] = DEFAULT,
    processes: int = 2,
    plan_again: bool = False,
    out: Path = Path("runs/design"),
    json: bool = False,
) -> int:
    """Compare architectures for encrypted 32x32 photographs: estimated encrypted latency against accuracy.

    An architecture is the network cpolynext_cipher_bn with other widths, stacks and so on. Each is trained on CIFAR-10
    for a few epochs and then planned at ring degrees 2^14 and 2^15. If interrupted, the same command resumes. Further
    architectures can be added and limits changed later: the report is on all architectures in OUT.
    OUT/ARCHITECTURE/seed-0 is a run folder.

    Args:
        architecture: the architecture to add; without any of these options a dozen, most of which differ in one
            property.
        sweep: settings of all trainings and plans.
        processes: number of architectures at a time.
        plan_again: repeat the plans, for example after a change of the planner or the machine.
        out: folder of the runs and of report.md, report.json and report.png.
        json: print JSON instead of a table.
    """
    sweep.check()
    require_at_least(1, processes=processes)
    chosen = ARCHITECTURES if architecture == UNCHANGED else (architecture,)
    sweep = replace(sweep, architectures=chosen).with_those_in(out)
    trials = sweep.trials()
    sweep.forget_plans(trials, out, everything=plan_again)
    train_all(COMMAND, sweep, trials, out, processes)
    return show_report(COMMAND, sweep, trials, out, json)
