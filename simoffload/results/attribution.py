"""Where the time of a pass went: the chain of operations that determined its length.

Walking back from the last operation to whichever predecessor ended last gives a chain without gaps or
overlaps, so the times along it sum to the makespan exactly and nothing is counted twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

from simoffload.results.timeline import Timeline
from simoffload.schedule import Op, Schedule

__all__ = ["Attribution", "attribute"]

_COMPUTE = "GPU compute"
_NAMES = {
    "hook": "host thread",
    "launch": "host thread",
    "compute": _COMPUTE,
    "concat": "GPU copies of gathered tensors",
    "copy": "GPU copies of gathered tensors",
}


class Attribution(NamedTuple):
    """Time by cause on the deciding rank."""

    exposed: dict[str, int]
    """[ps] on the deciding chain, largest first; sums to the makespan."""
    busy: dict[str, int]
    """[ps] that the rank spent on each cause in all, hidden or not."""


class _Ranks:
    """Finds an operation of a rank by its stream and ordinal."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._base, self._prefix = _counts(timeline.schedule)
        streams = len(timeline.schedule.streams)
        self.entries: list[list[list[int]]] = [
            [[] for _ in range(streams)] for _ in range(timeline.schedule.ranks)
        ]
        blocks = timeline.schedule.blocks
        positions = zip(timeline.rank, timeline.block, timeline.position, strict=True)
        for entry, (rank, block, position) in enumerate(positions):
            self.entries[rank][blocks[block].ops[position].stream].append(entry)

    def op(self, entry: int) -> Op:
        return self._timeline.schedule.blocks[self._timeline.block[entry]].ops[self._timeline.position[entry]]

    def predecessors(self, entry: int, rank: int) -> list[int]:
        timeline = self._timeline
        block, iteration, position = (
            timeline.block[entry],
            timeline.iteration[entry],
            timeline.position[entry],
        )
        first, per_iteration = self._base[block]
        written = self._prefix[block][position]
        op = self.op(entry)
        found = []
        for stream, back in ((op.stream, 0), *op.after):
            ordinal = first[stream] + iteration * per_iteration[stream] + written[stream] - 1 - back
            if ordinal >= 0:
                found.append(self.entries[rank][stream][ordinal])
        return found


def _counts(schedule: Schedule) -> tuple[list[tuple[list[int], list[int]]], list[list[list[int]]]]:
    """Per block: operations written before it and per iteration; per operation: written before it inside."""
    running = [0] * len(schedule.streams)
    base, prefix = [], []
    for block in schedule.blocks:
        inside = [0] * len(schedule.streams)
        rows = []
        for op in block.ops:
            rows.append(inside.copy())
            inside[op.stream] += 1
        base.append((running.copy(), inside))
        prefix.append(rows)
        running = [count + block.repeat * more for count, more in zip(running, inside, strict=True)]
    return base, prefix


def _cause(op: Op, schedule: Schedule) -> str:
    return schedule.routes[op.route].name if op.route >= 0 else _NAMES[op.kind]


def attribute(timeline: Timeline) -> Attribution:
    """Split the makespan of a recorded run by cause."""
    schedule = timeline.schedule
    ranks = _Ranks(timeline)
    last = max(range(len(timeline)), key=timeline.end.__getitem__)
    rank = timeline.rank[last]
    exposed: Counter[str] = Counter()
    entry: int | None = last
    while entry is not None:
        exposed[_cause(ranks.op(entry), schedule)] += timeline.end[entry] - timeline.start[entry]
        entry, rank = _before(timeline, ranks, entry, rank)
    busy: Counter[str] = Counter()
    for stream in ranks.entries[timeline.rank[last]]:
        for done in stream:
            busy[_cause(ranks.op(done), schedule)] += timeline.end[done] - timeline.start[done]
    ordered = dict(sorted(exposed.items(), key=lambda item: (-item[1], item[0])))
    return Attribution(ordered, {name: busy[name] for name in sorted(busy, key=lambda n: (-busy[n], n))})


def _before(timeline: Timeline, ranks: _Ranks, entry: int, rank: int) -> tuple[int | None, int]:
    """The predecessor that ended when ``entry`` started; for a collective, on whichever rank came last."""
    candidates = [(candidate, rank) for candidate in ranks.predecessors(entry, rank)]
    if ranks.op(entry).collective:
        stream = ranks.op(entry).stream
        ordinal = bisect_left(ranks.entries[rank][stream], entry)
        for other in range(timeline.schedule.ranks):
            twin = ranks.entries[other][stream][ordinal]
            candidates += [(candidate, other) for candidate in ranks.predecessors(twin, other)]
    best = max(candidates, key=lambda found: timeline.end[found[0]], default=None)
    return best if best is not None else (None, rank)
