"""Writing a schedule down: counts per stream, interned routes, equal segments folded into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from simoffload.schedule.ir import Block, Dependency, Link, Op, Route, Schedule

__all__ = ["ScheduleBuilder", "fold"]

_LONGEST_PERIOD = 8  # segments; prefetch patterns that take several layers to come round are short

Hops = tuple[tuple[int, Fraction], ...]


class _RouteKey(NamedTuple):
    name: str
    hops: tuple[Hops, ...]
    cap: int


class ScheduleBuilder:
    """Collects operations in program order; ``segment`` starts a part that may turn out to repeat."""

    def __init__(self, *, name: str, ranks: int, streams: Sequence[str]) -> None:
        self._name = name
        self._ranks = ranks
        self._streams = tuple(streams)
        self._routes: dict[_RouteKey, int] = {}
        self._segments: list[tuple[str, list[Op]]] = []
        self.written = [0] * len(streams)
        """Operations written so far, per stream."""

    def segment(self, name: str) -> None:
        """Begin a new segment (a layer, the head, the tail)."""
        self._segments.append((name, []))

    def route(self, *, name: str, hops: tuple[Hops, ...], cap: int) -> int:
        """Index of the route that crosses ``hops`` (one per rank) at no more than ``cap`` [B/s]."""
        return self._routes.setdefault(_RouteKey(name, hops, cap), len(self._routes))

    def cap(self, route: int) -> int:
        """[B/s] at most on a route."""
        return list(self._routes)[route].cap

    def add(self, op: Op) -> int:
        """Append an operation to the segment; returns its ordinal on its stream."""
        self._segments[-1][1].append(op)
        self.written[op.stream] += 1
        return self.written[op.stream] - 1

    def after(self, stream: int, ordinal: int) -> Dependency:
        """The dependency on the operation that ``add`` numbered ``ordinal``."""
        return Dependency(stream, self.written[stream] - 1 - ordinal)

    def build(self, resources: Sequence[tuple[str, int]]) -> Schedule:
        """Close the schedule over ``resources``, pairs (name, capacity [B/s]) that the hops index."""
        keys = list(self._routes)
        scales = [1] * len(resources)
        for key in keys:
            for hops in key.hops:
                for link, share in hops:
                    scales[link] = lcm(scales[link], share.denominator)
        links = tuple(
            Link(name, capacity * scale, scale)
            for (name, capacity), scale in zip(resources, scales, strict=True)
        )
        routes = tuple(
            Route(
                key.name,
                tuple(tuple((link, int(share * scales[link])) for link, share in hops) for hops in key.hops),
                key.cap,
            )
            for key in keys
        )
        blocks = fold([(name, tuple(ops)) for name, ops in self._segments if ops])
        return Schedule(self._name, self._ranks, self._streams, links, routes, blocks)


def fold(segments: Sequence[tuple[str, tuple[Op, ...]]]) -> tuple[Block, ...]:
    """Merge runs of equal segments, or of equal groups of up to eight segments, into blocks."""
    identity: dict[tuple[str, tuple[Op, ...]], int] = {}
    numbers = [identity.setdefault(segment, len(identity)) for segment in segments]
    blocks: list[Block] = []
    position = 0
    while position < len(segments):
        period, repeat = _best_period(numbers, position)
        group = segments[position : position + period]
        blocks.append(Block(group[0][0], tuple(op for _, ops in group for op in ops), repeat))
        position += period * repeat
    return tuple(blocks)


def _best_period(numbers: Sequence[int], start: int) -> tuple[int, int]:
    """The group length and repeat count that cover most segments from ``start`` on; short groups first."""
    best = (1, 1)
    for period in range(1, _LONGEST_PERIOD + 1):
        end = start + period
        while end < len(numbers) and numbers[end] == numbers[end - period]:
            end += 1
        repeat = (end - start) // period
        if repeat > 1 and period * repeat > best[0] * best[1]:
            best = (period, repeat)
    return best
