"""The parts of a timeline that are small enough to draw: the first layers, and one in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from simoffload.errors import printable
from simoffload.report.plotting import (
    BLACK,
    BLUE,
    DARK_ORANGE,
    DARK_PURPLE,
    FRAME,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    axis,
    bars,
    figure,
    names_axis,
    plain,
)
from simoffload.results.timeline import Interval, Timeline
from simoffload.schedule import Schedule
from simoffload.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["DrawnOperation", "TimelineWindow", "schedule", "windows"]

_FIRST = 3
"""Parts of the pass in the first window: what comes before the layers, and two layers."""

_KINDS = {
    "read": ("read from storage", VERMILION),
    "write": ("write to storage", ORANGE),
    "copy": ("copy to the GPU", BLUE),
    "stage": ("copy to or in host memory", SKY),
    "gather": ("all-gather", PURPLE),
    "concat": ("copies on the GPU", SKY),
    "reduce": ("gradients", DARK_PURPLE),
    "compute": ("GPU compute", GREEN),
    "update": ("optimizer on the GPU", DARK_ORANGE),
    "cpu": ("optimizer on the CPU", BLACK),
    "launch": ("kernel launch", GREY),
    "hook": ("host thread", GREY),
    "pages": ("new pages for copies", GREY),
    "cached": ("entering the page cache", BLACK),
    "checksum": ("crc32", PURPLE),
}
_STREAM = 40
"""[px] of a stream in the chart."""
_PICO = 1e-12
_Part = tuple[int, int]  # block, iteration


class DrawnOperation(NamedTuple):
    """One operation of the first rank of a program, rank 0 where there is only one."""

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


class TimelineWindow(NamedTuple):
    """What the first rank of each program did between two moments of a pass."""

    title: str
    ranks: str
    """Names of these ranks."""
    streams: tuple[str, ...]
    start_s: float
    end_s: float
    bars: tuple[DrawnOperation, ...]
    omitted: int
    """Operations left out because they are shorter than all that are drawn."""


def windows(timeline: Timeline, *, most: int, called: str = "layers") -> tuple[TimelineWindow, ...]:
    """The first layers and, where the pass goes on after them, one layer from the middle; none if nothing
    was done. A window holds the ``most`` longest operations; ``called`` is what its blocks are."""
    if not len(timeline):
        return ()
    blocks = timeline.schedule.blocks
    parts = [(block, i) for block, part in enumerate(blocks) for i in range(part.repeat)]
    middle = _middle(timeline, parts)
    rank = _FirstRanks(timeline, most)
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


class _FirstRanks:
    """What the first rank of each program did; what repeats is looked at only where it is shown."""

    def __init__(self, timeline: Timeline, most: int) -> None:
        self._timeline, self._most = timeline, most
        self._ranks = [program.ranks.start for program in timeline.schedule.parts]

    def busiest_stream(self, block: int) -> int:
        """The stream on which operations of the block take longest: it sets the pace of the others."""
        times: Counter[int] = Counter()
        for track in [track for rank in self._ranks for track in self._timeline.tracks_of(rank)]:
            for piece in track.pieces():
                for entry in range(piece.first, piece.last):
                    if track.steps[entry].block == block:
                        times[track.stream] += piece.times * (track.end[entry] - track.start[entry])
        return max(times, key=lambda stream: (times[stream], -stream))

    def begin(self, parts: Sequence[_Part], stream: int) -> int:
        """[ps] when the first operation of the parts started on a stream; the end of the pass if none did."""
        for block, iteration in parts:
            ops = self._timeline.schedule.blocks[block].ops
            position = next((index for index, op in enumerate(ops) if op.stream == stream), None)
            if position is not None:
                return self._timeline.start_of(block, iteration, position)
        return self._timeline.makespan

    def window(self, title: str, shown: Sequence[_Part], *, start: int, end: int) -> TimelineWindow:
        """Everything that happened between two moments [ps]."""
        inside = [one for rank in self._ranks for one in self._timeline.during(start, end, rank=rank)]
        longest = sorted(range(len(inside)), key=lambda index: inside[index].start - inside[index].end)
        return TimelineWindow(
            title=title,
            ranks=printable(", ".join(map(self._timeline.schedule.rank_label, self._ranks))),
            streams=tuple(map(printable, self._timeline.schedule.labels)),
            start_s=start * _PICO,
            end_s=end * _PICO,
            bars=tuple(
                _bar(inside[index], self._timeline.schedule, set(shown))
                for index in sorted(longest[: self._most])
            ),
            omitted=max(0, len(inside) - self._most),
        )


def _bar(done: Interval, schedule: Schedule, shown: set[_Part]) -> DrawnOperation:
    op = done.op
    return DrawnOperation(
        stream=printable(schedule.labels[op.stream]),
        kind=printable(op.kind),
        label=printable(op.label),
        route=printable(schedule.routes[op.route].name) if op.size else "",
        size=op.size,
        start_s=done.start * _PICO,
        duration_s=(done.end - done.start) * _PICO,
        own=(done.block, done.iteration) in shown,
    )


def schedule(window: TimelineWindow) -> Figure:
    """Operations of the shown ranks over time, a row for each stream."""
    length = window.end_s - window.start_s
    unit, scale = ("s", 1.0) if length >= 2 else ("ms", 1e3) if length >= 2e-3 else ("us", 1e6)
    used = {bar.stream for bar in window.bars}
    streams = [stream for stream in window.streams if stream in used]
    data = []
    for kind in dict.fromkeys([*_KINDS, *(bar.kind for bar in window.bars)]):
        mine = [bar for bar in window.bars if bar.kind == kind]
        description, color = _KINDS.get(kind, (kind, BLACK))
        if mine:
            trace = bars(
                description,
                y=[streams.index(bar.stream) for bar in mine],
                x=[round(bar.duration_s * scale, 6) for bar in mine],
                hover=[_hover(bar) for bar in mine],
                color=color,
                base=[round(bar.start_s * scale, 6) for bar in mine],
                marker={"opacity": [1 if bar.own else 0.4 for bar in mine]},
            )
            data.append(trace)
    limits = [window.start_s * scale, window.end_s * scale]
    return figure(
        data,
        FRAME + LEGEND + _STREAM * len(streams),
        barmode="overlay",
        bargap=0.15,
        showlegend=True,
        margin={"l": 10, "r": 50, "t": 24, "b": 44},
        modebar={"orientation": "v"},
        xaxis=axis(
            f"time since the pass began [{unit}]",
            range=limits,
            fixedrange=False,
            exponentformat="none",
            separatethousands=True,
        ),
        yaxis=names_axis(streams),
    )


def _hover(bar: DrawnOperation) -> str:
    """What hovering shows."""
    lines = [
        plain(bar.label),
        plain(f"{bar.kind} on {bar.stream}"),
        f"starts at {format_seconds(bar.start_s)}, takes {format_seconds(bar.duration_s)}",
    ]
    if bar.size:
        lines.append(f"{format_bytes(bar.size)}, {plain(bar.route)}")
    return "<br>".join(lines)
