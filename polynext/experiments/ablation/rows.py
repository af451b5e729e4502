"""The rows of the paper's ablation tables, and further rows, as changes of a baseline's config. `ROWS` lists all.

A row changes the network by the name of a variant (`polynext.models.variants`), the recipe, or both.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from polynext.errors import PolyNeXtError
from polynext.experiments.ablation.baselines import baselines
from polynext.experiments.sweep import shortened
from polynext.models import VARIANTS
from polynext.recipes import recipe
from polynext.training import TrainConfig, build_model

Change = Callable[[TrainConfig], TrainConfig]


@dataclass(frozen=True)
class Row:
    """One ablation: `change` turns the config of the baseline `family` into the row's; `what` describes it in words."""

    name: str
    table: str
    family: str
    what: str
    change: Change


def to_variant(variant: str) -> Change:
    return lambda train: replace(train, model=replace(train.model, variant=variant))


def variant_rows(table: str, family: str, *variants: str) -> list[Row]:
    return [Row(variant, table, family, VARIANTS[variant].what, to_variant(variant)) for variant in variants]


def gelu_with_warmup(train: TrainConfig) -> TrainConfig:
    """The MLP with GELU and a warmup of at least a sixtieth of the run: five epochs of 300."""
    epochs = max(train.schedule.warmup_epochs, math.ceil(train.epochs / 60))
    return to_variant("mlp-gelu")(replace(train, schedule=replace(train.schedule, warmup_epochs=epochs)))


def constant_dropout(train: TrainConfig) -> TrainConfig:
    """The full head dropout from the first epoch on. The paper's losses became NaN with it (Appendix C.3).

    The rate is the baseline's, or CPolyNeXt-S's if the baseline has no dropout.
    """
    dropout = train.model.dropout or recipe("cpolynext_small").model.dropout
    return replace(train, model=replace(train.model, dropout=dropout, dropout_rises=False))


def optimizer_of(source: str) -> Change:
    """Takes another recipe's optimiser, with its learning rate, batch, decay, clipping and schedule.

    The cosine keeps its length; epochs of cooldown belong to the schedule. On ImageNet our networks train 310 epochs
    with MetaFormer's optimiser, and MetaFormers 300 with ours.
    """

    def change(train: TrainConfig) -> TrainConfig:
        theirs = recipe(source)
        if train.data.name == theirs.data.name:  # a learning rate belongs to its batch size
            train = replace(train, batch_size=theirs.batch_size, micro_batch=theirs.micro_batch)
        cosine, their_cosine = cosine_epochs(train), cosine_epochs(theirs)
        epochs = cosine + round(theirs.schedule.cooldown_epochs * min(1.0, cosine / their_cosine))
        theirs = shortened(theirs, epochs)
        return replace(train, optimizer=theirs.optimizer, schedule=theirs.schedule, epochs=epochs)

    return change


def cosine_epochs(train: TrainConfig) -> int:
    """The epochs of warmup and cosine."""
    return train.epochs - train.schedule.cooldown_epochs


def regularisation_of(source: str) -> Change:
    """Takes everything but the optimiser from another recipe."""

    def change(train: TrainConfig) -> TrainConfig:
        theirs = recipe(source)
        model = replace(train.model, drop_path=theirs.model.drop_path, dropout=theirs.model.dropout)
        return replace(train, model=model, augment=theirs.augment, ema=theirs.ema)

    return change


def recipe_of(source: str) -> Change:
    return lambda train: regularisation_of(source)(optimizer_of(source)(train))


def scaled_learning_rate(factor: float) -> Change:
    return lambda train: replace(train, optimizer=replace(train.optimizer, lr=factor * train.optimizer.lr))


def scaled_batch(factor: float) -> Change:
    """Another batch size at the same learning rate and number of epochs."""

    def change(train: TrainConfig) -> TrainConfig:
        size = round(factor * train.batch_size)
        return replace(train, batch_size=size, micro_batch=min(size, train.micro_batch))

    return change


GELU_VARIANTS = ("gelu-one-branch", "gelu-both-branches", "gelu-after-product")

# Table 3. The MLP with GELU needs a warmup, as the table's footnote says.
MODULES = [
    Row("mlp-gelu", "modules", "cpolynext", "PolyMLP -> MLP+GELU, post-norm, warmup", gelu_with_warmup),
    *variant_rows("modules", "cpolynext", "sepconv-gelu", "gelu-one-branch", "gelu-after-product"),
    *variant_rows("modules", "cpolynext", "gelu-both-branches", "fine-only", "addition"),
    *variant_rows("modules", "apolynext", "attention-mlp-gelu", "standard-attention", "softmax-kernel"),
    *variant_rows("modules", "apolynext", "degree-3", "degree-5"),
]

