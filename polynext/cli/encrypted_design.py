"""`polynext encrypted design`."""

from pathlib import Path
from typing import Annotated

import tyro

from polynext.cli.sweeps import show_report, train_all
from polynext.errors import require_at_least
from polynext.experiments.architectures import ARCHITECTURES, ArchitectureSweep

COMMAND = "polynext encrypted design"
DEFAULT = ArchitectureSweep(images=10_000, root="data")


def main(
    designs: tuple[str, ...] = ARCHITECTURES,
    sweep: Annotated[ArchitectureSweep, tyro.conf.arg(name="")] = DEFAULT,
    processes: int = 2,
    plan_again: bool = False,
    out: Path = Path("runs/design"),
    json: bool = False,
) -> int:
    """Compare architectures for encrypted 32x32 photographs: estimated encrypted latency against accuracy.

    An architecture is the network cpolynext_cipher_bn, called cipher, or a change of it: widths-64 (channels;
    widths-32-128 for two stages, the second at half the resolution), stacks-3 (in each stage; stacks-1-3 if they
    differ), patch-2 (stride of the first layer in pixels), coarse-5 (the larger kernel), or several joined by +.

    Each is trained on CIFAR-10 for a few epochs and then planned at ring degrees 2^14 and 2^15. If interrupted, the
    same command resumes. Architectures can be added and limits changed later. OUT/ARCHITECTURE/seed-0 is a run folder.

    Args:
        designs: the architectures; a dozen by default, most of which differ in one property.
        sweep: settings of all trainings and plans. The data is CIFAR-10, as a .npz file or torchvision's folder.
        processes: number of architectures at a time.
        plan_again: repeat the plans, for example after a change of the planner or the machine.
        out: folder of the runs and of report.md, report.json and report.png.
        json: print JSON instead of a table.
    """
    require_at_least(0, images=sweep.images)
    require_at_least(1, epochs=sweep.epochs, processes=processes, memory=sweep.memory, key_memory=sweep.key_memory)
    trials = sweep.trials(designs)
    sweep.forget_plans(trials, out, everything=plan_again)
    train_all(COMMAND, sweep, trials, out, processes)
    return show_report(COMMAND, sweep, trials, out, json)
