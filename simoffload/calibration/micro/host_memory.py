"""Copies within host memory by number of threads, and what pinning costs (child process only)."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

import torch

from simoffload.calibration.micro.timing import MeasurementJob

__all__ = ["measure", "thread_counts"]

_GIB = 1 << 30


def thread_counts(*counts: int) -> list[int]:
    """Those counts that the machine has cores for, and all its cores."""
    cores = len(os.sched_getaffinity(0))
    return sorted({count for count in counts if count <= cores} | {cores})


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of a copy of one buffer to another, by threads; of allocating pinned memory, by size."""
    size = _GIB // 4 if job.quick else _GIB
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros(size, dtype=torch.uint8)
    before = torch.get_num_threads()
    copies = []
    for threads in thread_counts(1, 2, 4, 8, 16):
        torch.set_num_threads(threads)
        target.copy_(source)
        copies.append({"threads": threads, "bytes": size, "seconds": _seconds(source, target)})
    torch.set_num_threads(before)
    found: dict[str, Any] = {"copies": copies}
    if job.device != "cpu":
        found["pinning"] = [_pinned(part) for part in (64 << 20, size)]
    return found


def _seconds(source: Any, target: Any) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    return median(times)


def _pinned(size: int) -> dict[str, Any]:
    """The first allocation of this size; PyTorch keeps freed blocks for later ones."""
    begin = time.perf_counter()
    buffer = torch.empty(size + 4096, dtype=torch.uint8, pin_memory=True)
    seconds = time.perf_counter() - begin
    del buffer
    return {"bytes": size, "seconds": seconds}
