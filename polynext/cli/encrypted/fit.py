"""`polynext encrypted fit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from polynext.cli.encrypted.planning import print_cost, show_planning
from polynext.encrypted.runtime.cost import mebibytes
from polynext.tables import table

if TYPE_CHECKING:
    from polynext.experiments.fitting import Proposal


def main(
    root: Annotated[Path, tyro.conf.Positional],
    seconds: float = 20.0,
    key_memory: int = 1024,
    memory: int = 8192,
    error: float = 1e-2,
    network: str = "",
    epochs: int = 0,
    only_propose: bool = False,
    out: Path = Path("runs/fit"),
) -> None:
    """From your own images to a server of encrypted predictions, within a budget.

    Proposes networks with their estimated costs, trains the largest one within the budget, checks its precision and the
    range of its logits, and prepares it for `polynext encrypted serve`. If interrupted, the same command resumes.

    Args:
        root: folder with one folder of images for each class, or with such folders in train and val. Without train and
            val, every fifth image of a class is for testing.
        seconds: seconds of an encrypted prediction on one core of this machine.
        key_memory: megabytes of rotation keys.
        memory: megabytes of memory for the server's process.
        error: largest error of the logits, relative to the largest logit.
        network: train this network, by its name in the table, without proposals.
        epochs: length of the training; by default it depends on the number of images.
        only_propose: end after the proposals.
        out: folder of the run and of the prepared server.
    """
    from polynext.experiments.fitting import SERVER, Budget, choose, config_for, fit, folder_data, propose

    data, budget = folder_data(root), Budget(seconds=seconds, key_memory=key_memory, memory=memory, error=error)
    proposals = []
    if not network:
        proposals = list(propose(data, budget, show_planning))
        print(proposal_table(proposals))
    if only_propose:
        return
    size = choose(proposals, network)
    config = config_for(data, size, budget, epochs)
    print(f"\nTraining {size.name}, {config.epochs} epochs, in {out}:", flush=True)
    fitted = fit(config, out, show_planning)
    print()
    print_cost(fitted.prepared.plan)
    print(
        f"\n{fitted.accuracy:.1f}% of {fitted.tested} test images are correct. {fitted.out_of_range} of them have "
        "logits out of range, which clients refuse."
    )
    print(f"\nServe it:\n    polynext encrypted serve {out / SERVER}")


def proposal_table(proposals: "list[Proposal]") -> str:
    rows = []
    for proposal in proposals:
        cost = proposal.cost
        numbers = ("-",) * 3
        if cost is not None:
            numbers = (f"{cost.seconds:.2f}", mebibytes(cost.key_bytes), mebibytes(cost.peak_bytes))
        size = proposal.size
        rows.append((size.name, str(size.width), str(size.stacks), *numbers, proposal.why_not or "within the budget"))
    return table(("network", "channels", "stacks", "seconds", "keys", "memory", ""), rows, left=(0, 6))
