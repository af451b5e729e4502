"""The unchanged networks of the ablations, and how they are trained, at each scale."""

from dataclasses import replace

from polynext.data import DATA_SETS
from polynext.errors import PolyNeXtError
from polynext.experiments.sweep import shortened
from polynext.models.costs import count_macs, count_parameters
from polynext.recipes import recipe
from polynext.training import EmaConfig, ModelConfig, TrainConfig, build_model

# The paper's ablations are at Tiny scale, its cross-recipe table at Small; where there is one scale, they are the same.
FAMILIES = ("cpolynext", "apolynext", "cpolynext-s", "apolynext-s", "convformer", "caformer")
METAFORMERS = ("convformer_s18", "caformer_s18")
SMALL_SCALES = ("digits", "cifar10")


def baselines(scale: str) -> dict[str, TrainConfig]:
    """The unchanged networks at a scale, by family."""
    if scale == "imagenet":
        ours = [recipe(f"{kind}_{size}") for size in ("tiny", "small") for kind in ("cpolynext", "apolynext")]
        theirs = [recipe(name) for name in METAFORMERS]
    elif scale in SMALL_SCALES:
        small = recipe(scale)
        # Short runs end before an average of their weights is worth anything.
        ema = EmaConfig(decay=0.0) if scale == "cifar10" else small.ema
        names = [f"{kind}_ablate_{scale}" for kind in ("cpolynext", "apolynext")]
        ours = 2 * [replace(small, model=ModelConfig(name=name), ema=ema) for name in names]
        theirs = [as_trained_by(recipe(name), small) for name in METAFORMERS]
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


def costs(train: TrainConfig) -> tuple[int, int]:
    """Parameters and multiply-accumulates of what is trained."""
    classes = DATA_SETS[train.data.name].classes
    assert classes is not None, "ablations are on data sets of which the classes are known"
    model = build_model(train, classes, device="meta")
    return count_parameters(model), count_macs(model, train.data.preprocessing.input_size)
