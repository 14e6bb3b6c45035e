"""The timeline of a finished run, and the traffic of every link."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from simoffload.engine.network import Network
from simoffload.engine.stream_state import StreamState
from simoffload.results import Order, Timeline, Track
from simoffload.schedule import Contention, Schedule, grouped, link_loads, transfer_time

_LONGEST = 500
"""Number of sequences in the longest group that is searched: buffers that are filled by many layers recur
late."""
_MOST = 10_000
"""Number of windows in the largest group."""

_Interval = tuple[int, int]


class RunMark(NamedTuple):
    """A time of a run, and its progress."""

    ended: tuple[int, ...]
    """For every stream, operations (of those that were run) that had ended."""
    time: int
    """[ps] without skipped time."""


class Skip(NamedTuple):
    """What was counted instead of run at a time: intervals that had been run before, one after the other."""

    at: RunMark
    intervals: tuple[tuple[tuple[tuple[RunMark, RunMark], ...], int], ...]
    """Sequences of intervals, each given by begin and end, and how often each sequence is counted."""


def timeline_of(
    schedule: Schedule,
    contention: Contention,
    stream_states: Sequence[StreamState],
    network: Network[StreamState],
    skips: Sequence[Skip],
) -> Timeline:
    """Return the timeline of a finished run. Raises OverflowError if its times do not fit into the
    columns."""
    makespan = max([one.ends[-1] for one in stream_states if one.ends], default=0)
    marks = _marks(skips, RunMark(tuple([len(one.ends) for one in stream_states]), makespan))
    order = _order(skips, marks)
    tracks = tuple([_track(stream_state, marks, order) for stream_state in stream_states])
    busy, saturated = _use(schedule, contention, stream_states, network, marks, order)
    return Timeline(
        schedule,
        tracks=tracks,
        makespan=max([track.end[-1] for track in tracks if track.end], default=0),
        link_loads=tuple(link_loads(schedule)),
        link_busy=tuple(busy),
        link_saturated=tuple(saturated),
        shared=frozenset([route for route, rates in enumerate(contention.rates) if 0 in rates]),
        constant_rates=network.constant_rates,
    )


def _marks(skips: Sequence[Skip], end: RunMark) -> list[RunMark]:
    """Return the marks that divide the run into windows, from its begin to its end."""
    marks = {RunMark((0,) * len(end.ended), 0), end, *[skip.at for skip in skips]}
    for skip in skips:
        for intervals, _ in skip.intervals:
            for begin, after in _joined(intervals):
                marks |= {begin, after}
    return sorted(marks, key=lambda mark: (mark.time, sum(mark.ended)))


def _joined(intervals: Sequence[tuple[RunMark, RunMark]]) -> list[tuple[RunMark, RunMark]]:
    """Join intervals that follow each other."""
    joined: list[tuple[RunMark, RunMark]] = []
    for begin, end in intervals:
        if joined and joined[-1][1] == begin:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined


def _order(skips: Sequence[Skip], marks: Sequence[RunMark]) -> Order:
    """Return the order in which windows, each between two neighbouring marks, take place."""
    number = {mark: index for index, mark in enumerate(marks)}
    tokens: list[tuple[tuple[int, ...], int]] = []

    def add(windows: tuple[int, ...], times: int) -> None:
        if tokens and tokens[-1][0] == windows:
            tokens[-1] = windows, tokens[-1][1] + times
        else:
            tokens.append((windows, times))

    by_mark: dict[int, list[Skip]] = {}
    for skip in skips:
        by_mark.setdefault(number[skip.at], []).append(skip)
    for window in range(len(marks) - 1):
        for skip in by_mark.get(window, ()):
            for intervals, times in skip.intervals:
                pairs = [(number[begin], number[end]) for begin, end in _joined(intervals)]
                add(tuple([one for begin, end in pairs for one in range(begin, end)]), times)
        add((window,), 1)
    lengths = [after.time - before.time for before, after in pairwise(marks)]
    return Order.of(_phrases(tokens), lengths)


def _phrases(tokens: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[tuple[int, ...], int]]:
    """Join sequences that recur in groups."""
    numbers: dict[tuple[tuple[int, ...], int], int] = {}
    found: list[tuple[tuple[int, ...], int]] = []
    for start, size, times in grouped([numbers.setdefault(one, len(numbers)) for one in tokens], _LONGEST):
        group = tokens[start : start + size]
        if times == 1 or sum([len(windows) * count for windows, count in group]) > _MOST:
            found += [*group] * times
        else:
            found.append((tuple([one for windows, count in group for one in windows * count]), times))
    return found


def _track(stream_state: StreamState, marks: Sequence[RunMark], order: Order) -> Track:
    number = stream_state.number
    spans = tuple([(one.ended[number], other.ended[number]) for one, other in pairwise(marks)])
    start, end = array("q"), array("q")
    for window, (first, last) in enumerate(spans):
        shift = order.begins[window] - marks[window].time
        start.extend([time + shift for time in stream_state.starts[first:last]])
        end.extend([time + shift for time in stream_state.ends[first:last]])
    return Track(
        stream_state.rank,
        stream_state.stream,
        stream_state.completed,
        start,
        end,
        array("q", stream_state.predecessors),
        order.items,
        spans,
    )


# -- links --------------------------------------------------------------------------------------


def _use(
    schedule: Schedule,
    contention: Contention,
    stream_states: Sequence[StreamState],
    network: Network[StreamState],
    marks: Sequence[RunMark],
    order: Order,
) -> tuple[list[int], list[int]]:
    """Return for every link the time [ps] with a transfer, and the time at full capacity."""
    busy, saturated = network.busy()
    owners = [program.ranks for program in schedule.owners]
    # Number of transfers of each size, by route and stream.
    sizes: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for block in schedule.blocks:
        for op in block.ops:
            if op.size:
                sizes[op.route, op.stream][op.size] += block.repeat
    for (route, stream), own in sizes.items():
        ranks = owners[stream]
        rates = contention.rates[route][ranks.start : ranks.stop]
        times = {
            rate: sum([count * transfer_time(size, rate) for size, count in own.items()])
            for rate in set(rates)
            if rate
        }
        for hops, rate in zip(schedule.routes[route].hops[ranks.start : ranks.stop], rates, strict=True):
            for link, coefficient in hops if rate else ():
                busy[link] += times[rate]
                if coefficient * (rate + 1) > schedule.links[link].capacity:
                    saturated[link] += times[rate]
    times_of = order.times
    for link, intervals in _wide(schedule, contention, stream_states).items():
        busy[link] = _time(intervals, marks, times_of)
    return busy, saturated


def _wide(
    schedule: Schedule, contention: Contention, stream_states: Sequence[StreamState]
) -> dict[int, list[_Interval]]:
    """Return the transfer intervals, without skipped time, of links that several streams cross and never
    fill."""
    transferring: dict[int, list[_Interval]] = {link: [] for link in contention.wide}
    crossing = [
        [[transferring[link] for link, _ in hops if link in transferring] for hops in route.hops]
        for route in schedule.routes
    ]
    for stream_state in stream_states if transferring else ():
        for step, start, end in zip(
            stream_state.completed, stream_state.starts, stream_state.ends, strict=True
        ):
            op = step.op
            if op.size:
                for intervals in crossing[op.route][stream_state.rank]:
                    intervals.append((start + op.fixed, end))
    return transferring


def _time(intervals: Iterable[_Interval], marks: Sequence[RunMark], times: Sequence[int]) -> int:
    """Return the time [ps] covered by at least one interval, of windows that take place some ``times``."""
    total = 0
    reached = 0
    window = 0
    for start, end in sorted(intervals):
        begin = max(start, reached)
        while begin < end:
            while marks[window + 1].time <= begin:
                window += 1
            reached = min(end, marks[window + 1].time)
            total += times[window] * (reached - begin)
            begin = reached
    return total
