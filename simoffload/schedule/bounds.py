"""Times of streams and links that follow from a schedule alone, and the transfers that can contend with each
other.

Contention is determined before the clock starts. A stream of a rank transfers one thing at a time. So a link
that only one stream crosses is never shared; and a link that could carry the fastest transfers of all its
streams simultaneously is never full. A transfer that crosses no other links has the rate that it has alone,
whatever else runs, and its duration is known in advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from simoffload.schedule.ir import Link, Schedule

_PICO = 10**12


def alone_rate(schedule: Schedule, *, route: int, rank: int) -> int:
    """Return the rate [B/s] of a transfer over ``route`` on ``rank`` that shares no link."""
    path = schedule.routes[route]
    shares = [schedule.links[link].capacity // coefficient for link, coefficient in path.hops[rank]]
    return min([path.cap, *shares])


def transfer_time(size: int, rate: int) -> int:
    """Return the time [ps] of ``size`` [B] at ``rate`` [B/s], rounded up."""
    return -(-size * _PICO // rate)


def stream_times(schedule: Schedule, ranks: Iterable[int] | None = None) -> Counter[tuple[int, int]]:
    """Return the least time [ps] for which each stream of each rank, (rank, stream), is occupied.

    ``ranks`` limits the result to these ranks; None means all.
    """
    ranks_by_rates: dict[tuple[int, ...], list[int]] = {}
    for rank in range(schedule.ranks) if ranks is None else ranks:
        rates = tuple([alone_rate(schedule, route=route, rank=rank) for route in range(len(schedule.routes))])
        ranks_by_rates.setdefault(rates, []).append(rank)
    fixed, moves = _operations(schedule)
    owners = schedule.owners
    times: Counter[tuple[int, int]] = Counter()
    for rates, own_ranks in ranks_by_rates.items():
        own = Counter(fixed)
        for (stream, route, size), count in moves.items():
            own[stream] += count * transfer_time(size, rates[route])
        for rank in own_ranks:
            for stream, time in own.items():
                if rank in owners[stream].ranks:
                    times[rank, stream] = time
    return times


def link_time(load: int, link: Link) -> int:
    """Return the time [ps] that a link takes for a load [B x coefficient]."""
    return transfer_time(load, link.capacity)


def link_loads(schedule: Schedule) -> list[int]:
    """Return the total load on each link [B x coefficient]."""
    transferred: Counter[tuple[int, int]] = Counter()
    for ops, times in schedule.contents:
        for op in ops:
            if op.size:
                transferred[op.stream, op.route] += times * op.size
    owners = schedule.owners
    loads = [0] * len(schedule.links)
    for (stream, route), size in transferred.items():
        ranks = owners[stream].ranks
        for hops in schedule.routes[route].hops[ranks.start : ranks.stop]:
            for link, coefficient in hops:
                loads[link] += size * coefficient
    return loads


def _operations(schedule: Schedule) -> tuple[Counter[int], Counter[tuple[int, int, int]]]:
    """Return the fixed time [ps] by stream, and how often each stream moves each size over each route, on
    each rank."""
    fixed: Counter[int] = Counter()
    moves: Counter[tuple[int, int, int]] = Counter()
    for ops, times in schedule.contents:
        for op in ops:
            fixed[op.stream] += times * op.fixed
            if op.size:
                moves[op.stream, op.route, op.size] += times
    return fixed, moves


class Contention(NamedTuple):
    """The transfers whose rate is constant, and the links that are never full."""

    rates: tuple[tuple[int, ...], ...]
    """Rate [B/s] of a transfer over each route on each rank, if it is constant; 0 where it depends on
    others."""
    wide: frozenset[int]
    """Links that several streams cross and never fill."""


def find_contention(schedule: Schedule) -> Contention:
    """Separate transfers whose rate never changes from those that may share a link that is full."""
    owners = schedule.owners
    used = {(op.stream, op.route) for ops, _ in schedule.contents for op in ops if op.size}
    rates = [[1] * schedule.ranks for _ in schedule.routes]
    most: list[dict[tuple[int, int], int]] = [{} for _ in schedule.links]
    for stream, route in used:
        for rank in owners[stream].ranks:
            hops = schedule.routes[route].hops[rank]
            rates[route][rank] = rate = alone_rate(schedule, route=route, rank=rank)
            for link, coefficient in hops:
                own = most[link]
                # A link counts as full when 1 B/s more of each transfer would be too much for it.
                own[stream, rank] = max(own.get((stream, rank), 0), coefficient * (rate + 1))
    wide: set[int] = set()
    shared: set[int] = set()
    for link, loads in enumerate(most):
        if len(loads) > 1:
            fits = sum(loads.values()) <= schedule.links[link].capacity
            (wide if fits else shared).add(link)
    for ranks, route in {(owners[stream].ranks, route) for stream, route in used}:
        for rank in ranks:
            if any(link in shared for link, _ in schedule.routes[route].hops[rank]):
                rates[route][rank] = 0
    return Contention(tuple(map(tuple, rates)), frozenset(wide))
