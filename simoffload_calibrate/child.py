"""Functions for every child process with PyTorch: its task, its GPU, numbers of all ranks, and its memory.

PyTorch is imported when a function is called, which happens only in child processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from typing import Any, Literal, NamedTuple


class Job(NamedTuple):
    """A task of one process."""

    rank: int
    ranks: int
    device: str
    """The device of this rank: ``cuda:<i>`` or ``cpu``."""
    data: dict[str, Any]
    """The values that the parent passes: of the job, and of the task."""
    kept: dict[str, Any]
    """The objects that earlier tasks built in this process, by the name of their section."""
    until: float = 0.0
    """[s] The value of ``time.monotonic`` after which no further measurement starts."""

    @property
    def quick(self) -> bool:
        """Whether one round with fewer points is measured."""
        return bool(self.data.get("quick"))

    def in_time(self) -> bool:
        """Return whether time is left, with the same answer on every rank."""
        return value_of_rank_0(self.until - time.monotonic(), self.device) > 0


def select_device() -> str:
    """Make the GPU of this rank the current one and return its name; "cpu" on a machine without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    return f"cuda:{rank}"


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def combined(number: float, operation: Literal["MAX", "SUM"], device: str) -> float:
    """Return the maximum or the sum of the numbers of all ranks."""
    from torch import distributed, float64, tensor

    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return number
    value = tensor([number], dtype=float64, device=device)
    distributed.all_reduce(value, op=getattr(distributed.ReduceOp, operation))
    return float(value.item())


def value_of_rank_0(number: float, device: str) -> float:
    """Return the number of rank 0 on every rank, so that all ranks decide equally."""
    from torch import distributed, float64, tensor

    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return number
    value = tensor([number], dtype=float64, device=device)
    distributed.broadcast(value, 0)
    return float(value.item())


def release_memory() -> None:
    """Return unused memory of the GPU and pinned memory of the host to the system."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with contextlib.suppress(AttributeError):
            torch._C._host_emptyCache()  # noqa: SLF001 (it has no public name)
