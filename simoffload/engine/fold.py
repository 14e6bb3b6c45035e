"""Folding: identical ranks are run as one, with multiplicities on the links that they share.

Ranks of a program run the same operations, so they differ only in the links that they cross and the ranks
for which they wait. Colour refinement of the graph of ranks and links (start with one colour for all
ranks of a program and one for each kind of link; give nodes with different neighbourhoods different
colours, until nothing changes) finds the coarsest equitable partition: every link of a class is crossed
by equally many ranks of each class in the same way, and every rank of a class crosses equally many links
of each class. Max-min fair rates are unique, so on such classes they are equal, and one link with the
summed coefficients of all its flows represents its class: n flows of rate x and coefficient c load a
link, compete for it and round like one flow of coefficient n c.

Nothing in the engine depends on a rank's number: no queue is served in the order of ranks, no time is
drawn at random. A schedule in which something does says so with ``Schedule.distinct``, which gives its
ranks their initial colours, and ranks of different colours are never folded.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from simoffload.results import Timeline
from simoffload.schedule import Link, Peers, Program, Schedule

_Hops = tuple[tuple[int, int], ...]


class Folding(NamedTuple):
    """A schedule in which one rank or link represents each class of equal ranks or links."""

    schedule: Schedule
    classes: tuple[tuple[int, ...], ...]
    """The ranks of each class, the lowest first; classes in the order of their lowest rank."""
    links: tuple[int, ...]
    """The class of every link."""

    def unfold(self, timeline: Timeline, schedule: Schedule) -> Timeline:
        """Return the timeline of the ``schedule`` that was folded."""
        return replace(
            timeline,
            schedule=schedule,
            classes=self.classes,
            link_loads=tuple(map(timeline.link_loads.__getitem__, self.links)),
            link_busy=tuple(map(timeline.link_busy.__getitem__, self.links)),
            link_saturated=tuple(map(timeline.link_saturated.__getitem__, self.links)),
        )


def fold_ranks(schedule: Schedule) -> Folding:
    """Fold ``schedule``, which must be valid, as far as possible; in the worst case every rank is a class."""
    distinct: dict[tuple[_Hops, ...], int] = {}
    numbers = [distinct.setdefault(route.hops, len(distinct)) for route in schedule.routes]
    programs = tuple(program.ranks for program in schedule.parts)
    capacities = tuple(_numbered([(link.capacity, link.scale) for link in schedule.links]))
    classes, links, hops, peers = _quotient(
        programs, capacities, tuple(distinct), schedule.distinct, schedule.peers
    )
    firsts: dict[int, Link] = {}
    for number, link in zip(links, schedule.links, strict=True):
        firsts.setdefault(number, link)
    folded = schedule._replace(
        ranks=len(classes),
        links=tuple(firsts.values()),
        routes=tuple(
            route._replace(hops=hops[number]) for route, number in zip(schedule.routes, numbers, strict=True)
        ),
        distinct=(),
        programs=_folded_programs(schedule, classes),
        peers=peers,
    )
    return Folding(folded, classes, links)


def _folded_programs(schedule: Schedule, classes: Sequence[Sequence[int]]) -> tuple[Program, ...]:
    """Return the programs with classes of ranks instead of ranks; both have the same order."""
    ends = [sum(members[0] < program.ranks.stop for members in classes) for program in schedule.programs]
    return tuple(
        program._replace(ranks=range(begin, end))
        for program, begin, end in zip(schedule.programs, [0, *ends], ends, strict=False)
    )


@lru_cache(maxsize=64)
def _quotient(
    programs: tuple[range, ...],
    links: tuple[int, ...],
    shape: tuple[tuple[_Hops, ...], ...],
    distinct: tuple[int, ...],
    peers: tuple[Peers, ...],
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[tuple[_Hops, ...], ...], tuple[Peers, ...]]:
    """Return classes of ranks, the class of every link, and hops and peers by class of ranks.

    ``links`` has an equal number for links of equal capacity: other rates of the same links fold alike.
    """
    numbers = [number for number, ranks in enumerate(programs) for _ in ranks]
    own = [tuple(hops[rank] for hops in shape) for rank in range(len(numbers))]
    start = [*zip(numbers, distinct, strict=True)] if distinct else numbers
    rank_colours, link_colours = _refined(own, links, start, peers)
    classes = _members(rank_colours)
    first_links = [members[0] for members in _members(link_colours)]
    folded = tuple(
        tuple(_added(hops, members, link_colours, first_links) for members in classes) for hops in shape
    )
    awaited = tuple(tuple(_seen(one, members[0], rank_colours) for members in classes) for one in peers)
    return classes, tuple(link_colours), folded, awaited


def _seen(peers: Peers, rank: int, colours: Sequence[int]) -> tuple[int, ...]:
    """Return the colours of the ranks for which a rank waits, in the order in which it checks them: of
    operations that end at the same time, the first counts as the predecessor."""
    return tuple(dict.fromkeys([colours[other] for other in peers[rank]]))


def _refined(
    own: Sequence[tuple[_Hops, ...]],
    links: Sequence[int],
    start: Sequence[Hashable],
    peers: Sequence[Peers],
) -> tuple[list[int], list[int]]:
    """Return the final colours of ranks and of links, which no neighbourhood can refine, numbered in
    order.

    A neighbourhood is a list of numbers, each of a colour, and of a way to cross: a route and a coefficient.
    """
    crossings: dict[tuple[int, int], int] = {}
    crossed: list[list[tuple[int, int]]] = []  # (link, kind of crossing) of each rank
    crossing: list[list[tuple[int, int]]] = [[] for _ in links]  # (rank, kind of crossing) of each link
    for rank, routes in enumerate(own):
        crossed.append([])
        for route, hops in enumerate(routes):
            for link, coefficient in hops:
                kind = crossings.setdefault((route, coefficient), len(crossings))
                crossed[rank].append((link, kind))
                crossing[link].append((rank, kind))
    count = max(1, len(crossings))
    # Links that the same ranks cross in the same way always have the same colour.
    bundles = _numbered([(colour, *near) for colour, near in zip(links, crossing, strict=True)])
    firsts = [members[0] for members in _members(bundles)]
    rank_colours = _numbered(start)
    bundle_colours = _numbered([links[one] for one in firsts])
    while True:
        found = max(rank_colours, default=0), max(bundle_colours, default=0)
        link_colours = [bundle_colours[bundle] for bundle in bundles]
        rank_colours = _numbered(
            [
                (
                    colour,
                    tuple(sorted([link_colours[link] * count + kind for link, kind in near])),
                    tuple([_seen(one, rank, rank_colours) for one in peers]),
                )
                for rank, (colour, near) in enumerate(zip(rank_colours, crossed, strict=True))
            ]
        )
        bundle_colours = _numbered(
            [
                (colour, tuple(sorted([rank_colours[rank] * count + kind for rank, kind in crossing[one]])))
                for colour, one in zip(bundle_colours, firsts, strict=True)
            ]
        )
        if (max(rank_colours, default=0), max(bundle_colours, default=0)) == found:
            return rank_colours, [bundle_colours[bundle] for bundle in bundles]


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Return equal numbers for equal keys, from 0 in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _members(colours: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    members: dict[int, list[int]] = {}
    for number, colour in enumerate(colours):
        members.setdefault(colour, []).append(number)
    return tuple(tuple(one) for one in members.values())


def _added(
    hops: tuple[_Hops, ...], members: Sequence[int], colours: Sequence[int], first_links: Sequence[int]
) -> _Hops:
    """Return the summed coefficients of a class of ranks on the first link of each class of links."""
    total: dict[int, int] = {}
    for rank in members:
        for link, coefficient in hops[rank]:
            colour = colours[link]
            if first_links[colour] == link:
                total[colour] = total.get(colour, 0) + coefficient
    return tuple(total.items())
