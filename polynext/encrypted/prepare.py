"""From a trained network to a plan, and to a server's folder. This needs torch; serving does not."""

from pathlib import Path
from typing import TYPE_CHECKING

from polynext.encrypted.offer import Offer
from polynext.encrypted.planner import Limits, Plan, make_plan
from polynext.encrypted.server import save_server
from polynext.errors import PolyNeXtError, require_at_least

if TYPE_CHECKING:
    from polynext.runs import Run

# As many training images as the ranges of the values inside the network are estimated from.
EXAMPLES = 256


def plan_run(run: "Run", images: int = 1, limits: Limits | None = None) -> Plan:
    """How to run a trained, fully polynomial network encrypted, with so many images in a ciphertext."""
    from polynext.circuit.lowering import lower

    require_at_least(1, images=images)
    if run.config is None:
        raise PolyNeXtError(
            f"{run.name} does not say what it was trained on, and its values are scaled by such images: give the "
            "folder of a training run."
        )
    examples, _, _ = run.images("train", EXAMPLES)
    return make_plan(lower(run.model), examples, images, limits)


def offer_for(plan: Plan, run: "Run") -> Offer:
    return Offer.of(plan, run.preprocessing, tuple(run.class_names))


def prepare(run: "Run", folder: Path, images: int = 1, limits: Limits | None = None) -> Plan:
    """Makes a server's folder. Its offer.json is for clients and holds no weights."""
    plan = plan_run(run, images, limits)
    save_server(plan, offer_for(plan, run), folder)
    return plan
