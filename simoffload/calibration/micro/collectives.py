"""All-gather and reduce-scatter among the ranks (child process only)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from simoffload.calibration.micro.timing import (
    MeasurementJob,
    SkippedError,
    call_seconds,
    stream_seconds,
    synchronize,
)

__all__ = ["measure"]

_SIZES = [32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
"""[B] of the whole tensor, all ranks together."""
_BUDGET = 0.08


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds per call queued one behind the other, and of the host per call, by total size."""
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    found = []
    for size in _SIZES:
        numel = size // 2 // job.ranks * job.ranks
        full = torch.empty(numel, dtype=torch.bfloat16, device=job.device).fill_(1)
        part = torch.empty(numel // job.ranks, dtype=torch.bfloat16, device=job.device).fill_(1)

        def gather(full: Any = full, part: Any = part) -> object:
            return dist.all_gather_into_tensor(full, part)

        def scatter(full: Any = full, part: Any = part) -> object:
            return dist.reduce_scatter_tensor(part, full)

        for name, call in (("all_gather", gather), ("reduce_scatter", scatter)):
            found.append({"operation": name, "bytes": 2 * numel, **_timed(job, call)})
    return {"calls": found}


def _timed(job: MeasurementJob, call: Callable[[], object]) -> dict[str, float]:
    """All ranks make the same number of calls, or the collectives would not meet."""
    for _ in range(3):
        call()
    synchronize()
    longest = torch.tensor([stream_seconds(call, count=3, repetitions=1)], device=job.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    count = max(5, min(200, int(_BUDGET / max(float(longest.item()), 1e-6))))
    dist.barrier()
    return {
        "seconds": stream_seconds(call, count=count, repetitions=5),
        "call_seconds": call_seconds(call, count=min(count, 50), repetitions=5),
    }
