"""Everything a training run is defined by, as dataclasses, and as YAML."""

import dataclasses
import operator
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from polynext.acceleration import Memory
from polynext.data import AugmentConfig, DataConfig
from polynext.errors import PolyNeXtError, require_at_least, require_share
from polynext.models import ArchitectureChanges
from polynext.models.variants import split_variant
from polynext.training.regularisation import check_regularisation


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimiser.

    Attributes:
        name: adamw or lamb.
        lr: learning rate at its highest.
        weight_decay: pull towards zero.
        decay_all: on all parameters; else not on those of one axis, norms, biases and scales, of which LAMB then leaves
            the step as it is.
        decoupled: of LAMB, whether the pull is apart from the step that its trust ratio scales, as in AdamW.
        betas: decay of the running moments.
        eps: added to the denominator.
        clip_grad: limit of the gradient's global norm, 0 for none.
    """

    name: Literal["adamw", "lamb"] = "adamw"
    lr: float = 4e-3
    weight_decay: float = 0.01
    decay_all: bool = True
    decoupled: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_grad: float = 5.0


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate by epoch: linear warmup, then half a cosine.

    Attributes:
        warmup_epochs: epochs of warmup.
        warmup_factor: share of the rate that warmup starts from.
        min_lr: where the cosine ends.
        cosine_from_start: whether the cosine counts from the first epoch, as timm's does; else from the warmup's end.
        cooldown_epochs: the last ones, at min_lr.
    """

    warmup_epochs: int = 0
    warmup_factor: float = 0.1
    min_lr: float = 1e-5
    cosine_from_start: bool = False
    cooldown_epochs: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network and its regularisation.

    Attributes:
        name: any of our models or timm's.
        variant: a named change of its parts, as `polynext ablate --list` shows them; empty for none.
        widths: channels of each stage of PolyNeXt, as many as it is to have stages; empty for the model's own.
        stacks: stacks in the cells of each stage, one number for all or one for each; empty for the model's own.
        patch: side of the stem's patches, in pixels; the model's own by default.
        coarse_kernel: side of PolyConv's coarse kernel, an odd number; the model's own by default.
        window: side of PolyAttention's windows; the model's own by default.
        heads: heads of PolyAttention; the model's own by default.
        drop_path: stochastic depth of the last cell.
        dropout: of the classifier's input at the last epoch.
        dropout_rises: whether dropout rises linearly from 0 at the first epoch or is constant.
        pretrained: start from the published weights.
        initial_weights: start from a checkpoint's; a classifier of other classes starts afresh.
        conditioning: weight of a penalty that keeps PolyConv's W_in well-conditioned, as fast encrypted plans need it.
        frozen_statistics: keep the fully polynomial norms as they are at inference, so that the network learns as the
            polynomial that it is; for weights that have been trained without.
        memory: what is kept for the backward pass: plain is what PyTorch keeps, lean little besides the matrix
            products, at some cost in time; least recomputes whole cells.
    """

    name: str = "cpolynext_nano"
    variant: str = ""
    widths: tuple[int, ...] = ()
    stacks: tuple[int, ...] = ()
    patch: int | None = None
    coarse_kernel: int | None = None
    window: int | None = None
    heads: int | None = None
    drop_path: float = 0.0
    dropout: float = 0.0
    dropout_rises: bool = True
    pretrained: bool = False
    initial_weights: Path | None = None
    conditioning: float = 0.0
    frozen_statistics: bool = False
    memory: Memory = "plain"

    @property
    def architecture(self) -> ArchitectureChanges:
        """The changes of the network's architecture."""
        names = [field.name for field in dataclasses.fields(ArchitectureChanges)]
        return ArchitectureChanges(**{name: getattr(self, name) for name in names})

    @property
    def as_published(self) -> bool:
        """Whether this is the network of that name, unchanged and from scratch, as the paper trains it."""
        changed = self.variant or self.architecture
        return not changed and not self.pretrained and self.initial_weights is None


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """The exponential moving average of the weights, evaluated beside them.

    Attributes:
        decay: per optimiser step; 0 for no average.
        start: share of the training after which it starts.
    """

    decay: float = 0.9999
    start: float = 2 / 3


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What every training run has, whatever it learns.

    Attributes:
        ema: the averaged weights.
        batch_size: images per optimiser step, over all processes and accumulated batches.
        micro_batch: images a process handles at once, gradients being accumulated up to batch_size; 0 for its whole
            share of a batch.
        precision: of the forward pass: float32 or bf16 autocast.
        compile: with `polynext.compile`.
        seed: of everything random.
        checkpoint_minutes: save this often between two evaluations too; 0 for not.
        log_steps: optimiser steps between two lines of step metrics; 0 for none.
        diagnostics: with those also what happens inside each cell, and a picture of it.
        wandb: project name to log to with Weights & Biases; empty for not.
    """

    ema: EmaConfig = field(default_factory=EmaConfig)
    batch_size: int = 1024
    micro_batch: int = 128
    precision: Literal["float32", "bf16"] = "bf16"
    compile: bool = True
    seed: int = 0
    checkpoint_minutes: float = 10.0
    log_steps: int = 50
    diagnostics: bool = False
    wandb: str = ""

    def check(self) -> None:
        """That no number is out of its range."""
        require_at_least(1, batch_size=self.batch_size)
        require_at_least(0, micro_batch=self.micro_batch, seed=self.seed, log_steps=self.log_steps)
        require_at_least(0, checkpoint_minutes=self.checkpoint_minutes)
        require_share(**fields(self, "ema.start"))
        require_share(whole=False, **fields(self, "ema.decay"))

    def share(self, processes: int) -> tuple[int, int]:
        """Images that each process handles at once, and how often it does for one step."""
        micro_batch = self.micro_batch or self.batch_size // processes
        if not micro_batch or self.batch_size % (micro_batch * processes):
            raise PolyNeXtError(
                f"a batch of {self.batch_size} cannot be made of {processes} process(es) with {micro_batch} images: "
                "give a --micro-batch that divides it."
            )
        return micro_batch, self.batch_size // (micro_batch * processes)


NOT_NEGATIVE = (
    "data.workers", "data.limit", "schedule.warmup_epochs", "schedule.cooldown_epochs", "schedule.min_lr",
    "augment.mixup", "augment.cutmix", "model.conditioning", "optimizer.eps",
)  # fmt: skip
AUGMENT_SHARES = ("crop_scale", "hflip", "erasing", "label_smoothing")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """A whole training run of a classifier.

    Attributes:
        model: the network.
        data: what it learns from.
        augment: how images are varied.
        optimizer: how it learns.
        schedule: the learning rate.
        epochs: passes over the data.
        evaluate_every: epochs between two evaluations; the last one is evaluated in any case.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 300
    evaluate_every: int = 1

    def check(self) -> None:
        super().check()
        require_at_least(1, epochs=self.epochs, evaluate_every=self.evaluate_every, micro_batch=self.micro_batch)
        require_at_least(0, **fields(self, *NOT_NEGATIVE))
        require_share(**fields(self, "schedule.warmup_factor", *(f"augment.{share}" for share in AUGMENT_SHARES)))
        require_share(whole=False, **fields(self, "model.drop_path", "model.dropout"))
        check_optimizer(self)
        rising, falling = self.schedule.warmup_epochs, self.schedule.cooldown_epochs
        require_room_for_warmup(self.epochs, "epochs", rising, "schedule.warmup_epochs", falling)
        if self.model.pretrained and self.model.initial_weights is not None:
            raise PolyNeXtError("both model.pretrained and model.initial-weights were given: a run starts from one.")
        check_regularisation(self.model.name, self.model.drop_path, self.model.dropout)


