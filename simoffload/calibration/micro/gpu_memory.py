"""Rates of GPU memory (child process only)."""

from __future__ import annotations

from typing import Any

import torch

from simoffload.calibration.micro.timing import MeasurementJob, SkippedError, busy_seconds

__all__ = ["measure"]

_SIZES = [16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30]


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of a copy within GPU memory, by the bytes copied (each is read and written)."""
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    free = torch.cuda.mem_get_info()[0]
    found = []
    for size in _SIZES:
        if 4 * size > free // 2:
            continue
        pairs = max(2, min(4, (512 << 20) // size))
        sources = [torch.empty(size, dtype=torch.uint8, device=job.device).fill_(1) for _ in range(pairs)]
        targets = [torch.empty_like(source) for source in sources]

        def copy(index: int, targets: Any = targets, sources: Any = sources) -> object:
            return targets[index % len(targets)].copy_(sources[index % len(sources)])

        def add(index: int, targets: Any = targets, sources: Any = sources) -> object:
            at = index % len(targets)
            return torch.add(sources[at], 1, out=targets[at])

        found.append({"bytes": size, "copy_seconds": busy_seconds(copy), "add_seconds": busy_seconds(add)})
    return {"within": found}
