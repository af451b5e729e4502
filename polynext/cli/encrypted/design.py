"""`polynext encrypted design`."""

from pathlib import Path

from polynext.errors import require_at_least

COMMAND = "polynext encrypted design"


def main(
    widths: tuple[int, ...] = (),
    stacks: tuple[int, ...] = (),
    patch: int | None = None,
    coarse_kernel: int | None = None,
    variant: str = "",
    images: int = 10_000,
    epochs: int = 4,
    root: Path = Path("data"),
    memory: int = 8192,
    key_memory: int = 1536,
    error: float = 1e-2,
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
        widths: the architecture to add: channels of each stage. Without it and the next four options, a dozen
            architectures, most of which differ in one property.
        stacks: stacks in the cells of each stage; one number is for all stages.
        patch: side of the stem's patches, in pixels.
        coarse_kernel: side of PolyConv's coarse kernel; odd.
        variant: a variant of the model by name.
        images: number of training images; 0 for all.
        epochs: length of each training.
        root: folder or .npz file of CIFAR-10.
        memory: megabytes of memory for the server's process.
        key_memory: megabytes of rotation keys.
        error: largest error of the logits, relative to the largest logit.
        processes: number of architectures at a time.
        plan_again: repeat the plans, for example after a change of the planner or the machine.
        out: folder of the runs and of report.md, report.json and report.png.
        json: print JSON instead of a table.
    """
    from polynext.cli.sweeps import show_report, train_all
    from polynext.experiments.architectures import ARCHITECTURES, Architecture, ArchitectureSweep

    require_at_least(1, processes=processes)
    added = Architecture(widths=widths, stacks=stacks, patch=patch, coarse_kernel=coarse_kernel, variant=variant)
    sweep = ArchitectureSweep(
        architectures=ARCHITECTURES if added == Architecture() else (added,),
        epochs=epochs,
        memory=memory,
        key_memory=key_memory,
        error=error,
        images=images,
        root=str(root),
    )
    sweep.check()
    sweep = sweep.with_those_in(out)
    trials = sweep.trials()
    sweep.forget_plans(trials, out, everything=plan_again)
    train_all(COMMAND, sweep, trials, out, processes)
    return show_report(COMMAND, sweep, trials, out, json)
