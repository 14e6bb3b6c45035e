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
from functools import cache
from typing import NamedTuple

from simoffload.schedule import Op, Schedule, alone_rate, transfer_time
from simoffload.strategies.cache_updates import CACHE_LABEL
from simoffload.strategies.memory import pinned_block
from simoffload.strategies.timing import copy_name, picoseconds

Tensors = Sequence[Sequence[int]]
"""Sizes [B] of the tensors that each offloaded layer copies to host memory."""

_GENERATIONS = 2
"""Number of the generation of a process whose steps are predicted: runs are compared by their second one."""
_HOST = "host"


class _Step(NamedTuple):
    """A _Step is a decode step without waits, and the blocks of the layers' tensors before and after it."""

    schedule: Schedule
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def allocation_waits(
    steps: int, tensors: Callable[[int], Tensors], schedule: Callable[[int], Schedule], *, rate: float
) -> dict[int, int]:
    """Return how long decode steps wait for new pinned blocks [ps], by their number from 1; others do not
    wait.

    ``tensors`` returns those of a step (0: the prefill), whose sizes never become smaller, and ``schedule`` a
    step that does not wait. New memory comes at ``rate`` [B/s].
    """

    @cache
    def blocks(step: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(pinned_block, sizes)) for sizes in tensors(step))

    waits: dict[int, int] = {}
    free: Counter[int] = Counter()
    written: dict[int, Schedule] = {}
    for _ in range(_GENERATIONS):
        waits = {}
        needed = Counter(block for layer in blocks(0) for block in layer)
        free = (free | needed) - needed
        for first, behind in _runs(steps, blocks):
            for step in range(first, behind):
                like = min(step, first + 1)  # the first step of a run fetches smaller blocks
                if like not in written:
                    written[like] = schedule(like)
                own = _Step(written[like], blocks(step - 1), blocks(step))
                waited, allocated = _Replay(own, free, rate).run()
                if waited:
                    waits[step] = waited
                elif step > first and not allocated:
                    break
        free.update(block for layer in blocks(steps) for block in layer)
    return waits


def _runs(steps: int, blocks: Callable[[int], tuple[tuple[int, ...], ...]]) -> Iterator[tuple[int, int]]:
    """Yield the first step, and the one behind the last, of runs of steps with equal blocks."""

    def total(step: int) -> int:
        return sum(map(sum, blocks(step)))

    first = 1
    while first <= steps:
        numbers = range(first, steps + 1)
        behind = first + bisect_right(numbers, total(first), key=total)
        yield first, behind
        first = behind


class _Replay:
    """A _Replay goes through the operations of a step in their order, with the blocks that are free."""

    def __init__(self, step: _Step, free: Counter[int], rate: float) -> None:
        """Take ``free``, which the replay changes to the blocks that are free behind the step."""
        self._step, self._free, self._rate = step, free, rate
        schedule = step.schedule
        routes = range(len(schedule.routes))
        self._rates = [alone_rate(schedule, route=route, rank=0) for route in routes]
        outward = copy_name(to_device=False, pinned=True)
        self._outward = [one.name.startswith(outward) for one in schedule.routes]

    def run(self) -> tuple[int, int]:
        """Return how much longer the step takes because of allocations [ps], and their number."""
        enough = self._pass(limited=False)
        self._allocated = 0
        end = self._pass(limited=True)
        return end - enough, self._allocated

    def _pass(self, *, limited: bool) -> int:
        """Return the end of the step [ps]; unless ``limited``, there are enough blocks."""
        schedule = self._step.schedule
        ends: list[list[int]] = [[] for _ in schedule.streams]
        stored = iter(self._step.after)
        fetched = iter(self._step.before[1:])  # the last update fetches the first layer for the next step
        copied: deque[tuple[int, tuple[int, ...]]] = deque()
        if limited:  # that of the step before has done so
            self._free.update(self._step.before[0])
        for block in schedule.blocks:
            for _ in range(block.repeat):
                for op in block.ops:
                    moves = limited and op.kind == "copy" and op.label == CACHE_LABEL
                    if moves and self._outward[op.route]:
                        host = next(one.stream for one in op.after if schedule.streams[one.stream] == _HOST)
                        ends[host][-1] = self._taken(next(stored), ends[host][-1], copied)
                    end = self._end(op, ends)
                    ends[op.stream].append(end)
                    if moves and not self._outward[op.route]:
                        copied.append((end, next(fetched, ())))
        for _, blocks in copied:
            self._free.update(blocks)
        return max(own[-1] for own in ends if own)

    def _taken(self, needed: Sequence[int], now: int, copied: deque[tuple[int, tuple[int, ...]]]) -> int:
        """Take blocks from those whose copies have ended, or allocate them; return when all are there
        [ps]."""
        for block in needed:
            while copied and copied[0][0] <= now:
                self._free.update(copied.popleft()[1])
            if self._free[block]:
                self._free[block] -= 1
            else:
                now += picoseconds(block / self._rate)
                self._allocated += 1
        return now

    def _end(self, op: Op, ends: Sequence[Sequence[int]]) -> int:
        """Return when an operation ends [ps]."""
        own = ends[op.stream]
        start = own[-1] if own else 0
        for one in op.after:
            before = ends[one.stream]
            if one.back < len(before):
                start = max(start, before[-1 - one.back])
        moving = transfer_time(op.size, self._rates[op.route]) if op.size else 0
        return start + op.fixed + moving
