"""Closed-form bounds on the duration of a schedule: what no run beats, and what none exceeds."""

from __future__ import annotations

from simoffload.schedule import Schedule, link_loads, link_time, stream_times


def lower_bound(schedule: Schedule) -> int:
    """Return a time [ps] that no run of the (valid) schedule can beat.

    It is the larger of two: the time of the busiest stream of any rank, each of its operations alone on the
    links; and the largest ratio of bytes to capacity of any link.
    """
    busiest_stream = max(stream_times(schedule).values(), default=0)
    return max(busiest_stream, *map(link_time, link_loads(schedule), schedule.links), 0)


def serial_time(schedule: Schedule) -> int:
    """Return the time [ps] of all operations of all ranks one after another, each alone on the links.

    No run of the (valid) schedule takes longer, apart from the effect of rounding rates down to 1 B/s for
    flows that share a link: some operation is always running, and a link that flows share is full.
    """
    return sum(stream_times(schedule).values())
