"""What the ranks did over time, in a chart, and what took longest in it."""

from __future__ import annotations

from functools import partial

from simoffload.report.document import Chart, Entry, ReportSection, ReportTable, byte_count, count, seconds
from simoffload.report.presentation import presentation
from simoffload.report.timeline_chart import DrawnOperation, TimelineWindow, schedule, windows
from simoffload.results.result import SimulationResult

__all__ = ["timeline"]

_LONGEST = 15
"""Kinds of operations that are listed."""


def timeline(result: SimulationResult, *, bars: int) -> ReportSection:
    """The pass that stands for the run, or whichever was recorded; ``bars`` operations at most are drawn."""
    wording = presentation(result)
    name = wording.shown.name if wording.shown else ""
    name = name if name in result.timelines else next(iter(result.timelines), "")
    found = windows(result.timelines[name], most=bars // 2, called=wording.parts) if name else ()
    if not found:
        return ReportSection("Timeline", ("no timeline was recorded",), page_only=True)
    notes = [f"One row is one stream of {found[0].ranks}. Paler: operations of neighbouring {wording.parts}."]
    if wording.parts == "layers":
        notes.append("A repetition spans several layers where prefetching takes as many to come round.")
    notes += [
        f"{one.title}: the {one.omitted} shortest operations are left out." for one in found if one.omitted
    ]
    captions = [f"{one.title} ({name}, {one.ranks})" for one in found]
    return ReportSection(
        "Timeline",
        tables=tuple(_work(one, wording.parts, each) for one, each in zip(found, captions, strict=True)),
        notes=tuple(notes),
        charts=tuple(
            Chart(f"{one.title}: operations by stream", partial(schedule, one), caption)
            for one, caption in zip(found, captions, strict=True)
        ),
        page_only=True,
    )


def _work(window: TimelineWindow, parts: str, caption: str) -> ReportTable:
    """The window's own operations, longest first."""
    work: dict[tuple[str, str, str], list[DrawnOperation]] = {}
    for bar in window.bars:
        if bar.own:
            work.setdefault((bar.label, bar.kind, bar.stream), []).append(bar)
    totals = [
        (key, len(bars), sum(bar.duration_s for bar in bars), sum(bar.size for bar in bars))
        for key, bars in work.items()
    ]
    rows: list[tuple[Entry, ...]] = []
    for key, number, time, size in sorted(totals, key=lambda row: -row[2])[:_LONGEST]:
        rows.append((*key, count(number), seconds(time), byte_count(size) if size else ""))
    head = ("module or tensor", "kind", "stream", "operations", "time", "bytes")
    folded = f"Work of these {parts}, longest first"
    return ReportTable(caption, head, tuple(rows), (3, 4, 5), keys=3, folded=folded)
