"""From a trained network to a plan, and to a server's folder. This needs torch; serving does not."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from polynext.encrypted.client_spec import Offer
from polynext.encrypted.compiler.planner import Limits, Plan, make_plan
from polynext.encrypted.server import SAMPLES, save_server
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


def prepare(run: "Run", folder: Path, images: int = 1, limits: Limits | None = None, samples: int = 0) -> Plan:
    """Makes a server's folder. Its offer.json is for clients and holds no weights, its samples are for everybody."""
    require_at_least(0, samples=samples)
    plan = plan_run(run, images, limits)
    save_server(plan, offer_for(plan, run), folder)
    save_samples(run, folder / SAMPLES, samples)
    return plan


def save_samples(run: "Run", folder: Path, count: int) -> None:
    """So many test pictures of all classes, each called by a number and its class."""
    if count == 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    _, labels, pictures = run.images("test", count)
    for number, (label, pixels) in enumerate(zip(labels, pictures, strict=True), start=1):
        name = re.sub(r"[^A-Za-z0-9]+", "-", run.class_names[label])[:40]
        Image.fromarray(pixels).save(folder / f"{number:02}-{name}.png")
