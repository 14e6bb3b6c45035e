"""The recorded execution of one schedule, as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from simoffload.schedule import Op, Schedule

__all__ = ["Interval", "Timeline"]


class Interval(NamedTuple):
    """One executed operation on one rank."""

    rank: int
    block: int
    iteration: int
    op: Op
    start: int
    """[ps]"""
    end: int
    """[ps]"""


@dataclass(slots=True)
class Timeline:
    """Start and end of every executed operation and what crossed every link.

    The columns ``rank``, ``block``, ``iteration``, ``position``, ``start``, ``end`` have one entry per
    executed operation, in order of completion; times are integer picoseconds.
    """

    schedule: Schedule
    rank: array[int] = field(default_factory=lambda: array("H"))
    block: array[int] = field(default_factory=lambda: array("I"))
    iteration: array[int] = field(default_factory=lambda: array("I"))
    position: array[int] = field(default_factory=lambda: array("I"))
    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    makespan: int = 0
    """[ps] end of the last operation."""
    link_bytes: tuple[int, ...] = ()
    """[B x coefficient / scale] carried by each link, rounded down."""
    link_busy: tuple[int, ...] = ()
    """[ps] during which at least one flow crossed each link."""
    link_saturated: tuple[int, ...] = ()
    """[ps] during which each link was filled to its capacity (within its rounding)."""
    events: int = 0
    """Number of clock events that the run took."""

    def __len__(self) -> int:
        return len(self.end)

    def __iter__(self) -> Iterator[Interval]:
        blocks = self.schedule.blocks
        for rank, block, iteration, position, start, end in zip(
            self.rank, self.block, self.iteration, self.position, self.start, self.end, strict=True
        ):
            yield Interval(rank, block, iteration, blocks[block].ops[position], start, end)
