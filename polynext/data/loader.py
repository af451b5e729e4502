"""Batches in an order, and with variations, that follow from the seed, the epoch and the image alone.

Nothing depends on how many processes prepare the images or on where a run was interrupted: every image's random numbers
start from (seed, epoch, index), and the order of an epoch from (seed, epoch).
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from polynext.data.examples import Examples
from polynext.data.transforms import Transform
from polynext.distributed import cores
from polynext.errors import PolyNeXtError
from polynext.memory import return_freed_memory


class Labelled(Protocol):
    """Images with their labels or masks, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...


class Prepared(Dataset):
    """Pairs through a transform of both, each with its own random numbers if there is a seed."""

    def __init__(self, pairs: Labelled, transform: Callable[[Any, Any], Any], seed: tuple[int, int] | None = None):
        self.pairs, self.transform, self.seed = pairs, transform, seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.seed is not None:
            seed_everything(*self.seed, index)
        return self.transform(*self.pairs[index])


def of_images(transform: Transform) -> Callable[[Any, int], tuple[Any, int]]:
    """The transform of an image and its label that leaves the label alone."""
    return partial(_transform_image, transform)


def _transform_image(transform: Transform, image: Any, label: int) -> tuple[Any, int]:
    return transform(image), label


def seed_everything(*numbers: int) -> None:
    """Python's, numpy's and torch's random numbers from a tuple of numbers, in a few microseconds."""
    seed = 0
    for number in numbers:  # splitmix64, so that neighbouring numbers give unrelated seeds
        seed = (seed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        seed ^= seed >> 31
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  (timm's augmentations draw from numpy's global state)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would note a stack trace for each absent GPU
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


def batches(
    prepared: Prepared,
    batch_size: int,
    numbers: range,
    order: np.ndarray,
    share: tuple[int, int] = (0, 1),
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of these numbers in an epoch's order.

    `share` = (r, n) gives the r-th of n processes its part of each batch, which `batch_size` counts whole.
    """
    rank, processes = share
    mine = batch_size // processes
    starts = (number * batch_size + rank * mine for number in numbers)
    yield from load(prepared, [order[start : start + mine].tolist() for start in starts], workers)


def evaluation_batches(
    examples: Examples, transform: Transform, batch_size: int, share: tuple[int, int] = (0, 1), workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image exactly once over all processes, in order."""
    rank, processes = share
    indices = np.arange(rank, len(examples), processes)
    chosen = [indices[i : i + batch_size].tolist() for i in range(0, len(indices), batch_size)]
    yield from load(Prepared(examples, of_images(transform)), chosen, workers)


def load(prepared: Dataset, chosen: list[list[int]], workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    workers = min(workers, cores())  # more would wait for each other
    loader = DataLoader(
        prepared,
        batch_sampler=chosen,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
    )
    if workers:
        return_freed_memory()  # of which each worker would keep a copy, as large as all feature maps of a training step
    with signals_held_back():  # workers keep it so from their birth
        iterator = iter(loader)
    try:
        yield from iterator
    except PolyNeXtError as error:  # out of a worker it comes with a stack trace in front
        raise PolyNeXtError(str(error).strip().splitlines()[-1].split("PolyNeXtError: ")[-1]) from None
    finally:
        if workers:  # at once: they take no SIGTERM, and an exception may hold on to them until the process ends
            iterator._shutdown_workers()  # type: ignore[attr-defined]


@contextmanager
def signals_held_back() -> Iterator[None]:
    """While inside, SIGINT and SIGTERM wait, and processes started here never get them.

    Ctrl-C and a cluster's SIGTERM reach all processes of a run; its trainer ends the workers when its step is done.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
