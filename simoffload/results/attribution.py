"""Where the time of a pass went: the chain of operations that determined its length.

Walking back from the last operation to whichever predecessor ended last gives a chain without gaps or
overlaps, so the times along it sum to the makespan exactly and nothing is counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from simoffload.results.chain import Chain
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

    end: int
    """[ps] end of the deciding chain."""
    exposed: dict[str, int]
    """[ps] on the deciding chain, largest first; sums to its end."""
    busy: dict[str, int]
    """[ps] spent on each cause in all, hidden or not, on the rank that has most of it."""
    exposed_streams: dict[str, int]
    """[ps] on the deciding chain, by stream."""
    busy_streams: dict[str, int]
    """[ps] in all, by stream, on the rank that has most to do on it."""
    exposed_links: dict[str, int]
    """[ps] on the deciding chain that transfers over each link took."""


def _cause(op: Op, schedule: Schedule) -> str:
    return schedule.routes[op.route].name if op.route >= 0 else _NAMES[op.kind]


_Kind = tuple[str, str, int]
"""Cause, stream and route of an operation."""


def _kinds(schedule: Schedule) -> list[list[_Kind]]:
    """Of every operation of every block; equal kinds are one object."""
    known: dict[tuple[str, int, int], _Kind] = {}
    found: list[list[_Kind]] = []
    for block in schedule.blocks:
        found.append([])
        for op in block.ops:
            key = op.kind, op.stream, op.route
            kind = known.get(key)
            if kind is None:
                kind = known[key] = _cause(op, schedule), schedule.streams[op.stream], op.route
            found[-1].append(kind)
    return found


def attribute(timeline: Timeline, *, ends_with: str | None = None) -> Attribution:
    """Split the makespan of a recorded run by cause, by stream and by link; or the time until the last
    operation of the stream ``ends_with`` is done."""
    schedule = timeline.schedule
    chain = Chain(timeline)
    last = chain.last(None if ends_with is None else schedule.streams.index(ends_with))
    recorded = timeline.recorded
    kinds = _kinds(schedule)
    totals: dict[tuple[_Kind, int], int] = {}
    for entry, times in chain.walk(last):
        key = kinds[recorded.block[entry]][recorded.position[entry]], recorded.rank[entry]
        totals[key] = totals.get(key, 0) + times * (recorded.end[entry] - recorded.start[entry])
    exposed, exposed_streams, exposed_links = Counter[str](), Counter[str](), Counter[str]()
    for ((cause, stream, route), number), duration in totals.items():
        exposed[cause] += duration
        exposed_streams[stream] += duration
        if route < 0:
            continue
        for link, _ in schedule.routes[route].hops[timeline.ranks_by_class[number][0]]:
            exposed_links[schedule.links[link].name] += duration
    busy, busy_streams = _busy(timeline, kinds, exposed, exposed_streams)
    return Attribution(
        last.end,
        _largest_first(exposed),
        _largest_first(busy),
        dict(exposed_streams),
        dict(busy_streams),
        dict(exposed_links),
    )


def _busy(
    timeline: Timeline, kinds: Sequence[Sequence[_Kind]], exposed: Counter[str], exposed_streams: Counter[str]
) -> tuple[Counter[str], Counter[str]]:
    """Work by cause and by stream on the rank that has most of it; at least what was exposed.

    Before a collective the deciding chain goes through the rank that came last, so that it can hold more of
    a cause than any single rank.
    """
    by_cause, by_stream = _work(timeline, kinds)
    busy, busy_streams = Counter(exposed), Counter(exposed_streams)
    for own in by_stream:
        for stream in timeline.schedule.streams:
            if stream in own:
                busy_streams[stream] = max(busy_streams[stream], own[stream])
    for mine in by_cause:
        for cause, total in mine.items():
            busy[cause] = max(busy[cause], total)
    return busy, busy_streams


def _work(
    timeline: Timeline, kinds: Sequence[Sequence[_Kind]]
) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """[ps] by cause and by stream on each class of ranks."""
    recorded = timeline.recorded
    classes = len(timeline.ranks_by_class)
    by_cause = [Counter[str]() for _ in range(classes)]
    by_stream = [Counter[str]() for _ in range(classes)]
    totals: dict[tuple[_Kind, int], int] = {}
    for first, last, times, _, _ in timeline.pieces():
        columns = zip(*(column[first:last] for column in recorded), strict=True)
        for rank, block, _, position, start, end in columns:
            key = kinds[block][position], rank
            totals[key] = totals.get(key, 0) + times * (end - start)
    for ((cause, stream, _), rank), duration in totals.items():
        by_cause[rank][cause] += duration
        by_stream[rank][stream] += duration
    return by_cause, by_stream


def _largest_first(times: Counter[str]) -> dict[str, int]:
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))
