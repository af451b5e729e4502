"""What defines a training run, as dataclasses."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polynext.data import AugmentConfig, DataConfig
from polynext.errors import PolyNeXtError
from polynext.schema import Config, Memory, NonNegative, NonNegativeInt, PositiveInt, Share, ShareBelowOne

if TYPE_CHECKING:  # a config needs no torch: `--help` is fast
    from polynext.models import ArchitectureChanges


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """The optimiser.

    Attributes:
        name: adamw, lamb, sgd, or muon, which orthogonalises the updates of matrices and leaves the rest to AdamW.
        lr: peak learning rate.
        weight_decay: weight decay.
        decay_all: decay all parameters. If False, 1-D parameters (norms, biases, scales) get no weight decay and, with
            LAMB, no trust ratio.
        decoupled: with LAMB, apply weight decay outside the trust ratio, as AdamW does.
        betas: decay rates of the running moments; the first one is the momentum of SGD and Muon.
        eps: added to the denominator.
        clip_grad: limit of the gradient's global norm; 0 for none.
    """

    name: Literal["adamw", "lamb", "sgd", "muon"] = "adamw"
    lr: NonNegative = 4e-3
    weight_decay: NonNegative = 0.01
    decay_all: bool = True
    decoupled: bool = True
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    clip_grad: NonNegative = 5.0


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning rate of each epoch: linear warmup, then half a cosine.

    Attributes:
        warmup_epochs: epochs of warmup.
        warmup_factor: share of the peak learning rate that warmup starts from.
        min_lr: learning rate at the end of the cosine.
        cosine_from_start: start the cosine at the first epoch, as timm does, instead of at the end of the warmup.
        cooldown_epochs: epochs at min_lr after the cosine.
        drop_epochs: divide the peak by ten at each of these epochs, instead of a cosine.
    """

    warmup_epochs: NonNegativeInt = 0
    warmup_factor: Share = 0.1
    min_lr: NonNegative = 1e-5
    cosine_from_start: bool = False
    cooldown_epochs: NonNegativeInt = 0
    drop_epochs: tuple[PositiveInt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The network and its regularisation.

    Attributes:
        name: a model of polynext or timm.
        variant: a named change of its parts, as `polynext ablate --list` shows them; empty for none.
        widths: channels of each stage, which also sets the number of stages; the model's own by default.
        stacks: stacks in the cells of each stage, one number for all or one for each; the model's own by default.
        patch: side of the stem's patches, in pixels; the model's own by default.
        coarse_kernel: side of PolyConv's coarse kernel, an odd number; the model's own by default.
        window: side of PolyAttention's windows; the model's own by default.
        neighbourhood: side of the square around each query that PolyAttention is confined to, an odd number; the
            model's own by default.
        dilation: distance between neighbours; the model's own by default.
        heads: heads of PolyAttention; the model's own by default.
        drop_path: stochastic depth of the last cell.
        dropout: dropout before the classifier, towards the last epoch.
        dropout_rises: raise dropout linearly from 0 at the first epoch instead of keeping it constant.
        pretrained: start from the published weights.
        initial_weights: start from the weights in this file; a classifier for other classes is initialised.
        conditioning: weight of a penalty that keeps PolyConv's W_in well-conditioned, for fast encrypted inference.
        frozen_statistics: use the statistics of the fully polynomial norms as in inference, without updating them; to
            fine-tune weights that were trained with batch statistics.
        memory: what to keep for the backward pass. plain keeps what PyTorch keeps, lean little more than the matrix
            products, which takes more time, and least recomputes whole cells.
    """

    name: str = "cpolynext_nano"
    variant: str = ""
    widths: tuple[PositiveInt, ...] = ()
    stacks: tuple[PositiveInt, ...] = ()
    patch: PositiveInt | None = None
    coarse_kernel: PositiveInt | None = None
    window: PositiveInt | None = None
    neighbourhood: PositiveInt | None = None
    dilation: PositiveInt | None = None
    heads: PositiveInt | None = None
    drop_path: ShareBelowOne = 0.0
    dropout: ShareBelowOne = 0.0
    dropout_rises: bool = True
    pretrained: bool = False
    initial_weights: Path | None = None
    conditioning: NonNegative = 0.0
    frozen_statistics: bool = False
    memory: Memory = "plain"

    @property
    def architecture(self) -> "ArchitectureChanges":
        """The changes of the network's architecture."""
        from polynext.models import ArchitectureChanges

        names = [field.name for field in dataclasses.fields(ArchitectureChanges)]
        return ArchitectureChanges(**{name: getattr(self, name) for name in names})

    @property
    def as_published(self) -> bool:
        """Whether this is the unchanged network, trained from scratch, as in the paper."""
        changed = self.variant or self.architecture
        return not changed and not self.pretrained and self.initial_weights is None


@dataclass(frozen=True, kw_only=True)
class EmaConfig(Config):
    """The exponential moving average of the weights, which is evaluated beside them.

    Attributes:
        decay: decay of each optimiser step; 0 for no average.
        start: share of the training after which the average starts.
        statistics: the running statistics of averaged weights in fully polynomial networks. averaged: their average, as
            in the paper's runs; estimated: measured on training images before each evaluation, which is more accurate.
    """

    decay: ShareBelowOne = 0.9999
    start: Share = 2 / 3
    statistics: Literal["averaged", "estimated"] = "averaged"


@dataclass(frozen=True, kw_only=True)
class EncryptionConfig(Config):
    """The limits that a trained network is planned with for encrypted inference.

    Attributes:
        memory: megabytes of memory for the server's process.
        key_memory: megabytes of rotation keys.
        error: largest error of the logits, relative to the largest logit.
        ring_degrees: the ring degrees to try; by default all.
        clients: any for clients in Python and in browsers, or python for hybrid keys, which are smaller and faster.
    """

    memory: PositiveInt = 2048
    key_memory: PositiveInt = 300
    error: Share = 1e-3
    ring_degrees: tuple[PositiveInt, ...] = ()
    clients: Literal["any", "python"] = "any"


@dataclass(frozen=True, kw_only=True)
class LoopConfig(Config):
    """What every training run has, for classification and segmentation.

    Attributes:
        ema: the averaged weights.
        batch_size: images of an optimiser step, over all processes and accumulated batches.
        micro_batch: most images that a process handles at once; gradients are accumulated up to batch_size.
            Segmentation takes 0 for the whole share of the process.
        precision: precision of the forward pass in training: float32 or bf16 autocast. Evaluation is in float32.
        compile: compile the network with `polynext.compile`.
        seed: seed of all random numbers.
        checkpoint_minutes: minutes between two saves within a round; 0 for none.
        log_steps: optimiser steps between two lines of step metrics; 0 for none.
        diagnostics: also log and draw the activations, gradients and scales of each cell.
        wandb: project of Weights & Biases to log to; empty for none.
    """

    ema: EmaConfig = field(default_factory=EmaConfig)
    batch_size: PositiveInt = 1024
    micro_batch: NonNegativeInt = 128
    precision: Literal["float32", "bf16"] = "bf16"
    compile: bool = True
    seed: NonNegativeInt = 0
    checkpoint_minutes: NonNegative = 10.0
    log_steps: NonNegativeInt = 50
    diagnostics: bool = False
    wandb: str = ""

    def share(self, processes: int) -> tuple[int, int]:
        """Images that each process handles at once, and the number of such batches in a step."""
        whole = self.batch_size // processes
        micro_batch = min(self.micro_batch or whole, whole)
        if not micro_batch or self.batch_size % (micro_batch * processes):
            raise PolyNeXtError(
                f"a batch of {self.batch_size} cannot be divided into {micro_batch} images for each of {processes} "
                "process(es): give a `micro_batch` that divides it."
            )
        return micro_batch, self.batch_size // (micro_batch * processes)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """A training run of a classifier.

    Attributes:
        model: the network.
        data: the data set.
        augment: the augmentation of training images.
        optimizer: the optimiser.
        schedule: the learning rate.
        epochs: passes over the data.
        evaluate_every: epochs between two evaluations; the last epoch is always evaluated.
        encryption: the limits of encrypted inference with the trained network, if it is fully polynomial.
    """

    micro_batch: PositiveInt = 128
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: PositiveInt = 300
    evaluate_every: PositiveInt = 1
    encryption: EncryptionConfig = field(default_factory=EncryptionConfig)

    def check(self) -> None:
        super().check()
        warmup, cooldown = self.schedule.warmup_epochs, self.schedule.cooldown_epochs
        check_warmup(self.epochs, "epochs", warmup, "schedule.warmup_epochs", cooldown)
        if self.model.pretrained and self.model.initial_weights is not None:
            raise PolyNeXtError("both `model.pretrained` and `model.initial_weights` were given: give one of them.")


def check_warmup(length: int, unit: str, warmup: int, field: str, cooldown: int = 0) -> None:
    """Raises if a run is too short for its warmup and cooldown."""
    if warmup + cooldown > length:
        after = f" and a cooldown of {cooldown}" if cooldown else ""
        raise PolyNeXtError(
            f"`{unit}` is {length}, too few for a warmup of {warmup}{after}: give more, or a shorter `{field}`."
        )
