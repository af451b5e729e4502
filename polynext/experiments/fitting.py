"""From a folder of images to a network for encrypted inference in a budget. The command is `polynext encrypted fit`.

Networks of growing size are proposed. Their cost is estimated before any training: rotations, keys and memory depend on
the architecture and hardly on the weights. The largest network within the budget is trained, checked and prepared.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polynext.config import EncryptionConfig, ScheduleConfig, TrainConfig, build_model, from_yaml
from polynext.data import DataConfig, Examples, Preprocessing, load_examples
from polynext.data.examples import balanced_sample
from polynext.encrypted.compiler.limits import Limits, Progress
from polynext.encrypted.compiler.prepare import EXAMPLES, PreparedNetwork, plan_run, prepare, save_samples
from polynext.encrypted.runtime.cost import MEBIBYTE, CostEstimate
from polynext.encrypted.server import SAMPLES
from polynext.errors import PolyNeXtError
from polynext.recipes import recipe
from polynext.runs import Run, load_run
from polynext.training import train

SIZE = 32  # pixels: patches of 4 give 8x8 positions
# A training sees about this many images, in at least and at most so many epochs.
IMAGES_SEEN, FEWEST_EPOCHS, MOST_EPOCHS = 200_000, 10, 100
STATISTICS_STEPS = 30
SERVER, RUN = "server", "run"


@dataclass(frozen=True)
class Size:
    """A network by its channels and stacks, and the ring degree that it needs."""

    width: int
    stacks: int
    ring_degree: int

    @property
    def name(self) -> str:
        return f"{self.width}x{self.stacks}"


# In the order of their cost.
SIZES = (
    Size(32, 1, 2**14),
    Size(64, 1, 2**14),
    Size(64, 2, 2**14),
    Size(64, 3, 2**15),
    Size(64, 4, 2**15),
    Size(128, 4, 2**15),
)


@dataclass(frozen=True)
class Proposal:
    """A network with its cost estimate, or the reason why there is none."""

    size: Size
    cost: CostEstimate | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What an encrypted prediction may take: seconds on one core, megabytes of keys and of memory, and the error."""

    seconds: float
    key_memory: int
    memory: int
    error: float

    def encryption(self, size: Size) -> EncryptionConfig:
        return EncryptionConfig(
            memory=self.memory, key_memory=self.key_memory, error=self.error, ring_degrees=(size.ring_degree,)
        )

    def limits(self, size: Size) -> Limits:
        # The predictions of an untrained network are uncertain: those that noise changes do not count.
        return Limits(self.memory * MEBIBYTE, self.key_memory * MEBIBYTE, (size.ring_degree,), self.error, flips=1.0)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained and prepared network, its test accuracy in percent, and the test images with logits out of range."""

    prepared: PreparedNetwork
    accuracy: float
    tested: int
    out_of_range: int


def folder_data(root: Path) -> DataConfig:
    """The data of a folder, with a preprocessing for its images: grey if all are, normalised by their statistics."""
    data = DataConfig(
        name="folder", root=root, preprocessing=Preprocessing(size=SIZE, resize=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    )
    examples = load_examples(data, "train")
    pixels = np.stack([np.asarray(image) for image in sample(examples, data.preprocessing)]) / 255
    if (pixels == pixels[..., :1]).all():
        pixels = pixels[..., :1]
    mean, std = pixels.mean(axis=(0, 1, 2)), pixels.std(axis=(0, 1, 2))
    shades = replace(
        data.preprocessing,
        mean=tuple(round(float(m), 4) for m in mean),
        std=tuple(max(round(float(s), 4), 0.01) for s in std),
    )
    return replace(data, preprocessing=shades)


def sample(examples: Examples, preprocessing: Preprocessing) -> Iterator[Any]:
    for i in balanced_sample(examples.labels, min(EXAMPLES, len(examples))):
        yield preprocessing.resized(preprocessing.coloured(examples.image(int(i))))


def config_for(data: DataConfig, size: Size, budget: Budget, epochs: int = 0) -> TrainConfig:
    """The recipe `cipher` with a network of this size, a length and batches that suit the number of images."""
    base, images = recipe("cipher"), len(load_examples(data, "train"))
    epochs = epochs or min(max(round(IMAGES_SEEN / images), FEWEST_EPOCHS), MOST_EPOCHS)
    batch = 2 ** min(7, max(2, int(math.log2(max(images / 8, 1)))))
    return replace(
        base,
        model=replace(base.model, widths=(size.width,), stacks=(size.stacks,)),
        data=data,
        optimizer=recipe("cipher_deep").optimizer,  # which needs fewer epochs
        schedule=ScheduleConfig(warmup_epochs=min(2, epochs // 4), min_lr=0.0),
        epochs=epochs,
        evaluate_every=max(1, epochs // 20),
        batch_size=batch,
        micro_batch=batch,
        compile=epochs * images >= IMAGES_SEEN // 2,
        encryption=budget.encryption(size),
    )


def propose(data: DataConfig, budget: Budget, progress: Progress) -> Iterator[Proposal]:
    """Networks in the order of their cost, up to the first that exceeds the budget."""
    examples = load_examples(data, "train")
    pixels = [data.preprocessing.normalise(image) for image in sample(examples, data.preprocessing)]
    images = torch.from_numpy(np.stack(pixels))
    for size in SIZES:
        model = build_model(config_for(data, size, budget), len(examples.classes))
        set_statistics(model, images)
        run = Run(size.name, model, data.preprocessing)
        proposal = estimate(run, images.double().numpy(), size, budget, progress)
        yield proposal
        if proposal.cost is None or proposal.cost.seconds > budget.seconds:
            return


def set_statistics(model: Any, images: torch.Tensor) -> None:
    """The statistics of the norms of an untrained network, which the range of its values depends on."""
    with torch.no_grad():
        for _ in range(STATISTICS_STEPS):
            model.train()(images)
    model.eval()


def estimate(run: Run, images: Any, size: Size, budget: Budget, progress: Progress) -> Proposal:
    def report(what: str) -> None:
        progress(what and f"{size.name}: {what}")

    try:
        plan = plan_run(run, limits=budget.limits(size), examples=images, progress=report)
    except PolyNeXtError as error:
        return Proposal(size, None, str(error))
    late = plan.cost.seconds > budget.seconds
    return Proposal(size, plan.cost, f"more than {budget.seconds:g} s" if late else "")


def choose(proposals: list[Proposal], name: str = "") -> Size:
    """The proposal of this name, or the largest within the budget."""
    if name:
        found = next((size for size in SIZES if size.name == name), None)
        if found is None:
            names = ", ".join(size.name for size in SIZES)
            raise PolyNeXtError(f"there is no network {name!r}: choose one of {names}.")
        return found
    fitting = [proposal.size for proposal in proposals if not proposal.why_not]
    if not fitting:
        raise PolyNeXtError(
            f"no network fits: {proposals[-1].why_not.rstrip('.')}. Allow more seconds, keys or memory."
        )
    return fitting[-1]


def fit(config: TrainConfig, out: Path, progress: Progress) -> Fitted:
    """Trains a network in OUT/run, or resumes, and writes its server folder OUT/server."""
    folder = out / RUN
    if (folder / "config.yaml").is_file():
        before = from_yaml((folder / "config.yaml").read_text(), str(folder / "config.yaml"), TrainConfig)
        if before != config:
            raise PolyNeXtError(f"{folder} has a run with other settings: give another --out, or the same options.")
    train(config, folder, resume=folder.is_dir())
    run = load_run(folder)
    prepared = prepare(run, progress=progress)
    accuracy, tested, out_of_range = check_range(run, prepared.spec.largest_logit)
    prepared.save(out / SERVER)
    save_samples(run, out / SERVER / SAMPLES, min(10, tested))
    return Fitted(prepared, accuracy, tested, out_of_range)


@torch.inference_mode()
def check_range(run: Run, largest: float) -> tuple[float, int, int]:
    """The test accuracy in percent, the number of test images, and how many of them have logits out of range."""
    images, labels, _ = run.images("test", len(load_examples(run.data, "test")))
    logits = run.model.float()(torch.from_numpy(images).float()).numpy()
    correct = 100 * float((logits.argmax(axis=1) == labels).mean())
    return correct, len(labels), int((np.abs(logits).max(axis=1) > largest).sum())