def fields(config: Any, *names: str) -> dict[str, Any]:
    """Values of a config by the names of their fields, such as `optimizer.lr`."""
    return {name: operator.attrgetter(name)(config) for name in names}


def check_optimizer(config: Any) -> None:
    """That what every task's optimiser has is in its range."""
    require_at_least(0, **fields(config, "optimizer.lr", "optimizer.weight_decay", "optimizer.clip_grad"))
    for beta in config.optimizer.betas:
        require_share(whole=False, **{"optimizer.betas": beta})


def require_room_for_warmup(length: int, unit: str, warmup: int, field: str, cooldown: int = 0) -> None:
    """That a run is not over before its learning rate has risen: that would be another run than the one asked for."""
    if warmup + cooldown > length:
        after = f" and a cooldown of {cooldown}" if cooldown else ""
        raise PolyNeXtError(
            f"`{unit}` is {length}, too few for a warmup of {warmup}{after}: give more, or a shorter `{field}`."
        )


def to_yaml(config: Any) -> str:
    """A config as text, from which `from_yaml` makes it again."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return str(value) if isinstance(value, Path) else value

    return yaml.safe_dump(plain(dataclasses.asdict(config)), sort_keys=False)


Config = typing.TypeVar("Config")


def from_yaml(text: str, source: str = "the configuration", kind: type[Config] = TrainConfig) -> Config:  # type: ignore[assignment]
    """The config that `to_yaml` wrote; fields left out keep their defaults, an unknown one is an error."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PolyNeXtError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise PolyNeXtError(f"{source} holds no fields: expected those of a config.yaml.")
    values = {key: value for key, value in values.items() if key not in RETIRED}
    if kind is TrainConfig:
        values = with_architecture(with_preprocessing(values))
    return parse(kind, values, source, "")


