"""Every row of the paper's ablation tables, and a few more, as a change to a baseline's config. `ROWS` lists them all.

A row changes the network by naming one of the model's variants (`polynext.models.variants`), or the recipe, or both.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from polynext.errors import PolyNeXtError
from polynext.experiments.ablation.baselines import baselines
from polynext.experiments.sweep import shortened
from polynext.models import VARIANTS
from polynext.recipes import recipe
from polynext.training import TrainConfig, build_model

Table = Literal["modules", "stabilisation", "recipes", "dropin", "further"]
Change = Callable[[TrainConfig], TrainConfig]


@dataclass(frozen=True)
class Row:
    """One ablation: what it changes in the baseline of its family."""

    name: str
    table: Table
    family: str
    what: str
    change: Change


def variant_row(table: Table, family: str, variant: str, name: str = "", then: Change | None = None) -> Row:
    """A row that changes the network, and the recipe if there is a `then`."""

    def change(train: TrainConfig) -> TrainConfig:
        changed = replace(train, model=replace(train.model, variant=variant))
        return then(changed) if then else changed

    return Row(name or variant, table, family, VARIANTS[variant].what, change)


def variant_rows(table: Table, family: str, variants: Iterable[str]) -> list[Row]:
    return [variant_row(table, family, variant) for variant in variants]


def with_warmup(train: TrainConfig) -> TrainConfig:
    """At least a sixtieth of the run (five epochs of 300) as warmup."""
    epochs = max(train.schedule.warmup_epochs, math.ceil(train.epochs / 60))
    return replace(train, schedule=replace(train.schedule, warmup_epochs=epochs))


# Table 3. The MLP with GELU needs a warmup (the paper's footnote).
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
    """From the first epoch on, where the paper saw losses that are no numbers (Appendix C.3).

    As much as in the baseline; as CPolyNeXt-S on ImageNet has where that has none.
    """
    dropout = train.model.dropout or recipe("cpolynext_small").model.dropout
    return replace(train, model=replace(train.model, dropout=dropout, dropout_rises=False))


# What a reader may ask further; the paper has no figures for these.
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


# Cross-recipe (Table 5). Optimiser: with its rate, batch, decay, clipping and warmup. Regularisation: everything else.


def optimizer_of(source: str) -> Change:
    def change(train: TrainConfig) -> TrainConfig:
        theirs = shortened(recipe(source), train.epochs)
        if train.data.name == theirs.data.name:  # a rate goes with its batch, at its own scale
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


def recipe_rows(family: str, *entries: tuple[str, str, Change]) -> list[Row]:
    return [Row(name, "recipes", family, what, change) for name, what, change in entries]


RECIPES = [
    *recipe_rows(
        "cpolynext-s",
        ("cpolynext-convformer-optimizer", "CPolyNeXt, ConvFormer's optimiser", optimizer_of("convformer_s18")),
    ),
    *recipe_rows(
        "apolynext-s",
        ("apolynext-convformer-optimizer", "APolyNeXt, ConvFormer's optimiser", optimizer_of("convformer_s18")),
    ),
    *recipe_rows(
        "convformer",
        ("convformer-our-optimizer", "ConvFormer-S18, our optimiser", optimizer_of("cpolynext_small")),
        ("convformer-our-regularisation", "ConvFormer-S18, our regularisation", regularisation_of("cpolynext_small")),
        ("convformer-our-recipe", "ConvFormer-S18, our full recipe", recipe_of("cpolynext_small")),
    ),
    *recipe_rows(
        "caformer",
        ("caformer-our-optimizer", "CAFormer-S18, our optimiser", optimizer_of("apolynext_small")),
        ("caformer-our-regularisation", "CAFormer-S18, our regularisation", regularisation_of("apolynext_small")),
        ("caformer-our-recipe", "CAFormer-S18, our full recipe", recipe_of("apolynext_small")),
    ),
]

TABLES: dict[str, list[Row]] = {
    "modules": MODULES,
    "stabilisation": STABILISATION,
    "recipes": RECIPES,
    "dropin": DROPIN,
    "further": FURTHER,
}
ROWS: dict[str, Row] = {row.name: row for table in TABLES.values() for row in table}


@functools.cache
def obstacle(name: str, scale: str) -> str | None:
    """Why a row makes no sense at a scale, if so: its network cannot be changed so, or is so already."""
    row = ROWS[name]
    train = row.change(baselines(scale)[row.family])
    if not train.model.variant and not train.model.architecture:
        return None
    try:
        build_model(train, 10, device="meta")
    except PolyNeXtError as error:
        return str(error)
    return None
