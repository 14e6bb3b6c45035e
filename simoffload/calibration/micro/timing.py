"""Clocks for short GPU and CPU work (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

__all__ = [
    "MeasurementJob",
    "blocking_seconds",
    "busy_seconds",
    "call_seconds",
    "repeats",
    "seconds_by_rank",
    "stream_seconds",
    "synchronize",
]

_IN_FLIGHT = 40
"""Kernels that are launched before the host waits. The driver's queue holds about a thousand, and a full
queue would make the host wait for the GPU; and a repetition of less than a millisecond falls between two
changes of the speed of a core that another thread shares."""
_SHORT_REPETITIONS = 15
_GRAPH_LENGTH = 20
"""Calls in a CUDA graph, at most."""
_SHORT = 2e-3
"""[s] Work below this is repeated within a CUDA graph, else the launches would be timed."""


class MeasurementJob(NamedTuple):
    """What one process is to do."""

    rank: int
    ranks: int
    device: str
    """Device of the job: ``cuda:<i>`` or ``cpu``."""
    quick: bool
    data: dict[str, Any]
    """What the parent wrote down."""
    kept: dict[str, Any]
    """What earlier rounds built in this process; a section keeps something under its own name."""
    until: float = 0.0
    """[s] of ``time.monotonic`` after which nothing more is begun."""

    def in_time(self) -> bool:
        """Whether time is left; the ranks decide alike."""
        left = self.until - time.monotonic()
        if self.ranks > 1:
            value = torch.tensor([left], dtype=torch.float64, device=self.device)
            dist.broadcast(value, 0)
            left = float(value.item())
        return left > 0


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def repeats(call: Callable[[], object], *, budget: float, most: int = 1000, least: int = 1) -> int:
    """How often ``call`` can be made within ``budget`` [s]; it is made twice to find out."""
    call()
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return max(least, min(most, int(budget / max(time.perf_counter() - begin, 1e-6))))


def stream_seconds(call: Callable[[], object], *, count: int, repetitions: int) -> list[float]:
    """[s] per call of ``count`` calls that are queued one behind the other, in each repetition."""
    return [_streamed(call, count) for _ in range(repetitions)]


def _streamed(call: Callable[[], object], count: int) -> float:
    synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    synchronize()
    return (time.perf_counter() - begin) / count


def call_seconds(
    call: Callable[[], object], *, count: int = _IN_FLIGHT, repetitions: int = 15
) -> list[float]:
    """[s] of the host per call until it returns; the GPU is waited for outside of the clock."""
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
    """[s] of a call after which the GPU is idle, each of ``count``."""
    times = []
    for _ in range(count):
        synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def busy_seconds(call: Callable[[int], object], *, budget: float = 0.02, repetitions: int = 3) -> list[float]:
    """[s] that the GPU is busy with one call, in each repetition.

    The argument of ``call`` counts the calls, to choose among operands.

    Short work is put into a CUDA graph, so that the host's launches do not count.
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
    job: MeasurementJob, call: Callable[[], object], *, duration: float, least: int = 2
) -> list[list[float]]:
    """[s] per call on each rank, in each of two repetitions; all make as many calls after a barrier.

    A repetition lasts about ``duration`` [s].
    """
    count = torch.tensor([repeats(call, budget=duration, least=least, most=400)], device=job.device)
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    number = int(count.item())
    times = []
    for _ in range(2):
        dist.barrier()
        synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            call()
        synchronize()
        times.append((time.perf_counter() - begin) / number)
    mine = torch.tensor(times, dtype=torch.float64, device=job.device)
    everyone = [torch.zeros_like(mine) for _ in range(job.ranks)]
    dist.all_gather(everyone, mine)
    return [[float(one[index].item()) for one in everyone] for index in range(len(times))]