def read_config(path: Path, kind: type[Config]) -> Config:
    """The config in a YAML file that a run wrote."""
    if not path.is_file():
        raise PolyNeXtError(f"there is no file {path}: give a config.yaml that a run wrote, or its folder to --resume.")
    return from_yaml(path.read_text(), str(path), kind)


# Fields in files of earlier versions that mean nothing any more.
RETIRED = {"save_every"}

# Fields of `data` in files that were written before they became a `Preprocessing`, and what they are there.
MOVED = {
    "image_size": "size",
    "evaluation_resize": "resize",
    "evaluation_interpolation": "interpolation",
    "mean": "mean",
    "std": "std",
}


def with_preprocessing(values: dict[str, Any]) -> dict[str, Any]:
    data = values.get("data")
    if not isinstance(data, dict) or not MOVED.keys() & data.keys():
        return values
    moved = {MOVED[key]: value for key, value in data.items() if key in MOVED}
    return {**values, "data": {k: v for k, v in data.items() if k not in MOVED} | {"preprocessing": moved}}


def with_architecture(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of `model` for the numbers that earlier versions wrote into its variant."""
    model = values.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("variant"), str):
        return values
    variant, numbers = split_variant(model["variant"])
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in numbers.items()}
    return {**values, "model": {**model, "variant": variant, **fields}}


def parse(cls: Any, values: dict[str, Any], source: str, prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    unknown = sorted(values.keys() - hints.keys())
    if unknown:
        raise PolyNeXtError(
            f"{source} has the unknown field {prefix}{unknown[0]}: the fields there are {', '.join(hints)}."
        )
    return cls(**{name: convert(hints[name], value, source, prefix + name) for name, value in values.items()})


def convert(hint: Any, value: Any, source: str, name: str) -> Any:
    def wrong() -> PolyNeXtError:
        return PolyNeXtError(f"{source} gives {name}: {value!r}, and {describe(hint)} was expected.")

    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise wrong()
        return parse(hint, value, source, f"{name}.")
    if isinstance(hint, types.UnionType):
        if value is None and type(None) in hint.__args__:
            return None
        return convert(hint.__args__[0], value, source, name)
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong()
        inner = typing.get_args(hint)[0]
        return tuple(convert(inner, v, source, name) for v in value)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise wrong()
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError as error:
            raise wrong() from error
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise wrong()
    return value


def describe(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    return getattr(hint, "__name__", str(hint))
