"""What an ablation changes: the architecture, how its parts are built, and how it is trained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from polynext.errors import PolyNeXtError
from polynext.models.costs import count_macs, count_parameters
from polynext.models.dropin import replace_mixers
from polynext.models.network import Blocks, PolyNeXt, PolyNeXtConfig, StageConfig
from polynext.models.polynext import CONFIGS, falling
from polynext.recipes import recipe
from polynext.training import EmaConfig, TrainConfig
from polynext.training.engine import build_model


@dataclass(frozen=True)
class Setup:
    """A network to train and how to train it.

    Without an architecture it is the model that `train.model` names, with `mixers` (replace_mixers' options) put in.
    """

    train: TrainConfig
    classes: int
    architecture: PolyNeXtConfig | None = None
    blocks: Blocks | None = None
    mixers: dict[str, Any] | None = None

    def build(self, train: TrainConfig, classes: int, device: str | None = None) -> nn.Module:
        """The network; `device="meta"` to count only."""
        if self.architecture is None:
            named = build_model(train, classes, device)
            return replace_mixers(named, **self.mixers)[0] if self.mixers else named
        data, model = train.data, train.model
        return PolyNeXt(
            self.architecture,
            in_chans=len(data.mean),
            num_classes=classes,
            img_size=data.image_size,
            drop_rate=model.dropout,
            drop_path_rate=model.drop_path,
            blocks=self.blocks,
            device=device,
        )

    def costs(self) -> tuple[int, int]:
        """Parameters and multiply-accumulates."""
        model = self.build(self.train, self.classes, device="meta")
        size = self.train.data.image_size
        return count_parameters(model), count_macs(model, (len(self.train.data.mean), size, size))


# The networks of the ablations at small scales are ours: as the paper's Tiny in kind, with two inputs to cells and
# three stacks in them, and small enough to train many on a CPU.
DIGITS_CONV = PolyNeXtConfig(
    stages=(StageConfig(width=16, cells=2, stacks=3, coarse_kernel=3),),
    scale_logits=falling(6),
    stem_kernel=3,
    stem_stride=1,
)
DIGITS_ATTENTION = PolyNeXtConfig(
    stages=(
        StageConfig(width=16, cells=1, stacks=2, coarse_kernel=3),
        StageConfig(width=32, cells=2, stacks=2, mixer="attention"),
    ),
    scale_logits=falling(4),
    stem_kernel=3,
    stem_stride=1,
)


CIFAR10_CONV = replace(CONFIGS["cpolynext_micro"], stem_stride=2)


def attention_last(config: PolyNeXtConfig) -> PolyNeXtConfig:
    *first, last = config.stages
    return replace(config, stages=(*first, replace(last, mixer="attention")))


SMALL_SCALES = {
    "digits": (DIGITS_CONV, DIGITS_ATTENTION),
    "cifar10": (CIFAR10_CONV, attention_last(CIFAR10_CONV)),
}
METAFORMERS = ("convformer_s18", "caformer_s18")

# The paper's ablations are at Tiny scale, its cross-recipe table at Small; where there is one scale, they are the same.
FAMILIES = ("cpolynext", "apolynext", "cpolynext-s", "apolynext-s", "convformer", "caformer")


def baselines(scale: str) -> dict[str, Setup]:
    """The unchanged networks at a scale, by family."""
    if scale == "imagenet":
        named = ("cpolynext_tiny", "apolynext_tiny", "cpolynext_small", "apolynext_small")
        ours = [Setup(recipe(name), 1000, CONFIGS[name], Blocks()) for name in named]
        theirs = [Setup(recipe(name), 1000) for name in METAFORMERS]
    elif scale in SMALL_SCALES:
        # Short runs end before an average of their weights is worth anything.
        small = replace(recipe(scale), ema=EmaConfig(decay=0.0)) if scale == "cifar10" else recipe(scale)
        ours = 2 * [Setup(small, 10, architecture, Blocks()) for architecture in SMALL_SCALES[scale]]
        theirs = [Setup(as_trained_by(recipe(name), recipe(scale)), 10) for name in METAFORMERS]
    else:
        scales = ", ".join([*SMALL_SCALES, "imagenet"])
        raise PolyNeXtError(f"there are no ablations by the recipe {scale!r}: choose one of {scales}.")
    return dict(zip(FAMILIES, ours + theirs, strict=True))


def as_trained_by(theirs: TrainConfig, small: TrainConfig) -> TrainConfig:
    """A recipe's network, optimiser and regularisation on the data and in the time of a small one."""
    return replace(
        small,
        model=theirs.model,
        augment=theirs.augment,
        optimizer=theirs.optimizer,
        schedule=shortened(theirs, small.epochs).schedule,
        ema=theirs.ema,
    )


def shortened(train: TrainConfig, epochs: int) -> TrainConfig:
    """A run of other length, its warmup in proportion, but for the two epochs that make one at all."""
    warmup = train.schedule.warmup_epochs
    warmup = max(min(warmup, 2), math.ceil(warmup * epochs / train.epochs))
    return replace(train, epochs=epochs, schedule=replace(train.schedule, warmup_epochs=warmup))


def widened(setup: Setup, stacks: int) -> Setup:
    """Fewer stacks in each cell and wider stages, with the same number of parameters to 1%."""
    assert setup.architecture is not None
    architecture = setup.architecture
    wanted = setup.costs()[0]
    fewer = tuple(replace(s, stacks=min(s.stacks, stacks)) for s in architecture.stages)

    def of(stages: Sequence[StageConfig]) -> Setup:
        return replace(setup, architecture=replace(architecture, stages=tuple(stages)))

    def excess(stages: Sequence[StageConfig]) -> int:
        return count_parameters(of(stages).build(setup.train, setup.classes, device="meta")) - wanted

    def wider(factor: float) -> list[StageConfig]:
        return [replace(s, width=nearest_width(factor * s.width, s)) for s in fewer]

    low, high = 1.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(wider(middle)) < 0 else (low, middle)
    # Widths are whole numbers, which is too coarse for small networks: the last PolyMLPs' width makes up for the rest.
    *first, last = wider(low)
    hidden = int(last.width * last.mlp_ratio)  # PolyMLP truncates: the half below keeps it on the right side
    candidates = [[*first, replace(last, mlp_ratio=(hidden + 2 * i + 0.5) / last.width)] for i in range(17)]
    return of(min(candidates, key=lambda stages: abs(excess(stages))))


def width_step(stage: StageConfig) -> int:
    """The least step between widths for which PolyMLP's two branches have the same width."""
    return next(w for w in range(1, 65) if (w * stage.mlp_ratio) % 2 == 0)


def nearest_width(width: float, stage: StageConfig) -> int:
    step = width_step(stage)
    return max(step, step * round(width / step))
