"""The rows of the paper's ablation tables, and further rows, as changes of a baseline's config. `ROWS` lists all.

A row changes the network by the name of a variant (`polynext.models.variants`), the recipe, or both.
"""

import functools
import math
from collections.abc import Callable, Iterable
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
    """One ablation.

    Attributes:
        name: the row's name in commands and reports.
        table: the ablation table that it belongs to.
        family: the baseline that it changes.
        what: a short description of the change.
        change: returns the changed config.
    """

    name: str
    table: str
    family: str
    what: str
    change: Change


def variant_row(table: str, family: str, variant: str, name: str = "", then: Change | None = None) -> Row:
    """A row that changes the network to a variant; `then` changes the recipe too."""

    def change(train: TrainConfig) -> TrainConfig:
        changed = replace(train, model=replace(train.model, variant=variant))
        return then(changed) if then else changed

    return Row(name or variant, table, family, VARIANTS[variant].what, change)


def variant_rows(table: str, family: str, variants: Iterable[str]) -> list[Row]:
    return [variant_row(table, family, variant) for variant in variants]


def with_warmup(train: TrainConfig) -> TrainConfig:
    """Makes the warmup at least a sixtieth of the run: five epochs of 300."""
    epochs = max(train.schedule.warmup_epochs, math.ceil(train.epochs / 60))
    return replace(train, schedule=replace(train.schedule, warmup_epochs=epochs))


# Table 3. The MLP with GELU needs a warmup, as the table's footnote says.
MODULES = [
    replace(
        variant_row("modules", "cpolynext", "mlp-gelu", then=with_warmup), what="PolyMLP -> MLP+GELU, post-norm, warmup"
    ),
    *variant_rows(
        "modules",
        "cpolynext",
        ("sepconv-gelu", "gelu-one-branch", "gelu-after-product", "gelu-both-branches", "fine-only", "addition"),
    ),
    *variant_rows(
        "modules",
        "apolynext",
        ("attention-mlp-gelu", "standard-attention", "softmax-kernel", "degree-3", "degree-5"),
    ),
]

# Table 4
STABILISATION = variant_rows(
    "stabilisation",
    "cpolynext",
    ("learnable-scale", "layerscale-small", "layerscale-one", "single-input", "no-cell-norm", "wider-2", "wider-1"),
)

# Section 4.3
DROPIN = [
    replace(variant_row("dropin", "caformer", variant, name=f"caformer-{variant}"), what=f"CAFormer-S18, {what}")
    for variant, what in (
        ("polyconv", "convolutions -> PolyConv"),
        ("polyattn", "attention -> PolyAttn"),
        ("poly", "both"),
    )
]


def constant_dropout(train: TrainConfig) -> TrainConfig:
    """The full head dropout from the first epoch on. The paper's losses became NaN with it (Appendix C.3).

    The rate is the baseline's, or CPolyNeXt-S's if the baseline has no dropout.
    """
    dropout = train.model.dropout or recipe("cpolynext_small").model.dropout
    return replace(train, model=replace(train.model, dropout=dropout, dropout_rises=False))


# Ablations that are not in the paper's tables.
FURTHER = [
    *variant_rows(
        "further",
        "cpolynext",
        ("no-flip", "no-dilation", "scales-half", "scales-falling", "scales-halving", "position-norm"),
    ),
    *variant_rows("further", "apolynext", ("degree-2", "degree-6")),
    variant_row("further", "apolynext", "position-norm", name="attention-position-norm"),
    Row("constant-dropout", "further", "cpolynext-s", "head dropout constant, not rising", constant_dropout),
]


# Cross-recipe (Table 5). The optimiser includes learning rate, batch, decay, clipping and warmup. Everything else is
# regularisation.
CONVFORMER, OURS, OURS_A = "convformer_s18", "cpolynext_small", "apolynext_small"


def optimizer_of(source: str) -> Change:
    def change(train: TrainConfig) -> TrainConfig:
        theirs = shortened(recipe(source), train.epochs)
        if train.data.name == theirs.data.name:  # a learning rate belongs to its batch size
            train = replace(train, batch_size=theirs.batch_size, micro_batch=theirs.micro_batch)
        return replace(train, optimizer=theirs.optimizer, schedule=theirs.schedule)

    return change


def regularisation_of(source: str) -> Change:
    def change(train: TrainConfig) -> TrainConfig:
        theirs = recipe(source)
        model = replace(train.model, drop_path=theirs.model.drop_path, dropout=theirs.model.dropout)
        return replace(train, model=model, augment=theirs.augment, ema=theirs.ema)

    return change


def recipe_of(source: str) -> Change:
    return lambda train: regularisation_of(source)(optimizer_of(source)(train))


RECIPES = [
    Row(name, "recipes", family, what, change)
    for family, name, what, change in (
        (
            "cpolynext-s",
            "cpolynext-convformer-optimizer",
            "CPolyNeXt, ConvFormer's optimiser",
            optimizer_of(CONVFORMER),
        ),
        (
            "apolynext-s",
            "apolynext-convformer-optimizer",
            "APolyNeXt, ConvFormer's optimiser",
            optimizer_of(CONVFORMER),
        ),
        ("convformer", "convformer-our-optimizer", "ConvFormer-S18, our optimiser", optimizer_of(OURS)),
        ("convformer", "convformer-our-regularisation", "ConvFormer-S18, our regularisation", regularisation_of(OURS)),
        ("convformer", "convformer-our-recipe", "ConvFormer-S18, our full recipe", recipe_of(OURS)),
        ("caformer", "caformer-our-optimizer", "CAFormer-S18, our optimiser", optimizer_of(OURS_A)),
        ("caformer", "caformer-our-regularisation", "CAFormer-S18, our regularisation", regularisation_of(OURS_A)),
        ("caformer", "caformer-our-recipe", "CAFormer-S18, our full recipe", recipe_of(OURS_A)),
    )
]

ABLATION_TABLES: dict[str, list[Row]] = {
    "modules": MODULES,
    "stabilisation": STABILISATION,
    "recipes": RECIPES,
    "dropin": DROPIN,
    "further": FURTHER,
}
ROWS: dict[str, Row] = {row.name: row for table in ABLATION_TABLES.values() for row in table}


@functools.cache
def obstacle(name: str, scale: str) -> str | None:
    """Why a row cannot be trained at a scale: its variant does not apply, or changes nothing. None if it can."""
    row = ROWS[name]
    train = row.change(baselines(scale)[row.family])
    if not train.model.variant:
        return None
    try:
        build_model(train, 10, device="meta")
    except PolyNeXtError as error:
        return str(error)
    return None
