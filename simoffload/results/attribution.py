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
    "reduce": "gradients on the GPU",
    "update": "optimizer on the GPU",
    "wait": "waiting for the CPU update",
    "pages": "new pages for copies",
    "cached": "entering the page cache",
    "checksum": "crc32",
}


class Attribution(NamedTuple):
    """Time by cause on the deciding rank."""

    exposed: dict[str, int]
    """[ps] on the deciding chain, largest first; sums to the makespan."""
    busy: dict[str, int]
    """[ps] spent on each cause in all, hidden or not, on the rank that has most of it."""
    exposed_streams: dict[str, int]
    """[ps] on the deciding chain, by stream."""
    busy_streams: dict[str, int]
    """[ps] in all, by stream, on the rank that has most to do on it."""
    exposed_links: dict[str, int]
    """[ps] on the deciding chain that transfers over each link took."""


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


def attribute(timeline: Timeline, *, last: int | None = None) -> Attribution:
    """Split the makespan of a recorded run by cause, by stream and by link; that of what ends with ``last``,
    if an entry is named."""
    schedule = timeline.schedule
    ranks = _Ranks(timeline)
    if last is None:
        last = max(range(len(timeline)), key=timeline.end.__getitem__)
    rank = timeline.rank[last]
    exposed, exposed_streams, exposed_links = Counter[str](), Counter[str](), Counter[str]()
    entry: int | None = last
    while entry is not None:
        op, duration = ranks.op(entry), timeline.end[entry] - timeline.start[entry]
        exposed[_cause(op, schedule)] += duration
        exposed_streams[schedule.streams[op.stream]] += duration
        if op.route >= 0:
            for link, _ in schedule.routes[op.route].hops[rank]:
                exposed_links[schedule.links[link].name] += duration
        entry, rank = _before(timeline, ranks, entry, rank)
    busy, busy_streams = _busy(timeline, ranks, exposed, exposed_streams)
    return Attribution(
        _largest_first(exposed),
        _largest_first(busy),
        dict(exposed_streams),
        dict(busy_streams),
        dict(exposed_links),
    )


def _busy(
    timeline: Timeline, ranks: _Ranks, exposed: Counter[str], exposed_streams: Counter[str]
) -> tuple[Counter[str], Counter[str]]:
    """Work by cause and by stream on the rank that has most of it; at least what was exposed.

    Before a collective the deciding chain goes through the rank that came last, so that it can hold more of
    a cause than any single rank.
    """
    schedule = timeline.schedule
    causes = [[_cause(op, schedule) for op in block.ops] for block in schedule.blocks]
    busy, busy_streams = Counter(exposed), Counter(exposed_streams)
    for streams in ranks.entries:
        mine: Counter[str] = Counter()
        for stream, entries in zip(schedule.streams, streams, strict=True):
            total = 0
            for done in entries:
                duration = timeline.end[done] - timeline.start[done]
                mine[causes[timeline.block[done]][timeline.position[done]]] += duration
                total += duration
            if entries:
                busy_streams[stream] = max(busy_streams[stream], total)
        for cause, total in mine.items():
            busy[cause] = max(busy[cause], total)
    return busy, busy_streams


def _largest_first(times: Counter[str]) -> dict[str, int]:
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


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
