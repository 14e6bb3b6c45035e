"""Parts of a timeline small enough to draw: the first layers, and one layer in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simoffload.errors import printable
from simoffload.results.timeline import Timeline

__all__ = ["Bar", "Window", "windows"]

_FIRST = 3
"""Parts of the pass in the first window: what comes before the layers, and two layers."""

_PICO = 1e-12
_Part = tuple[int, int]  # block, iteration


class Bar(NamedTuple):
    """One operation of rank 0."""

    stream: str
    kind: str
    label: str
    route: str
    """Name of the route that its bytes take; empty where it moves none."""
    size: int
    """[B]"""
    start_s: float
    """[s] since the pass began."""
    duration_s: float
    own: bool
    """Belongs to the layers that the window shows, not to neighbours that overlap them."""


class Window(NamedTuple):
    """What rank 0 did between two moments of a pass."""

    title: str
    streams: tuple[str, ...]
    start_s: float
    end_s: float
    bars: tuple[Bar, ...]
    omitted: int
    """Operations left out because they are shorter than all that are drawn."""


def windows(timeline: Timeline, *, most: int, called: str = "layers") -> tuple[Window, ...]:
    """The first layers and, where the pass goes on after them, one layer from the middle; none if the run
    was not recorded. A window holds the ``most`` longest operations; ``called`` is what its blocks are."""
    if not len(timeline):
        return ()
    blocks = timeline.schedule.blocks
    parts = [(block, i) for block, part in enumerate(blocks) for i in range(part.repeat)]
    middle = _middle(timeline, parts)
    rank = _RankZero(timeline, most)
    pace = rank.busiest_stream(parts[middle][0])
    first = rank.window(f"First {called}", parts[:_FIRST], start=0, end=rank.begin(parts[_FIRST:], pace))
    if middle < _FIRST:
        return (first,)
    block, iteration = parts[middle]
    title = f"Steady state: repetition {iteration + 1} of {blocks[block].repeat} of “{blocks[block].name}”"
    start, end = rank.begin(parts[middle:], pace), rank.begin(parts[middle + 1 :], pace)
    return first, rank.window(printable(title), parts[middle : middle + 1], start=start, end=end)


def _middle(timeline: Timeline, parts: Sequence[_Part]) -> int:
    """Index of the middle repetition of the block that repeats most; of the middle part if none repeats."""
    blocks = timeline.schedule.blocks
    block = max(range(len(blocks)), key=lambda index: blocks[index].repeat)
    repeat = blocks[block].repeat
    return parts.index((block, repeat // 2)) if repeat > 1 else len(parts) // 2


class _RankZero:
    """The entries of rank 0 in a timeline, as columns."""

    def __init__(self, timeline: Timeline, most: int) -> None:
        self._timeline, self._most = timeline, most
        self._entries = np.flatnonzero(np.asarray(timeline.rank) == 0)
        columns = (timeline.block, timeline.iteration, timeline.position, timeline.start, timeline.end)
        self._block, self._iteration, self._position, self._starts, self._ends = (
            np.asarray(column)[self._entries] for column in columns
        )

    def busiest_stream(self, block: int) -> int:
        """The stream on which operations of the block take longest: it sets the pace of the others."""
        times: Counter[int] = Counter()
        mine = self._block == block
        for position, op in enumerate(self._timeline.schedule.blocks[block].ops):
            at = mine & (self._position == position)
            times[op.stream] += int((self._ends[at] - self._starts[at]).sum())
        return max(times, key=times.__getitem__)

    def begin(self, parts: Sequence[_Part], stream: int) -> int:
        """[ps] when the first operation of the parts started on a stream; the end of the pass if none did."""
        for block, iteration in parts:
            ops = self._timeline.schedule.blocks[block].ops
            position = next((index for index, op in enumerate(ops) if op.stream == stream), None)
            if position is not None:
                found = (self._block == block) & (self._iteration == iteration) & (self._position == position)
                return int(self._starts[found][0])
        return self._timeline.makespan

    def window(self, title: str, shown: Sequence[_Part], *, start: int, end: int) -> Window:
        """Everything that happened between two moments [ps]."""
        lengths = self._ends - self._starts
        inside = np.flatnonzero((self._starts < end) & (self._ends > start) & (lengths > 0))
        longest = inside[np.argsort(-lengths[inside], kind="stable")][: self._most]
        return Window(
            title=title,
            streams=tuple(map(printable, self._timeline.schedule.streams)),
            start_s=start * _PICO,
            end_s=end * _PICO,
            bars=tuple(_bars(self._timeline, self._entries[np.sort(longest)].tolist(), set(shown))),
            omitted=len(inside) - len(longest),
        )


def _bars(timeline: Timeline, entries: Sequence[int], shown: set[_Part]) -> Iterator[Bar]:
    schedule = timeline.schedule
    for entry in entries:
        block, iteration = timeline.block[entry], timeline.iteration[entry]
        op = schedule.blocks[block].ops[timeline.position[entry]]
        yield Bar(
            stream=printable(schedule.streams[op.stream]),
            kind=printable(op.kind),
            label=printable(op.label),
            route=printable(schedule.routes[op.route].name) if op.size else "",
            size=op.size,
            start_s=timeline.start[entry] * _PICO,
            duration_s=(timeline.end[entry] - timeline.start[entry]) * _PICO,
            own=(block, iteration) in shown,
        )
