"""The schedule: one program that every rank runs, over links that the ranks share.

A schedule is a list of blocks; a block is a list of operations and a repeat count. Every rank runs
the same operations (ZeRO pads its partitions to equal size), each over its own route. An operation
runs on one stream; operations of one stream run one after the other in the order in which they are
written. It starts when its stream is free and its dependencies are done; it then lasts ``fixed``
picoseconds and after that moves ``size`` bytes over its route, sharing links with all other flows.

Dependencies count back along a stream, so that a layer reads the same wherever it stands: identical
layers become one block with a repeat count, and a dependency may reach into an earlier block.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Block", "Dependency", "Link", "Op", "Route", "Schedule"]


class Link(NamedTuple):
    """A capacity that concurrent flows share (a cable direction, a DRAM, a drive, a server)."""

    name: str
    capacity: int
    """[B/s] limit of the summed ``coefficient x rate`` of the flows that cross it."""
    scale: int = 1
    """``capacity`` and all coefficients on this link are multiplied by it, to keep them integers."""


class Route(NamedTuple):
    """The links that a transfer crosses on each rank, and what a single transfer can reach."""

    name: str
    hops: tuple[tuple[tuple[int, int], ...], ...]
    """For each rank the pairs (index into ``Schedule.links``, integer coefficient)."""
    cap: int
    """[B/s] the most that one transfer reaches alone, from size, queue depth, block and latency."""
    weight: int = 1
    """Share of a saturated link relative to other flows: outstanding bytes in any common unit."""


class Dependency(NamedTuple):
    """An operation of the same rank that must be done before another may start."""

    stream: int
    """Index into ``Schedule.streams``."""
    back: int = 0
    """0 = the last operation written on ``stream`` before this one, 1 = the one before that, …
    A count that reaches before the first operation of the schedule is no dependency."""


class Op(NamedTuple):
    """One operation on one stream of every rank."""

    kind: str
    """What the time is spent on: hook, wait, launch, read, copy, gather, concat, compute."""
    label: str
    """The module or tensor it serves, for the timeline."""
    stream: int
    """Index into ``Schedule.streams``."""
    fixed: int = 0
    """[ps] duration before (or instead of) a transfer."""
    size: int = 0
    """[B] moved over the route; 0 = no transfer."""
    route: int = -1
    """Index into ``Schedule.routes``; -1 = no transfer."""
    after: tuple[Dependency, ...] = ()
    collective: bool = False
    """Starts only when the operation is ready on every rank (an all-gather)."""


class Block(NamedTuple):
    """Operations that are repeated; iteration i+1 follows iteration i in every stream's order."""

    name: str
    ops: tuple[Op, ...]
    repeat: int = 1


class Schedule(NamedTuple):
    """One pass (a prefill, a decode step) of all ranks."""

    name: str
    ranks: int
    streams: tuple[str, ...]
    links: tuple[Link, ...]
    routes: tuple[Route, ...]
    blocks: tuple[Block, ...]
    distinct: tuple[int, ...] = ()
    """A number for each rank where something sets ranks apart that their routes do not show (a turn in a
    queue, a seed of noise); ranks of equal numbers may be alike. () = nothing does."""

    @property
    def operations(self) -> int:
        """Operations of all ranks, each as often as it is repeated: every one has one end, an event."""
        return self.ranks * sum([len(block.ops) * block.repeat for block in self.blocks])
