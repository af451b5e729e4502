"""From a trained network to a plan and to a server's folder. This needs torch; serving does not."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.compiler.planner import Limits, Plan, make_plan
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.server import SAMPLES, save_server
from polynext.errors import PolyNeXtError, require_at_least
from polynext.preprocessing import Preprocessing

if TYPE_CHECKING:
    from polynext.runs import Run

# The number of training images that the ranges of the values inside the network are estimated from.
EXAMPLES = 256


def plan_run(run: "Run", images: int = 1, limits: Limits | None = None) -> Plan:
    """Plans how to run a trained, fully polynomial network encrypted, with `images` images in a ciphertext."""
    from polynext.circuit.lowering import lower

    require_at_least(1, images=images)
    if run.config is None:
        raise PolyNeXtError(
            f"{run.name} does not record its training data, and planning needs example images: give the folder of a "
            "training run."
        )
    examples, _, _ = run.images("train", EXAMPLES)
    return make_plan(lower(run.model), examples, images, limits)


def client_spec_for(plan: Plan, preprocessing: Preprocessing, classes: Sequence[str]) -> ClientSpec:
    """What the clients of a server with this plan need to know."""
    program = plan.program
    return ClientSpec(
        backend=plan.backend,
        library=get_backend(plan.backend).library,
        parameters=plan.parameters,
        rotations=program.rotations,
        image_shape=plan.circuit.input.image_shape,
        image_layout=program.layouts[0],
        result_layout=program.layouts[-1],
        preprocessing=preprocessing,
        classes=tuple(classes),
        cost=plan.cost,
    )


def prepare(run: "Run", folder: Path, images: int = 1, limits: Limits | None = None, samples: int = 0) -> Plan:
    """Writes a server's folder. client_spec.json is for clients and contains no weights; samples are public images."""
    require_at_least(0, samples=samples)
    plan = plan_run(run, images, limits)
    save_server(plan.program, client_spec_for(plan, run.preprocessing, run.class_names), folder)
    save_samples(run, folder / SAMPLES, samples)
    return plan


def save_samples(run: "Run", folder: Path, count: int) -> None:
    """Saves test images of all classes, named by number and class."""
    if count == 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    _, labels, images = run.images("test", count)
    for number, (label, pixels) in enumerate(zip(labels, images, strict=True), start=1):
        name = re.sub(r"[^A-Za-z0-9]+", "-", run.class_names[label])[:40]
        Image.fromarray(pixels).save(folder / f"{number:02}-{name}.png")
