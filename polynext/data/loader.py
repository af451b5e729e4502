"""Batches whose order and augmentation depend on the seed, the epoch and the image only.

The random numbers of an image start from (seed, epoch, index), and the order of an epoch from (seed, epoch). So neither
the number of worker processes nor an interruption changes a run.
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
from torch.utils.data import DataLoader, Dataset, default_collate

from polynext.data.examples import Examples
from polynext.data.transforms import Transform
from polynext.errors import PolyNeXtError
from polynext.memory import return_freed_memory
from polynext.threads import cores


class Labelled(Protocol):
    """Images with their labels or masks."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...


class Prepared(Dataset):
    """Transformed pairs. With a seed, each pair has its own random numbers."""

    def __init__(self, pairs: Labelled, transform: Callable[[Any, Any], Any], seed: tuple[int, int] | None = None):
        self.pairs, self.transform, self.seed = pairs, transform, seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.seed is not None:
            seed_everything(*self.seed, index)
        return self.transform(*self.pairs[index])


def of_images(transform: Transform) -> Callable[[Any, int], tuple[Any, int]]:
    """A transform of images as one of pairs, which keeps the label."""
    return partial(_transform_image, transform)


def _transform_image(transform: Transform, image: Any, label: int) -> tuple[Any, int]:
    return transform(image), label


def seed_everything(*numbers: int) -> None:
    """Seeds Python, numpy and torch from a tuple of numbers, in a few microseconds."""
    seed = 0
    for number in numbers:  # splitmix64, so that neighbouring numbers give unrelated seeds
        seed = (seed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        seed ^= seed >> 31
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  (timm's augmentations draw from numpy's global state)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed records a stack trace if there is no GPU
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
    """The batches of these numbers in the order of an epoch.

    `share` = (r, n) gives the r-th of n processes its part of each batch; `batch_size` counts the images of all.
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
    workers = min(workers, cores())  # more would compete for the cores
    loader = DataLoader(
        ErrorsAsItems(prepared),
        batch_sampler=chosen,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        collate_fn=collate,
    )
    if workers:
        return_freed_memory()  # which each forked worker would hold too, as much as a training step takes
    with signals_blocked():  # workers inherit it
        iterator = iter(loader)
    try:
        for batch in iterator:
            if isinstance(batch, PolyNeXtError):
                raise batch
            yield batch
    finally:
        if workers:  # they block SIGTERM, and a traceback may keep the iterator, which would end them, until the exit
            iterator._shutdown_workers()  # type: ignore[attr-defined]


class ErrorsAsItems(Dataset):
    """Returns a `PolyNeXtError` instead of raising it: DataLoader puts a traceback into the message of a raised one."""

    def __init__(self, prepared: Dataset):
        self.prepared = prepared

    def __getitems__(self, indices: list[int]) -> Any:
        try:
            return [self.prepared[i] for i in indices]
        except PolyNeXtError as error:
            return error


def collate(items: Any) -> Any:
    return items if isinstance(items, PolyNeXtError) else default_collate(items)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """While inside, SIGINT and SIGTERM are blocked, and forever in processes that are started here.

    Ctrl-C and a cluster's SIGTERM reach all processes of a run. The training process finishes its step and then ends
    the workers.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
