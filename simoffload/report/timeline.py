"""The section with the operations of ranks over time.

It has charts of the first layers and of one in the middle, and a list of the longest operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.report import plotting as draw
from simoffload.report.document import Chart, Entry, ReportSection, ReportTable, byte_count, count, seconds
from simoffload.report.presentation import presentation
from simoffload.results import Interval, SimulationResult, Timeline, cause_of, cause_text
from simoffload.schedule import Cause, OpKind, Schedule
from simoffload.units import format_bytes, format_seconds

_FIRST = 3
"""Number of parts of the pass in the first chart: the part before the layers, and two layers."""
_LONGEST = 15
"""Number of kinds of operations that are listed."""

_STREAM = 40
"""[px] of a stream in the chart, its height."""
_PICO = 1e-12
_Part = tuple[int, int]  # block, iteration


class DrawnOperation(NamedTuple):
    """A DrawnOperation is an operation of the first rank of a program (rank 0 if there is only one)."""

    stream: str
    kind: OpKind
    label: str
    cause: Cause
    """What its time goes to."""
    size: int
    """[B]"""
    start_s: float
    """[s] since the pass began."""
    duration_s: float
    own: bool
    """Whether it belongs to the layers that the window shows, not to overlapping neighbours."""


class TimelineWindow(NamedTuple):
    """A TimelineWindow is the operations of the first rank of each program in a part of a pass."""

    title: str
    ranks: str
    """Names of the ranks that are shown."""
    streams: tuple[str, ...]
    start_s: float
    end_s: float
    bars: tuple[DrawnOperation, ...]
    omitted: int
    """Number of operations that are not drawn because they are shorter than every drawn one."""


def timeline(result: SimulationResult, *, bars: int) -> ReportSection:
    """Return the section about the pass that represents the run, or else about any recorded one.

    At most ``bars`` operations are drawn.
    """
    wording = presentation(result)
    parts, name = wording.parts, wording.shown.name if wording.shown else ""
    name = name if name in result.timelines else next(iter(result.timelines), "")
    found = windows(result.timelines[name], most=bars // 2, called=parts) if name else ()
    if not found:
        return ReportSection("Timeline", ("no timeline was recorded",), page_only=True)
    notes = [f"Each row is one stream of {found[0].ranks}. Pale bars belong to neighbouring {parts}."]
    if parts == "layers":
        notes.append(
            "A repetition spans several layers where the prefetch pattern repeats only after several."
        )
    notes += [
        f"{one.title}: the {one.omitted} shortest operations are left out." for one in found if one.omitted
    ]
    captions = [f"{one.title} ({name}, {one.ranks})" for one in found]
    return ReportSection(
        "Timeline",
        tables=tuple(_longest(one, parts, each) for one, each in zip(found, captions, strict=True)),
        notes=tuple(notes),
        charts=tuple(
            Chart(f"{one.title}: operations by stream", partial(schedule, one), caption)
            for one, caption in zip(found, captions, strict=True)
        ),
        page_only=True,
    )


def _longest(window: TimelineWindow, parts: str, caption: str) -> ReportTable:
    """List the window's own operations, longest first."""
    operations: dict[tuple[str, str, str], list[DrawnOperation]] = {}
    for bar in window.bars:
        if bar.own:
            operations.setdefault((bar.label, bar.kind, bar.stream), []).append(bar)
    totals = [
        (key, len(bars), sum(bar.duration_s for bar in bars), sum(bar.size for bar in bars))
        for key, bars in operations.items()
    ]
    rows: list[tuple[Entry, ...]] = []
    for key, number, time, size in sorted(totals, key=lambda row: -row[2])[:_LONGEST]:
        rows.append((*key, count(number), seconds(time), byte_count(size) if size else ""))
    head = ("module or tensor", "kind", "stream", "operations", "time", "bytes")
    folded = f"Operations of these {parts}, longest first"
    return ReportTable(caption, head, tuple(rows), (3, 4, 5), keys=3, folded=folded)


