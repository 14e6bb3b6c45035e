"""What the GPU did in a pass, kind by kind, from the CUDA profiler (child process only)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["gpu_activity"]


def gpu_activity(work: Callable[[], None]) -> dict[str, Any] | None:
    """Run ``work`` under the profiler; busy time and number of GPU activities by kind, None without a GPU.

    Kinds: "copy" (host to device), "return" (device to host), "gather" (NCCL), "move" (copies within the
    GPU), "compute". Busy times are sums of durations [us]; the profiler slows the host thread, not kernels.
    """
    if not torch.cuda.is_available():
        work()
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        torch.cuda.synchronize()
    kinds: dict[str, list[float]] = {}
    first, last = float("inf"), 0.0
    with contextlib.suppress(AttributeError):
        for event in profiler.profiler.kineto_results.events():
            if "cuda" not in str(event.device_type()).lower():
                continue
            duration = event.duration_ns() / 1e3
            begin = event.start_ns() / 1e3
            first, last = min(first, begin), max(last, begin + duration)
            row = kinds.setdefault(_kind(event.name()), [0.0, 0.0, 0.0])
            row[0] += duration
            row[1] += 1
    return {
        "span_us": round(last - first, 1) if kinds else 0.0,
        "busy_us": {kind: round(row[0], 1) for kind, row in kinds.items()},
        "count": {kind: int(row[1]) for kind, row in kinds.items()},
    }


def _kind(name: str) -> str:
    lower = name.lower()
    if "memcpy" in lower:
        return "copy" if "htod" in lower else "return" if "dtoh" in lower else "move"
    if "nccl" in lower:
        return "gather"
    if "catarray" in lower or "memset" in lower:
        return "move"
    return "compute"
