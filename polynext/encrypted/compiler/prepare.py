"""From a trained network to a plan and to a server's folder. This needs torch; serving does not."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from polynext.arrays import Array
from polynext.encrypted.client_spec import ClientSpec
from polynext.encrypted.compiler.limits import Limits, Progress
from polynext.encrypted.compiler.planner import Plan, make_plan
from polynext.encrypted.local import LocalServer
from polynext.encrypted.remote import Images, prepare_images
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.cost import MEBIBYTE, CostEstimate
from polynext.encrypted.server import save_server
from polynext.errors import PolyNeXtError, require_at_least
from polynext.preprocessing import Preprocessing

if TYPE_CHECKING:
    from polynext.runs import Run

# The number of training images that the ranges of the values inside the network are estimated from.
EXAMPLES = 256


@dataclass(frozen=True, eq=False)
class PreparedNetwork:
    """A network that is ready to run encrypted: its plan, and what its clients need to know."""

    plan: Plan
    spec: ClientSpec

    @property
    def cost(self) -> CostEstimate:
        return self.plan.cost

    def save(self, folder: Path) -> None:
        """Write a server's folder. client_spec.json is for clients and contains no weights."""
        save_server(self.plan.program, self.spec, folder)

    def server(self) -> LocalServer:
        """A server in this process. `polynext encrypted serve` serves a saved folder over HTTP."""
        return LocalServer(self.plan.program, self.spec)


def prepare(
    run: "Run",
    examples: Images | None = None,
    images: int = 1,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> PreparedNetwork:
    """Compiles a trained, fully polynomial network for encrypted inference.

    Args:
        run: the network.
        examples: typical images, as files, PIL images or an array of normalised images. Values inside the network are
            scaled by them. By default images of the training data.
        images: the number of images in a ciphertext.
        limits: limits of the plan; by default those in the config of the training run.
        progress: a function that is called with what the planner does.
    """
    plan = plan_run(run, images, limits, examples, progress)
    return PreparedNetwork(plan, client_spec_for(plan, run.preprocessing, run.class_names))


def plan_run(
    run: "Run",
    images: int = 1,
    limits: Limits | None = None,
    examples: Images | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plans how to run a trained network encrypted; the arguments are those of `prepare`."""
    from polynext.circuit.lowering import lower

    require_at_least(1, images=images)
    pixels = example_images(run, examples)  # first: without them, lowering would be in vain
    return make_plan(lower(run.model), pixels, images, limits or limits_of(run), progress=progress)


def example_images(run: "Run", given: Images | None) -> Array:
    """The given images, or images of the training data, as the network takes them."""
    if isinstance(given, Path | str):
        raise PolyNeXtError(
            f"the example images are {str(given)!r}: give a list of images, or leave them out. "
            "`prepare(run).save(folder)` writes a server folder."
        )
    if given is not None:
        return prepare_images(given, run.preprocessing)
    if run.config is None:
        raise PolyNeXtError(
            f"{run.name} does not record its training data, and planning needs example images: give the folder of a "
            "training run, or in Python `prepare(run, images)`."
        )
    return run.images("train", EXAMPLES)[0]


def limits_of(run: "Run") -> Limits:
    """The limits in the config of a network's training run."""
    if run.config is None:
        return Limits()
    own = run.config.encryption
    return Limits(
        memory=own.memory * MEBIBYTE,
        keys=own.key_memory * MEBIBYTE,
        ring_degrees=own.ring_degrees or None,
        error=own.error,
        clients=own.clients,
    )


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


def save_samples(run: "Run", folder: Path, count: int) -> None:
    """Saves public test images of all classes, named by number and class."""
    require_at_least(0, samples=count)
    if count == 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    _, labels, images = run.images("test", count)
    for number, (label, pixels) in enumerate(zip(labels, images, strict=True), start=1):
        name = re.sub(r"[^A-Za-z0-9]+", "-", run.class_names[label])[:40]
        Image.fromarray(pixels).save(folder / f"{number:02}-{name}.png")
