"""The unchanged networks of the ablations and their training configs, at each scale."""

from dataclasses import replace

from polynext.data import DATA_SETS
from polynext.errors import PolyNeXtError
from polynext.experiments.sweep import shortened
from polynext.models.costs import count_macs, count_parameters
from polynext.recipes import recipe
from polynext.training import EmaConfig, ModelConfig, TrainConfig, build_model

# The paper's ablations use the Tiny networks, its cross-recipe table the Small ones (-s). Below ImageNet's scale both
# are the same network. The peer is a MetaFormer of the size of cpolynext-s, trained by the same recipe.
FAMILIES = ("cpolynext", "apolynext", "cpolynext-s", "apolynext-s", "convformer", "caformer", "peer")
METAFORMERS = ("convformer_s18", "caformer_s18")
SMALL_SCALES = ("digits", "cifar10")


def baselines(scale: str) -> dict[str, TrainConfig]:
    """The config of each family's unchanged network at a scale: digits, cifar10 or imagenet."""
    if scale == "imagenet":
        ours = [recipe(f"{kind}_{size}") for size in ("tiny", "small") for kind in ("cpolynext", "apolynext")]
        small = recipe("cpolynext_small")
        theirs = [recipe(name) for name in METAFORMERS]
        theirs.append(replace(small, model=replace(small.model, name="convformer_s18", memory="plain")))
    elif scale in SMALL_SCALES:
        small = recipe(scale)
        # Short runs end before averaged weights are useful.
        ema = EmaConfig(decay=0.0) if scale == "cifar10" else small.ema
        names = [f"{kind}_ablate_{scale}" for kind in ("cpolynext", "apolynext")]
        ours = 2 * [replace(small, model=ModelConfig(name=name), ema=ema) for name in names]
        theirs = [as_trained_by(recipe(name), small) for name in METAFORMERS]
        theirs.append(replace(small, model=ModelConfig(name=f"convformer_ablate_{scale}"), ema=ema))
    else:
        scales = ", ".join([*SMALL_SCALES, "imagenet"])
        raise PolyNeXtError(f"there are no ablations with the recipe {scale!r}: choose one of {scales}.")
    return dict(zip(FAMILIES, ours + theirs, strict=True))


def as_trained_by(theirs: TrainConfig, small: TrainConfig) -> TrainConfig:
    """A recipe's network, optimiser and regularisation with the data and the length of a small recipe."""
    return replace(
        small,
        model=theirs.model,
        augment=theirs.augment,
        optimizer=theirs.optimizer,
        schedule=shortened(theirs, small.epochs).schedule,
        ema=theirs.ema,
    )


def costs(train: TrainConfig) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a config's network."""
    classes = DATA_SETS[train.data.name].classes
    assert classes is not None, "the data sets of ablations have a known number of classes"
    model = build_model(train, classes, device="meta")
    return count_parameters(model), count_macs(model, train.data.preprocessing.input_size)
