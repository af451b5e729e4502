"""The interface between the training loop and what it trains."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polynext.data.loader import Labelled, Prepared
from polynext.training.folder import RunFolder

Forward = Callable[[Tensor], Any]


class Task(ABC):
    """A network with its optimiser, images, loss and evaluation.

    A run has `steps` optimiser steps in rounds of `round_steps`. Each round ends with an evaluation and a save.

    Attributes:
        command: the command that starts such a run.
        score: the result of `evaluate` by which the best weights are chosen.
        model: the network, on the device of this process and in its memory format.
        optimizer: the optimiser; its groups may have a `factor` of the learning rate.
        clip_grad: limit of the gradient's global norm; 0 for none.
        images: the number of training images.
        workers: worker processes that prepare images.
        steps: optimiser steps of the run.
        round_steps: optimiser steps of a round.
        average_from: the first step of the averaged weights.
    """

    command: ClassVar[str]
    score: ClassVar[str]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    clip_grad: float
    images: int
    workers: int
    steps: int
    round_steps: int
    average_from: int

    @abstractmethod
    def examples(self, epoch: int) -> Prepared:
        """Pairs of an image and its target, augmented for this epoch."""

    @abstractmethod
    def learning_rate(self, step: int) -> float: ...

    def start_round(self, step: int) -> None:  # noqa: B027  (optional)
        """Sets what changes from round to round, such as dropout."""

    @abstractmethod
    def loss(self, forward: Forward, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The mean loss of a batch, and counts that are summed over the round."""

    def record(self, step: int, counts: dict[str, float]) -> dict[str, Any]:
        """Further metrics of a round, from the sums of its counts."""
        return {}

    def evaluates(self, step: int) -> bool:
        """Whether the round that ends at this step is evaluated."""
        return True

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Metrics on the test images, with `score` among them."""

    @abstractmethod
    def sources(self) -> dict[str, Labelled]:
        """The training and test images before any transform, by the name of their split."""

    def data_problems(self) -> list[str]:
        """A message for each problem of the data set."""
        return []

    @abstractmethod
    def sample_evaluation(self, images: int) -> int:
        """Restricts `evaluate` to this many images, and returns the number of all."""

    @abstractmethod
    def phases(self) -> dict[str, int]:
        """The first step of each phase of the schedule, by its name."""

    @abstractmethod
    def description(self) -> dict[str, str]:
        """The metadata of a weights file, from which its network can be built."""

    @abstractmethod
    def position(self, step: int) -> str:
        """How far a run is, such as "epoch 3/300"."""

    @abstractmethod
    def summary(self, record: dict[str, Any]) -> str:
        """The metrics of a round in one line."""

    @abstractmethod
    def figure(self, score: float) -> str:
        """The score with its name and unit."""

    @abstractmethod
    def draw_curves(self, folder: RunFolder) -> None:
        """Draws curves.png from the metrics of the folder."""
