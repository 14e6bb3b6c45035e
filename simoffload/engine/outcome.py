"""The timeline of a finished run, and the traffic of every link."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simoffload.engine.network import Network
from simoffload.engine.stream_state import StreamState
from simoffload.results import Repeat, Timeline, Track
from simoffload.schedule import Contention, Schedule, link_loads, transfer_time

_Interval = tuple[int, int]


class SkippedInterval(NamedTuple):
    """An interval that was run once and then counted ``times`` times more."""

    first: tuple[int, ...]
    """For every stream, operations (of those that were run) that had ended by the start of the interval."""
    last: tuple[int, ...]
    """For every stream, operations (of those that were run) that had ended by the end of the interval."""
    begin: int
    """Start of the interval [ps], without skipped time."""
    end: int
    """End of the interval [ps], without skipped time."""
    times: int


def timeline_of(
    schedule: Schedule,
    contention: Contention,
    stream_states: Sequence[StreamState],
    network: Network[StreamState],
    skips: Sequence[SkippedInterval],
) -> Timeline:
    """Return the timeline of a finished run. Raises OverflowError if its times do not fit into the
    columns."""
    tracks = tuple([_track(stream_state, skips) for stream_state in stream_states])
    busy, saturated = _use(schedule, contention, stream_states, network, skips)
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


def _track(stream_state: StreamState, skips: Sequence[SkippedInterval]) -> Track:
    start, end = array("q"), array("q")
    repeats: list[Repeat] = []
    number, done, later, ordinal = stream_state.number, 0, 0, 0
    for window, skip in enumerate(skips):
        first, last, length = skip.first[number], skip.last[number], skip.end - skip.begin
        start.extend([time + later for time in stream_state.starts[done:last]])
        end.extend([time + later for time in stream_state.ends[done:last]])
        if last > first:
            repeats.append(Repeat(first, last - first, skip.times, length, ordinal + first, window))
            ordinal += skip.times * (last - first)
        done, later = last, later + skip.times * length
    start.extend([time + later for time in stream_state.starts[done:]])
    end.extend([time + later for time in stream_state.ends[done:]])
    return Track(
        stream_state.rank,
        stream_state.stream,
        stream_state.completed,
        start,
        end,
        array("q", stream_state.predecessors),
        tuple(repeats),
    )


# -- links --------------------------------------------------------------------------------------


def _use(
    schedule: Schedule,
    contention: Contention,
    stream_states: Sequence[StreamState],
    network: Network[StreamState],
    skips: Sequence[SkippedInterval],
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
    for link, intervals in _wide(schedule, contention, stream_states).items():
        busy[link] = _time(intervals, skips)
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


def _time(intervals: Iterable[_Interval], skips: Sequence[SkippedInterval]) -> int:
    """Return the time [ps] covered by at least one interval, skipped time included."""
    total = 0
    reached = 0
    for start, end in sorted(intervals):
        begin = max(start, reached)
        if end > begin:
            reached = end
            total += end - begin
            for skip in skips:
                total += skip.times * max(0, min(end, skip.end) - max(begin, skip.begin))
    return total
