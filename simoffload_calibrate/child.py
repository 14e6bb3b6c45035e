"""Functions for every child process with PyTorch: its GPU, its cases, numbers of all ranks, and its memory.

PyTorch is imported when a function is called, which happens only in child processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from simoffload_calibrate.json_records import write_json

__all__ = [
    "combined",
    "release_memory",
    "run_in_turn",
    "select_device",
    "synchronize",
    "value_of_rank_0",
]


def select_device() -> str:
    """Make the GPU of this rank the current one and return its name; "cpu" on a machine without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    return f"cuda:{rank}"


def run_in_turn(cases: Iterable[tuple[str, Callable[[], Any]]], folder: Path) -> int:
    """Run named cases in turn on all ranks; return 0, or 1 after the first failure.

    Rank 0 creates NAME.begun at the start of a case and writes its record to NAME.json at the end, so that a
    later failure loses nothing. A rank that fails writes the error to NAME.failed-RANK.
    """
    from torch import distributed

    rank = distributed.get_rank()
    for name, work in cases:
        if rank == 0:
            (folder / f"{name}.begun").touch()
        try:
            record = work()
        except Exception as error:
            sys.stderr.write(traceback.format_exc())
            sys.stderr.flush()
            message = f"{type(error).__name__}: {error}"[:2000]
            write_json(folder / f"{name}.failed-{rank}", {"error": message})
            return 1
        if rank == 0:
            write_json(folder / f"{name}.json", record)
        distributed.barrier()
    return 0


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
