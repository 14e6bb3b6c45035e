"""Pinned memory of an offloaded cache: how long decode steps wait until more of it is allocated.

Reference: PyTorch 2.11, ``CachingHostAllocator`` (aten/src/ATen/core/CachingHostAllocator.h). In every pass
``Tensor.to`` makes new pinned tensors for keys and values of each layer. The blocks of the tensors before are
free when their copies to the GPU have ended, but the host thread is ahead of the GPU and needs some earlier.
It then allocates new ones (``cudaHostAlloc``), one or two in a step, until there are at most two for each
tensor. Without work that is queued the GPU waits for that.

The replay of a step finds out when the host thread needs blocks and when blocks become free. It neglects
that transfers share links, which hardly moves the ends of copies. Compared with measured steps in
docs/measurements/kv-cache.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import NamedTuple

from simoffload.schedule import Dependency, Op, Schedule, alone_rate, transfer_time
from simoffload.strategies.cache.cache_updates import CACHE_LABEL
from simoffload.strategies.memory import pinned_block
from simoffload.strategies.passes.timing import picoseconds

Tensors = Sequence[Sequence[int]]
"""Sizes [B] of the tensors that each offloaded layer copies to host memory."""

Blocks = tuple[tuple[int, ...], ...]
"""Sizes [B] of the pinned blocks of these tensors."""

_GENERATIONS = 2
"""Number of the generation of a process whose steps are predicted: runs are compared by their second one."""
_HOST = "host"


def allocation_waits(
    steps: int, tensors: Callable[[int], Tensors], schedule: Callable[[int], Schedule], *, rate: float
) -> dict[int, int]:
    """Return how long decode steps wait for new pinned blocks [ps], by their number from 1; others do not
    wait.

    ``tensors`` returns those of a step (0: the prefill), whose sizes never become smaller, and ``schedule`` a
    step that does not wait. New memory comes at ``rate`` [B/s].
    """

    @cache
    def blocks(step: int) -> Blocks:
        return tuple(tuple(map(pinned_block, sizes)) for sizes in tensors(step))

    waits: dict[int, int] = {}
    free: Counter[int] = Counter()
    replays: dict[int, _Replay] = {}
    for _ in range(_GENERATIONS):
        waits = {}
        needed = Counter(block for layer in blocks(0) for block in layer)
        free = (free | needed) - needed
        for first, behind in _runs(steps, blocks):
            for step in range(first, behind):
                like = min(step, first + 1)  # the first step of a run fetches smaller blocks
                if like not in replays:
                    replays[like] = _Replay(schedule(like), rate)
                waited, allocated = replays[like].run(blocks(step - 1), blocks(step), free)
                if waited:
                    waits[step] = waited
                elif step > first and not allocated:
                    break
        free.update(block for layer in blocks(steps) for block in layer)
    return waits


def _runs(steps: int, blocks: Callable[[int], Blocks]) -> Iterator[tuple[int, int]]:
    """Yield the first step, and the one behind the last, of runs of steps with equal blocks."""

    def total(step: int) -> int:
        return sum(map(sum, blocks(step)))

    first = 1
    while first <= steps:
        numbers = range(first, steps + 1)
        behind = first + bisect_right(numbers, total(first), key=total)
        yield first, behind
        first = behind


class _Replayed(NamedTuple):
    """A _Replayed is an operation of a step."""

    stream: int
    time: int
    """[ps] that it takes."""
    after: tuple[Dependency, ...]
    host: int | None
    """Stream of the host thread that needs pinned blocks for it: a copy of a cache to host memory."""
    frees: bool
    """Whether blocks are free behind it: a copy of a cache to the GPU."""


class _Replay:
    """A _Replay goes through the operations of a step in their order, with the blocks that are free."""

    def __init__(self, schedule: Schedule, rate: float) -> None:
        """Take a step that does not wait, and the rate [B/s] at which new memory comes."""
        self._streams, self._rate = len(schedule.streams), rate
        rates = [alone_rate(schedule, route=route, rank=0) for route in range(len(schedule.routes))]

        def replayed(op: Op) -> _Replayed:
            time = op.fixed + (transfer_time(op.size, rates[op.route]) if op.size else 0)
            moves = op.kind == "copy" and op.label == CACHE_LABEL
            out = moves and schedule.routes[op.route].cause.kind == "gpu-to-host"
            host = (
                next(one.stream for one in op.after if schedule.streams[one.stream] == _HOST) if out else None
            )
            return _Replayed(op.stream, time, op.after, host, moves and not out)

        self._ops = [op for block in schedule.blocks for op in list(map(replayed, block.ops)) * block.repeat]

    def run(self, before: Blocks, after: Blocks, free: Counter[int]) -> tuple[int, int]:
        """Return how much longer the step takes because of allocations [ps], and their number.

        ``before`` and ``after`` are the blocks of the layers' tensors before and after the step, ``free``
        those that are free, which become those that are free behind it.
        """
        self._allocated = 0
        end = self._end((before, after, free))
        return end - self._enough if self._allocated else 0, self._allocated

    @cached_property
    def _enough(self) -> int:
        """End of the step [ps] if there are enough blocks."""
        return self._end(None)

    def _end(self, pool: tuple[Blocks, Blocks, Counter[int]] | None) -> int:
        """Return the end of the step [ps] with a ``pool`` of blocks; None: there are enough."""
        ends: list[list[int]] = [[] for _ in range(self._streams)]
        before, after, free = pool or ((), (), Counter[int]())
        stored = iter(after)
        fetched = iter(before[1:])  # the last update fetches the first layer, for the next step
        copied: deque[tuple[int, tuple[int, ...]]] = deque()
        free.update(before[0] if before else ())  # which the step before has fetched
        for stream, time, awaited, host, frees in self._ops:
            if host is not None and pool:
                ends[host][-1] = self._taken(next(stored), ends[host][-1], copied, free)
            own = ends[stream]
            start = own[-1] if own else 0
            for other, back, _ in awaited:
                others = ends[other]
                if back < len(others) and others[-1 - back] > start:
                    start = others[-1 - back]
            own.append(start + time)
            if frees and pool:
                copied.append((own[-1], next(fetched, ())))
        for _, blocks in copied:
            free.update(blocks)
        return max(own[-1] for own in ends if own)

    def _taken(
        self,
        needed: Sequence[int],
        now: int,
        copied: deque[tuple[int, tuple[int, ...]]],
        free: Counter[int],
    ) -> int:
        """Take blocks whose copies have ended, or allocate them; return when all are there [ps]."""
        for block in needed:
            while copied and copied[0][0] <= now:
                free.update(copied.popleft()[1])
            if free[block]:
                free[block] -= 1
            else:
                now += picoseconds(block / self._rate)
                self._allocated += 1
        return now
