"""The network of a training run."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
from timm.layers import DropPath
from torch import nn

from polynext.acceleration import save_memory
from polynext.acceleration.dropout import RisingDropout
from polynext.config.training import ModelConfig, TrainConfig
from polynext.errors import PolyNeXtError, preview
from polynext.models import create_model, create_variant, is_polynext, read_weights
from polynext.models.published import check_same_entries
from polynext.nn import freeze_statistics


def build_model(config: TrainConfig, classes: int, device: str | None = None) -> nn.Module:
    """The network of a run; with `device="meta"` without weights, to count parameters or operations."""
    preprocessing, chosen = config.data.preprocessing, config.model
    options: dict[str, Any] = {"drop_path_rate": chosen.drop_path} if chosen.drop_path else {}
    published = timm.get_pretrained_cfg(chosen.name)
    if is_polynext(chosen.name) or (published is not None and published.fixed_input_size):
        options["img_size"] = preprocessing.size
    if chosen.pretrained and device != "meta":
        options["pretrained"] = True
    create: Callable[..., nn.Module] = create_model
    if chosen.variant or chosen.architecture:
        create = partial(create_variant, variant=chosen.variant, architecture=chosen.architecture)
    model = create(
        chosen.name,
        num_classes=classes,
        in_chans=preprocessing.channels,
        drop_rate=chosen.dropout,
        device=device,
        **options,
    )
    if chosen.initial_weights is not None and device != "meta":
        load_initial_weights(model, chosen.initial_weights)
    save_memory(model, chosen.memory)
    if chosen.frozen_statistics:
        freeze_statistics(model)
    if chosen.dropout and chosen.dropout_rises:
        let_dropout_rise(model)
    return model


def load_initial_weights(model: nn.Module, path: Path) -> None:
    """Loads a checkpoint. A classifier for another number of classes keeps its initial weights."""
    weights, own = read_weights(path), model.state_dict()
    cfg: Any = getattr(model, "pretrained_cfg", {})
    classifier = {f"{cfg.get('classifier')}.{leaf}" for leaf in ("weight", "bias")} & weights.keys() & own.keys()
    initialised = {key for key in classifier if weights[key].shape != own[key].shape}
    if initialised:
        warnings.warn(f"{path} is for other classes: {preview(sorted(initialised))} are initialised.", stacklevel=2)
        weights = weights | {key: own[key] for key in initialised}
    check_same_entries(weights, own, type(model).__name__)
    model.load_state_dict(weights)


def let_dropout_rise(model: Any) -> None:
    """Makes the rate of the head's dropout a buffer, so that a new rate does not trigger a new compilation."""
    for name, module in list(getattr(model, "head", nn.Identity()).named_modules()):
        if type(module) is nn.Dropout:
            model.head.set_submodule(name, RisingDropout(module.p))


def head_dropouts(model: Any) -> list[nn.Dropout]:
    """The dropouts in a network's head; the last one is before the classifier."""
    head = getattr(model, "head", None)
    return [m for m in head.modules() if isinstance(m, nn.Dropout)] if isinstance(head, nn.Module) else []


def check_regularisation(config: ModelConfig) -> None:
    """Raises unless the model supports the dropout and stochastic depth of its config."""
    name, dropout, drop_path = config.name, config.dropout, config.drop_path
    if dropout and not head_dropouts(create_model(name, device="meta", drop_rate=dropout)):
        raise PolyNeXtError(f"{name} has no dropout in its head: give `model.dropout` 0.")
    if drop_path and not has_stochastic_depth(name, drop_path):
        raise PolyNeXtError(f"{name} has no stochastic depth: give `model.drop_path` 0.")


def has_stochastic_depth(name: str, rate: float) -> bool:
    try:
        model = create_model(name, device="meta", drop_path_rate=rate)
    except TypeError:  # the model does not have this argument
        return False
    return any(isinstance(m, DropPath) for m in model.modules())
