"""Clocks for short work of the GPU and of the CPU (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from simoffload_calibrate.child import Job, synchronize

_IN_FLIGHT = 40
"""The number of calls in a repetition.

The driver's queue holds about a thousand kernels, and a full one makes the host wait for the GPU. A core
that another thread shares changes its speed every few milliseconds, and a repetition is shorter than that."""
_MOST_TOGETHER = 400
"""The largest number of calls in a repetition of several ranks."""
_GRAPH_LENGTH = 20
"""The largest number of calls in a CUDA graph."""
_SHORT = 2e-3
"""[s] Shorter work is repeated in a CUDA graph, because otherwise its launches would be timed."""


def repeats(call: Callable[[], object], *, budget: float, most: int = 1000, least: int = 1) -> int:
    """Return how many calls fit into ``budget`` [s], from the time of the second of two calls."""
    call()
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return max(least, min(most, int(budget / max(time.perf_counter() - begin, 1e-6))))


def stream_seconds(call: Callable[[], object], *, count: int, repetitions: int) -> list[float]:
    """Return the time per call of ``count`` calls in a queue, for each repetition [s]."""
    times = []
    for _ in range(repetitions):
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        times.append((time.perf_counter() - begin) / count)
    return times


def call_seconds(
    call: Callable[[], object], *, count: int = _IN_FLIGHT, repetitions: int = 15
) -> list[float]:
    """Return the host time per call until it returns, for each repetition [s].

    Waits for the GPU are not included.
    """
    times = []
    for _ in range(repetitions + 1):
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - begin) / count)
    synchronize()
    return times[1:]


def blocking_seconds(call: Callable[[], object], *, count: int) -> list[float]:
    """Return the time of each of ``count`` calls that start with an idle GPU [s]."""
    times = []
    for _ in range(count):
        synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def busy_seconds(call: Callable[[int], object], *, budget: float = 0.02, repetitions: int = 3) -> list[float]:
    """Return the time for which one call occupies the GPU, for each repetition [s].

    The argument of ``call`` is the number of the call, which may select operands. Short work runs in a CUDA
    graph, so that the host's launches do not count.
    """
    call(0)
    single = max(1e-6, min(_event_seconds(lambda: call(0)) for _ in range(2)))
    count = max(1, min(_GRAPH_LENGTH, int(budget / single)))

    def work() -> None:
        for index in range(count):
            call(index)

    if single < _SHORT:
        work = _captured(work).replay
    work()
    replays = max(1, min(20, int(budget / max(single * count, 1e-5))))
    return [_event_seconds(work, replays) / count for _ in range(repetitions)]


def _captured(work: Callable[[], object]) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _event_seconds(work: Callable[[], object], count: int = 1) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / count


def seconds_by_rank(
    job: Job,
    call: Callable[[], object],
    *,
    duration: float,
    least: int = 2,
    members: Sequence[int] | None = None,
) -> list[list[float]]:
    """Return the time per call of each of the ``members``, for each of two repetitions [s].

    Members, by default all ranks, make the same number of calls after a barrier; a repetition lasts about
    ``duration`` [s]. Every rank must call this function: the others wait for the members.
    """
    members = range(job.ranks) if members is None else members
    takes_part, most = job.rank in members, _MOST_TOGETHER
    own_count = repeats(call, budget=duration, least=least, most=most) if takes_part else most
    count = torch.tensor([own_count], device=job.device)
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    number = int(count.item())
    times = []
    for _ in range(2):
        dist.barrier()
        synchronize()
        begin = time.perf_counter()
        for _ in range(number if takes_part else 0):
            call()
        synchronize()
        times.append((time.perf_counter() - begin) / number)
    own = torch.tensor(times, dtype=torch.float64, device=job.device)
    by_rank = [torch.zeros_like(own) for _ in range(job.ranks)]
    dist.all_gather(by_rank, own)
    return [[float(by_rank[rank][index].item()) for rank in members] for index in range(len(times))]
