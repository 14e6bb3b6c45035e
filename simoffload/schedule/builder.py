"""Construction of a schedule: operation counts per stream, interned routes, equal segments merged into
blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from simoffload.limits import count_operations
from simoffload.schedule.ir import (
    Block,
    Cause,
    Dependency,
    Device,
    Link,
    LinkUnit,
    Op,
    Peers,
    Program,
    Route,
    Schedule,
)

_LONGEST_PERIOD = 8  # segments of a group: prefetch patterns repeat after a few layers
_BETWEEN_COUNTS = 1024  # operations: a pass that is too long is refused before all of it is written

_PICO, _NANO = 10**12, 10**9

Hops = tuple[tuple[int, Fraction], ...]


class _RouteKey(NamedTuple):
    cause: Cause
    hops_of_ranks: int
    """Index of its hops in the list of the hops of all routes."""
    cap: int


class ScheduleBuilder:
    """Collects operations in program order; ``segment`` starts a part that may turn out to repeat."""

    def __init__(
        self,
        *,
        name: str,
        ranks: int,
        streams: Sequence[str],
        devices: Sequence[Device] = (),
        programs: Sequence[Program] = (),
    ) -> None:
        self._empty = Schedule(
            name, ranks, tuple(streams), (), (), (), devices=tuple(devices), programs=tuple(programs)
        )
        self._ranks = [len(program.ranks) for program in self._empty.owners]
        self._peers: dict[Peers, int] = {}
        self._routes: dict[_RouteKey, int] = {}
        self._route_hops: dict[tuple[Hops, ...], int] = {}
        self._known_hops: dict[int, tuple[tuple[Hops, ...], int]] = {}  # by id(): fractions hash slowly
        self._segment_name = ""
        self._ops: list[Op] = []
        self._count = 0
        self._events = 0
        self._distinct: dict[tuple[str, tuple[Op, ...]], int] = {}  # segments, each once
        self._written: list[tuple[str, tuple[Op, ...]]] = []  # the same, by number
        # Of each the operations by stream, in total, and of all ranks.
        self._sizes: list[tuple[tuple[tuple[int, int], ...], int, int]] = []
        self._numbers: list[int] = []  # of those that are closed
        self._repeated: tuple[int, int, int] | None = None
        self.written = [0] * len(streams)
        """Operations written so far, per stream."""

    def segment(self, name: str) -> None:
        """Begin a new segment (a layer, the head, the tail)."""
        self._close()
        self._segment_name = name

    def _close(self) -> None:
        if self._ops:
            segment = self._segment_name, tuple(self._ops)
            number = self._distinct.setdefault(segment, len(self._distinct))
            if number == len(self._written):
                self._written.append(segment)
                counts = Counter([op.stream for op in self._ops])
                events = sum([count * self._ranks[stream] for stream, count in counts.items()])
                self._sizes.append((tuple(counts.items()), len(self._ops), events))
            self._numbers.append(number)
            self._ops = []

    def again(self, segment: int = -1) -> None:
        """Write the operations of a segment once more, by default of the last one, as a segment of its
        own."""
        self._close()
        self._numbers.append(self._numbers[segment])
        counts, more, events = self._sizes[self._numbers[-1]]
        written = self.written
        for stream, count in counts:
            written[stream] += count
        self._events += events
        self._count += more
        if self._count % _BETWEEN_COUNTS < more:
            count_operations(self._empty.name, self._events)

    @property
    def segments(self) -> int:
        """The number of segments so far that contain operations."""
        return len(self._numbers) + bool(self._ops)

    def numbers(self, segments: range) -> list[int]:
        """Return for each segment a number, which is that of all segments with the same operations."""
        self._close()
        return self._numbers[segments.start : segments.stop]

    def repeat(self, first: int, times: int) -> None:
        """Repeat the segments from number ``first`` on ``times`` times more; allowed once per schedule."""
        self._close()
        self._repeated = first, len(self._numbers), times

    def route(self, *, hops: tuple[Hops, ...], cap: int, cause: Cause) -> int:
        """Return the index of the route that crosses ``hops`` (one per rank) at no more than ``cap`` [B/s].

        The time of its transfers goes to ``cause``. Rates that follow from others may be rounded to nothing;
        the least is 1 B/s.
        """
        known = self._known_hops.get(id(hops))
        if known is None:
            known = self._known_hops[id(hops)] = (
                hops,
                self._route_hops.setdefault(hops, len(self._route_hops)),
            )
        return self._routes.setdefault(_RouteKey(cause, known[1], max(1, cap)), len(self._routes))

    def peers(self, ranks: Peers) -> int:
        """Return the index of the ranks for which each rank waits, for dependencies on other ranks."""
        return self._peers.setdefault(ranks, len(self._peers))

    def cap(self, route: int) -> int:
        """Return the highest rate [B/s] on a route."""
        return list(self._routes)[route].cap

    def add(self, op: Op) -> int:
        """Append an operation to the segment and return its ordinal on its stream."""
        self._ops.append(op)
        self._count += 1
        self._events += self._ranks[op.stream]
        if not self._count % _BETWEEN_COUNTS:
            count_operations(self._empty.name, self._events)
        self.written[op.stream] += 1
        return self.written[op.stream] - 1

    def after(self, stream: int, ordinal: int, peers: int = -1) -> Dependency:
        """Return the dependency on the operation with the number ``ordinal`` returned by ``add``, of the same
        rank or of its peers."""
        return Dependency(stream, self.written[stream] - 1 - ordinal, peers)

    def build(
        self, resources: Sequence[tuple[str, int]], *, cores: Sequence[tuple[str, int]] = ()
    ) -> Schedule:
        """Return the finished schedule over the links to which the hops refer: ``resources``, pairs (name,
        capacity [B/s]), and after them ``cores``, pairs (name of a CPU, number of cores)."""
        units: list[tuple[str, int, LinkUnit]] = [(*one, "B") for one in resources]
        units += [(name, number * _NANO, "core-ns") for name, number in cores]
        scales = [1] * len(units)
        distinct = {id(hops): hops for hops_of_ranks in self._route_hops for hops in hops_of_ranks}
        for hops in distinct.values():
            for link, share in hops:
                if share.denominator > 1:
                    scales[link] = lcm(scales[link], share.denominator)
        links = tuple(
            Link(name, capacity * scale, scale, unit)
            for (name, capacity, unit), scale in zip(units, scales, strict=True)
        )
        scaled = {
            number: tuple(
                [(link, share.numerator * (scales[link] // share.denominator)) for link, share in hops]
            )
            for number, hops in distinct.items()
        }
        route_hops = [tuple([scaled[id(hops)] for hops in ranks]) for ranks in self._route_hops]
        routes = tuple(Route(key.cause, route_hops[key.hops_of_ranks], key.cap) for key in self._routes)
        return self._empty._replace(
            links=links, routes=routes, blocks=self._blocks(), peers=tuple(self._peers)
        )

    def _blocks(self) -> tuple[Block, ...]:
        self._close()
        numbers, distinct = self._numbers, self._written
        if self._repeated is None:
            return _folded(numbers, distinct)
        first, last, times = self._repeated
        before, period, after = numbers[:first], numbers[first:last], numbers[last:]
        # Enough periods to find the shortest group; the rest is only counted.
        explicit = min(times, 2 * _LONGEST_PERIOD)
        blocks = list(_folded(before + period * (1 + explicit) + after, distinct))
        longest = max(range(len(blocks)), key=lambda index: blocks[index].repeat)
        block, size = blocks[longest], sum(len(distinct[number][1]) for number in period)
        more, rest = divmod((times - explicit) * size, len(block.ops))
        if rest or block.repeat * len(block.ops) < explicit * size:
            return _folded(before + period * (1 + times) + after, distinct)
        blocks[longest] = block._replace(repeat=block.repeat + more)
        return tuple(blocks)


def cpu_work(*, size: int, time: int, cores: int) -> tuple[int, Fraction]:
    """Return the numbers that describe CPU work as a transfer of ``size`` [B] of memory traffic.

    The first is its highest rate [B/s], at which the work takes ``time`` [ps] if nothing else runs. The
    second is the time [ns] that each byte takes on the ``cores`` cores together, rounded down to 10^-18 s.
    """
    return size * _PICO // time, Fraction(cores * time * 10**6 // size, _NANO)


def _folded(numbers: Sequence[int], distinct: Sequence[tuple[str, tuple[Op, ...]]]) -> tuple[Block, ...]:
    """Merge runs of equal segments, or of equal groups of up to eight segments, into blocks."""
    groups = grouped(numbers, _LONGEST_PERIOD)
    contents: dict[tuple[int, ...], tuple[Op, ...]] = {}
    blocks = []
    for start, period, repeat in groups:
        group = tuple(numbers[start : start + period])
        if group not in contents:
            contents[group] = tuple([op for number in group for op in distinct[number][1]])
        blocks.append(Block(distinct[group[0]][0], contents[group], repeat))
    return tuple(blocks)


def grouped(numbers: Sequence[int], longest: int) -> list[tuple[int, int, int]]:
    """Return (first, length, repeat count) of the groups, of at most ``longest`` numbers, that cover all
    numbers."""
    groups = []
    position = 0
    while position < len(numbers):
        period, repeat = _best_period(numbers, position, longest)
        groups.append((position, period, repeat))
        position += period * repeat
    return groups


def _best_period(numbers: Sequence[int], start: int, longest: int) -> tuple[int, int]:
    """Return the group length and repeat count that cover most numbers from ``start`` on; short groups
    first."""
    best = (1, 1)
    for period in range(1, min(longest, (len(numbers) - start) // 2) + 1):
        if 2 * best[0] * best[1] > len(numbers) - start and period > _LONGEST_PERIOD:
            break
        end = start + period
        while end < len(numbers) and numbers[end] == numbers[end - period]:
            end += 1
        repeat = (end - start) // period
        if repeat > 1 and period * repeat > best[0] * best[1]:
            best = (period, repeat)
    return best