# Table 4
STABILISATION = [
    *variant_rows("stabilisation", "cpolynext", "learnable-scale", "layerscale-small", "layerscale-one"),
    *variant_rows("stabilisation", "cpolynext", "single-input", "no-cell-norm"),
    *variant_rows("stabilisation", "cpolynext", "wider-2", "wider-2-macs", "wider-1", "wider-1-macs"),
]

# Table 5
CONVFORMERS = optimizer_of("convformer_s18")
RECIPES = [
    Row(f"{family}-convformer-optimizer", "recipes", f"{family}-s", f"{model}, ConvFormer's optimiser", CONVFORMERS)
    for family, model in (("cpolynext", "CPolyNeXt"), ("apolynext", "APolyNeXt"))
] + [
    Row(f"{family}-our-{part}", "recipes", family, f"{model}, our {words}", change(ours))
    for family, model, ours in (
        ("convformer", "ConvFormer-S18", "cpolynext_small"),
        ("caformer", "CAFormer-S18", "apolynext_small"),
    )
    for part, words, change in (
        ("optimizer", "optimiser", optimizer_of),
        ("regularisation", "regularisation", regularisation_of),
        ("recipe", "full recipe", recipe_of),
    )
]

# Section 4.3
DROPIN = [
    Row(f"caformer-{variant}", "dropin", "caformer", f"CAFormer-S18, {what}", to_variant(variant))
    for variant, what in (
        ("polyconv", "convolutions -> PolyConv"),
        ("polyattn", "attention -> PolyAttn"),
        ("poly", "both"),
    )
]

# Ablations that are not in the paper's tables.
FURTHER = [
    *variant_rows("further", "cpolynext", "no-flip", "no-dilation", "scales-half", "scales-falling", "scales-halving"),
    *variant_rows("further", "cpolynext", "position-norm"),
    *variant_rows("further", "apolynext", "degree-2", "degree-6"),
    *variant_rows("further", "cpolynext", "conv-gelu-one-branch", "conv-gelu-after-product", "conv-gelu-both-branches"),
]

# What of Table 7's gap for attention is due to which norm: the rows replace one kind, both, and both without the
# additional norm before the output projection.
NORMS = [
    *variant_rows("norms", "apolynext", "row-sums-alone", "position-norms-alone"),
    replace(*variant_rows("norms", "apolynext", "position-norm"), name="attention-position-norm"),
    *variant_rows("norms", "apolynext", "no-output-norm"),
]

# Appendix C.3
DROPOUT = [Row("constant-dropout", "dropout", "cpolynext-s", "head dropout constant, not rising", constant_dropout)]

# Section 5: sensitivity to the learning rate and the batch size, of PolyNeXt and of a MetaFormer of its size.
FACTORS = {"lr": (0.25, 0.5, 2.0, 4.0, 8.0), "batch": (0.25, 4.0)}
SENSITIVITY = [
    Row(f"{family}-{what}-x{factor:g}", "sensitivity", family, f"{model}, {what} x {factor:g}", change(factor))
    for family, model in (("cpolynext-s", "CPolyNeXt"), ("peer", "ConvFormer of its size"))
    for what, change in (("lr", scaled_learning_rate), ("batch", scaled_batch))
    for factor in FACTORS[what]
]

# Section 5: the rows that `discussion.py` measures, by question.
COUPLING = [row for row in MODULES if row.name in ("addition", *GELU_VARIANTS)]
SCALES = [row for row in STABILISATION if row.name in ("learnable-scale", "layerscale-small", "layerscale-one")]
AMPLIFICATION = [row for row in STABILISATION if row.name in ("layerscale-one", "single-input", "no-cell-norm")]
QUESTIONS = {"coupling": COUPLING, "scales": SCALES, "amplification": AMPLIFICATION, "sensitivity": SENSITIVITY}

ABLATION_TABLES: dict[str, list[Row]] = {
    "modules": MODULES,
    "stabilisation": STABILISATION,
    "recipes": RECIPES,
    "dropin": DROPIN,
    "dropout": DROPOUT,
    "norms": NORMS,
    "further": FURTHER,
    **QUESTIONS,
    "discussion": [row for rows in QUESTIONS.values() for row in rows],
}
ROWS: dict[str, Row] = {row.name: row for table in ABLATION_TABLES.values() for row in table}


@functools.cache
def obstacle(name: str, scale: str) -> str | None:
    """Why a row cannot be trained at a scale: its variant does not apply, or changes nothing. None if it can."""
    row = ROWS[name]
    train = row.change(baselines(scale)[row.family])
    if not train.model.variant and not train.model.architecture:
        return None
    try:
        build_model(train, 10, device="meta")
    except PolyNeXtError as error:
        return str(error)
    return None
