"""The processes of a run, as torchrun started them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """This process, and the number of all processes of the run."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the first process, which writes files."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Sums over all processes."""
        if self.count == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def same(self, value: Any) -> Any:
        """The value of the first process, in all processes."""
        values = [value]
        if self.count > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Copies the tensors of the first process to all, in place."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


def alone() -> Processes:
    """One process, on a GPU if there is one."""
    return Processes(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def processes() -> Iterator[Processes]:
    """Joins the processes of torchrun, if it started this one. Each has the GPU of its local rank, if there is one."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Processes(0, 1, device)
        return
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
