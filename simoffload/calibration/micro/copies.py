"""Copies between host memory and GPU memory (child process only)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from statistics import median
from typing import Any

import torch

from simoffload.calibration.micro.timing import (
    MeasurementJob,
    SkippedError,
    blocking_seconds,
    call_seconds,
    repeats,
    seconds_by_rank,
    stream_seconds,
    synchronize,
)

__all__ = ["measure", "measure_together"]

_KIB, _MIB = 1 << 10, 1 << 20
_LARGEST = 1 << 30
_SIZES = [4**power * _KIB for power in range(1, 10)] + [_LARGEST]
"""[B] 4 KiB to 256 MiB by powers of four, and 1 GiB."""
_BOTH = [64 * _MIB, 256 * _MIB]
_TOGETHER = [4 * _MIB, 64 * _MIB, 512 * _MIB]
_ASYNC_CALLS = 8
"""Asynchronous copies in flight while their calls are timed."""


def _slices(buffer: Any, size: int) -> Callable[[], Any]:
    """Parts of a buffer, one behind the other, so that small copies do not come from the CPU's cache."""
    count = min(1024, buffer.numel() // size)
    parts = cycle([buffer.narrow(0, index * size, size) for index in range(count)])
    return lambda: next(parts)


def _host_buffer(size: int, *, pinned: bool) -> Any:
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    return buffer.fill_(1)


def _copy(
    job: MeasurementJob, host: Callable[[], Any], on_gpu: Any, *, to_device: bool
) -> Callable[[], object]:
    """An asynchronous copy: to a fresh allocation of the GPU, as DeepSpeed makes it, or to a host buffer."""
    if to_device:
        return lambda: host().to(job.device, non_blocking=True)
    return lambda: host().copy_(on_gpu, non_blocking=True)


def _blocking(
    job: MeasurementJob, host: Callable[[], Any], on_gpu: Any, *, to_device: bool
) -> Callable[[], object]:
    if to_device:
        return lambda: host().to(job.device)
    return lambda: host().copy_(on_gpu)


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds and host times by size, pinned and pageable, in each direction and in both at once."""
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    budget = 0.04 if job.quick else 0.08
    found: list[dict[str, Any]] = []
    for pinned in (True, False):
        buffer = _host_buffer(_LARGEST, pinned=pinned)
        for size in _SIZES:
            host, on_gpu = _slices(buffer, size), torch.empty(size, dtype=torch.uint8, device=job.device)
            for to_device in (True, False):
                copy = _copy(job, host, on_gpu, to_device=to_device)
                blocking = _blocking(job, host, on_gpu, to_device=to_device)
                count = repeats(copy, budget=budget, least=2, most=400)
                found.append(
                    {
                        "direction": "h2d" if to_device else "d2h",
                        "pinned": pinned,
                        "bytes": size,
                        "seconds": stream_seconds(copy, count=count, repetitions=3),
                        "call_seconds": call_seconds(
                            copy, count=min(count, _ASYNC_CALLS), repetitions=5 if size <= _BOTH[0] else 1
                        ),
                        "blocking_seconds": blocking_seconds(blocking, count=max(3, min(50, count // 2))),
                    }
                )
        if pinned:
            both = [_both_ways(job, buffer, size) for size in _BOTH]
        del buffer
    return {
        "alone": found,
        "both_ways": both,
        "synchronize_seconds": blocking_seconds(synchronize, count=200),
    }


def _both_ways(job: MeasurementJob, buffer: Any, size: int) -> dict[str, Any]:
    """Seconds per copy in each direction while the other direction is busy, and alone on the same streams."""
    half = buffer.numel() // 2
    host_in, host_out = _slices(buffer.narrow(0, 0, half), size), _slices(buffer.narrow(0, half, half), size)
    inward, outward = (torch.empty(size, dtype=torch.uint8, device=job.device) for _ in range(2))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    count = max(2, (1 << 30) // size)

    def run(*, down: bool, up: bool) -> list[float]:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
        synchronize()
        for stream, (start, _) in zip(streams, marks, strict=True):
            start.record(stream)
        for _ in range(count):
            if down:
                with torch.cuda.stream(streams[0]):
                    inward.copy_(host_in(), non_blocking=True)
            if up:
                with torch.cuda.stream(streams[1]):
                    host_out().copy_(outward, non_blocking=True)
        for stream, (_, end) in zip(streams, marks, strict=True):
            end.record(stream)
        synchronize()
        return [float(start.elapsed_time(end)) / 1e3 / count for start, end in marks]

    run(down=True, up=True)
    together = [run(down=True, up=True) for _ in range(3)]
    down_alone = median(run(down=True, up=False)[0] for _ in range(3))
    up_alone = median(run(down=False, up=True)[1] for _ in range(3))
    return {
        "bytes": size,
        "h2d_seconds": median(one[0] for one in together),
        "d2h_seconds": median(one[1] for one in together),
        "h2d_alone_seconds": down_alone,
        "d2h_alone_seconds": up_alone,
    }


def measure_together(job: MeasurementJob) -> dict[str, Any]:
    """Seconds per copy on each GPU while all ranks copy at once; one value per rank."""
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    duration = 0.05 if job.quick else 0.12
    found = []
    for pinned in (True, False):
        buffer = _host_buffer(_TOGETHER[-1], pinned=pinned)
        for size in _TOGETHER:
            host, on_gpu = _slices(buffer, size), torch.empty(size, dtype=torch.uint8, device=job.device)
            for to_device in (True, False):
                copy = _copy(job, host, on_gpu, to_device=to_device)
                seconds = seconds_by_rank(job, copy, duration=duration)
                direction = "h2d" if to_device else "d2h"
                found.append({"direction": direction, "pinned": pinned, "bytes": size, "seconds": seconds})
        del buffer
    return {"together": found}
