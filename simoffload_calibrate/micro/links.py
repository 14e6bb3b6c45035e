"""Copies between host memory and GPU memory, and collectives among GPUs (child process only)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist

from simoffload_calibrate.child import Job, synchronize
from simoffload_calibrate.micro.gpu_groups import copying_subsets, found_groups, has_all_subsets, subsets
from simoffload_calibrate.micro.noise import pooled
from simoffload_calibrate.micro.timing import (
    blocking_seconds,
    call_seconds,
    repeats,
    seconds_by_rank,
    stream_seconds,
)

_KIB, _MIB = 1 << 10, 1 << 20
_LARGEST = 1 << 30
_SIZES = [4**power * _KIB for power in range(1, 10)] + [_LARGEST]
"""[B] Sizes of copies: 4 KiB to 256 MiB by powers of four, and 1 GiB."""
_BOTH = [64 * _MIB, 256 * _MIB]
_TOGETHER = [4 * _MIB, 64 * _MIB, 512 * _MIB]
"""[B] Sizes of copies of all GPUs at once; fewer of them make copies of the last size only."""
_TOGETHER_S = 0.05
"""[s] Approximate time of a repetition of such copies."""
_SUBSET = 128 * _MIB
"""[B] Size of the copies that show which GPUs slow each other."""
_SUBSET_S = 0.03
"""[s] Approximate time of a repetition of such copies."""
_ASYNC_CALLS = 8
"""The largest number of asynchronous copies in flight while their calls are timed."""
_BUDGET = 0.02
"""[s] Time of the queued copies of one size."""
_GATHERED = [32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
"""[B] Sizes of the gathered tensor."""
_QUEUED = 0.08
"""[s] Time of the queued collectives of one size."""


def _slices(buffer: Any, size: int) -> Callable[[], Any]:
    """Return a function that returns the parts of a buffer in turn, which the CPU's cache does not hold."""
    count = min(1024, buffer.numel() // size)
    parts = cycle([buffer.narrow(0, index * size, size) for index in range(count)])
    return lambda: next(parts)


def _host_buffer(size: int, *, pinned: bool) -> Any:
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    return buffer.fill_(1)


def _copy(job: Job, host: Callable[[], Any], on_gpu: Any, *, to_device: bool) -> Callable[[], object]:
    """Return an asynchronous copy: to newly allocated GPU memory, as in DeepSpeed, or to a host buffer."""
    if to_device:
        return lambda: host().to(job.device, non_blocking=True)
    return lambda: host().copy_(on_gpu, non_blocking=True)


def _blocking(job: Job, host: Callable[[], Any], on_gpu: Any, *, to_device: bool) -> Callable[[], object]:
    if to_device:
        return lambda: host().to(job.device)
    return lambda: host().copy_(on_gpu)


def measure_copies(job: Job) -> dict[str, Any]:
    """Measure copies by size, with pinned and pageable memory, in each direction and in both at once."""
    rows: list[dict[str, Any]] = []
    for pinned in (True, False):
        buffer = _host_buffer(_LARGEST, pinned=pinned)
        for size in _SIZES:
            host, on_gpu = _slices(buffer, size), torch.empty(size, dtype=torch.uint8, device=job.device)
            for to_device in (True, False):
                copy = _copy(job, host, on_gpu, to_device=to_device)
                blocking = _blocking(job, host, on_gpu, to_device=to_device)
                large = size > _BOTH[0]
                count = 1 if large else repeats(copy, budget=_BUDGET, least=2, most=400)
                rows.append(
                    {
                        "direction": "h2d" if to_device else "d2h",
                        "pinned": pinned,
                        "bytes": size,
                        "seconds": stream_seconds(copy, count=count, repetitions=2),
                        "call_seconds": call_seconds(
                            copy, count=min(count, _ASYNC_CALLS), repetitions=1 if large else 6
                        ),
                        "blocking_seconds": blocking_seconds(
                            blocking, count=1 if large else max(2, min(20, count // 2))
                        ),
                    }
                )
        if pinned:
            both = [_both_ways(job, buffer, size) for size in _BOTH]
        del buffer
    return {
        "alone": rows,
        "both_ways": both,
        "synchronize_seconds": blocking_seconds(torch.cuda.synchronize, count=50),
    }


def _both_ways(job: Job, buffer: Any, size: int) -> dict[str, Any]:
    """Time copies in each direction while the other direction is busy, and alone on the same streams."""
    half = buffer.numel() // 2
    host_in, host_out = _slices(buffer.narrow(0, 0, half), size), _slices(buffer.narrow(0, half, half), size)
    inward, outward = (torch.empty(size, dtype=torch.uint8, device=job.device) for _ in range(2))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    count = max(2, (1 << 29) // size)

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
    together = [run(down=True, up=True) for _ in range(2)]
    return {
        "bytes": size,
        "h2d_seconds": [times[0] for times in together],
        "d2h_seconds": [times[1] for times in together],
        "h2d_alone_seconds": [run(down=True, up=False)[0] for _ in range(2)],
        "d2h_alone_seconds": [run(down=False, up=True)[1] for _ in range(2)],
    }


# -- several GPUs at once -----------------------------------------------------------------------


def measure_copies_together(job: Job) -> dict[str, Any]:
    """Measure copies by numbers of GPUs, size, direction and kind of memory, with a time for each GPU.

    All GPUs at once copy every size; fewer copy the largest one of pinned memory and, in the first round, the
    middle one of pageable memory, which is slower. All ranks make the same steps, so that those without a
    copy wait for the others.
    """
    found: dict[str, list[dict[str, Any]]] = {"together": []}
    for pinned in (True, False):
        buffer = _host_buffer(_TOGETHER[-1], pinned=pinned)
        every_count = pinned or job.data["round"] == 1
        for count in reversed(job.data["counts"] if every_count else [job.ranks]):
            if not job.in_time():
                break
            some = _TOGETHER[-1:] if pinned else _TOGETHER[1:2]
            for size in _TOGETHER if count == job.ranks else some:
                found["together"] += _copies(job, buffer, range(count), size=size, pinned=pinned)
        del buffer
    return found


def measure_copies_subsets(job: Job) -> dict[str, Any]:
    """Measure pinned copies of subsets of the GPUs, and of each group of GPUs that slow each other.

    If time ran out before the last subset, there are no groups, because the missing ones would mislead, and
    "unfinished" says so.
    """
    chosen = copying_subsets(job.ranks)
    buffer = _host_buffer(_TOGETHER[-1], pinned=True)
    rows: list[dict[str, Any]] = []
    for gpus in chosen:
        if not job.in_time():
            break
        rows += _copies(job, buffer, gpus, size=_SUBSET, duration=_SUBSET_S, directions=["h2d"])
    measured = pooled([rows])
    complete = has_all_subsets(measured, job.ranks)
    numbers = torch.zeros(job.ranks, dtype=torch.int64, device=job.device)
    if job.rank == 0 and complete:
        for number, gpus in enumerate(found_groups(measured), start=1):
            numbers[list(gpus)] = number
    dist.broadcast(numbers, 0)
    by_gpu = numbers.tolist()
    groups: list[dict[str, Any]] = []
    for number in range(1, max(by_gpu) + 1):
        members = [gpu for gpu, own in enumerate(by_gpu) if own == number]
        groups += _copies(job, buffer, members, size=_TOGETHER[-1])
    found: dict[str, Any] = {"subsets": rows, "groups": groups}
    return found if complete else {**found, "unfinished": f"{len(measured)} of {len(subsets(job.ranks))}"}


def _copies(
    job: Job,
    buffer: Any,
    gpus: Iterable[int],
    *,
    size: int,
    pinned: bool = True,
    duration: float = _TOGETHER_S,
    directions: Sequence[str] = ("h2d", "d2h"),
) -> list[dict[str, Any]]:
    """Return a row for each direction of copies of some GPUs at once."""
    members = list(gpus)
    host, on_gpu = _slices(buffer, size), torch.empty(size, dtype=torch.uint8, device=job.device)
    rows = []
    for direction in directions:
        copy = _copy(job, host, on_gpu, to_device=direction == "h2d")
        least = 2 if pinned else 1
        seconds = seconds_by_rank(job, copy, duration=duration, least=least, members=members)
        row = {"direction": direction, "pinned": pinned, "bytes": size, "gpus": members, "seconds": seconds}
        rows.append(row)
    return rows


# -- among GPUs ---------------------------------------------------------------------------------


def measure_collectives(job: Job) -> dict[str, Any]:
    """Measure all-gathers and reduce-scatters of the first 2, 4, 8 and of all GPUs.

    Ranks that do not belong to a group wait for it; all of them make every group, as PyTorch requires.
    """
    groups: dict[int, Any] = job.kept.setdefault("collectives", {})
    rows: list[dict[str, Any]] = []
    for ranks in reversed(job.data["counts"]):
        if ranks not in groups:
            groups[ranks] = dist.new_group(list(range(ranks)))
        if not job.in_time():
            break
        if job.rank < ranks:
            for size in _GATHERED:
                rows += _collectives(job, groups[ranks], ranks, size)
        dist.barrier()
    return {"calls": rows}


def _collectives(job: Job, group: Any, ranks: int, size: int) -> list[dict[str, Any]]:
    numel = size // 2 // ranks * ranks
    full = torch.empty(numel, dtype=torch.bfloat16, device=job.device).fill_(1)
    part = torch.empty(numel // ranks, dtype=torch.bfloat16, device=job.device).fill_(1)
    calls = {
        "all_gather": lambda: dist.all_gather_into_tensor(full, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full, group=group),
    }
    return [
        {"operation": name, "ranks": ranks, "bytes": 2 * numel, **_timed(job, call, group)}
        for name, call in calls.items()
    ]


def _timed(job: Job, call: Callable[[], object], group: Any) -> dict[str, list[float]]:
    """Time a collective; all ranks of the group make the same number of calls, as collectives require."""
    for _ in range(3):
        call()
    synchronize()
    longest = torch.tensor(stream_seconds(call, count=3, repetitions=1), device=job.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    count = max(5, min(200, int(_QUEUED / max(float(longest.item()), 1e-6))))
    dist.barrier(group=group)
    return {
        "seconds": stream_seconds(call, count=count, repetitions=3),
        "call_seconds": call_seconds(call, count=min(count, 50), repetitions=3),
    }