def windows(timeline: Timeline, *, most: int, called: str = "layers") -> tuple[TimelineWindow, ...]:
    """Return the first layers and, if there are more, one layer from the middle; none for an empty timeline.

    A window has the ``most`` longest operations; ``called`` is the name of its blocks.
    """
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
    """Return the index of the middle repetition of the block that repeats most, else of the middle part."""
    blocks = timeline.schedule.blocks
    block = max(range(len(blocks)), key=lambda index: blocks[index].repeat)
    repeat = blocks[block].repeat
    return parts.index((block, repeat // 2)) if repeat > 1 else len(parts) // 2


class _FirstRanks:
    """The operations of the first rank of each program; repetitions are expanded only where shown."""

    def __init__(self, timeline: Timeline, most: int) -> None:
        self._timeline, self._most = timeline, most
        self._ranks = [program.ranks.start for program in timeline.schedule.parts]

    def busiest_stream(self, block: int) -> int:
        """Return the stream on which operations of the block take longest; it sets the pace of the others."""
        times: Counter[int] = Counter()
        blocks = self._timeline.schedule.blocks
        for track in [track for rank in self._ranks for track in self._timeline.tracks_of(rank)]:
            for piece in track.pieces():
                for entry in range(piece.first, piece.last):
                    if blocks[track.steps[entry].block].ops is blocks[block].ops:
                        times[track.stream] += piece.times * (track.end[entry] - track.start[entry])
        return max(times, key=lambda stream: (times[stream], -stream))

    def begin(self, parts: Sequence[_Part], stream: int) -> int:
        """Return the time at which the first operation of the parts begins on a stream, else the end of the
        pass [ps]."""
        for block, iteration in parts:
            ops = self._timeline.schedule.blocks[block].ops
            position = next((index for index, op in enumerate(ops) if op.stream == stream), None)
            if position is not None:
                return self._timeline.start_of(block, iteration, position)
        return self._timeline.makespan

    def window(self, title: str, shown: Sequence[_Part], *, start: int, end: int) -> TimelineWindow:
        """Return all operations between two times [ps]."""
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
        kind=op.kind,
        label=printable(op.label),
        cause=cause_of(op.kind, op.route, schedule),
        size=op.size,
        start_s=done.start * _PICO,
        duration_s=(done.end - done.start) * _PICO,
        own=(done.block, done.iteration) in shown,
    )


def schedule(window: TimelineWindow) -> draw.Properties:
    """Draw the operations of the shown ranks over time, a row for each stream."""
    length = window.end_s - window.start_s
    unit, scale = ("s", 1.0) if length >= 2 else ("ms", 1e3) if length >= 2e-3 else ("us", 1e6)
    used = {bar.stream for bar in window.bars}
    streams = [stream for stream in window.streams if stream in used]
    causes = dict.fromkeys(bar.cause for bar in window.bars)
    data = []
    for cause in causes:
        same = [bar for bar in window.bars if bar.cause == cause]
        data.append(
            draw.bars(
                printable(cause_text(cause)),
                y=[streams.index(bar.stream) for bar in same],
                x=[round(bar.duration_s * scale, 6) for bar in same],
                hover=[_hover(bar) for bar in same],
                color=draw.cause_colour(cause),
                base=[round(bar.start_s * scale, 6) for bar in same],
                marker={"opacity": [1 if bar.own else 0.4 for bar in same]},
                **draw.labelled(printable(cause_text(cause)), len(same)),
            )
        )
    limits = [window.start_s * scale, window.end_s * scale]
    return draw.figure(
        data,
        draw.height(len(streams), row=_STREAM),
        barmode="overlay",
        uniformtext=draw.ROOM_FOR_NAMES,
        bargap=0.15,
        showlegend=True,
        margin={"l": 10, "r": 50, "t": 24, "b": 44},
        modebar={"orientation": "v"},
        xaxis=draw.axis(
            f"time since the pass began [{unit}]",
            range=limits,
            fixedrange=False,
            exponentformat="none",
            separatethousands=True,
        ),
        yaxis=draw.names_axis(streams),
    )


def _hover(bar: DrawnOperation) -> str:
    lines = [
        draw.plain(bar.label),
        draw.plain(f"{bar.kind} on {bar.stream}"),
        f"starts at {format_seconds(bar.start_s)}, takes {format_seconds(bar.duration_s)}",
    ]
    if bar.size:
        lines.append(f"{format_bytes(bar.size)}, {draw.plain(cause_text(bar.cause))}")
    return "<br>".join(lines)
