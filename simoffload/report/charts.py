"""Charts of one result, of its sensitivity and storage curve, and of advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.errors import printable
from simoffload.planning.confidence import confidence
from simoffload.report import plotting as draw
from simoffload.report.document import Chart, Entry, ReportSection, ReportTable, byte_count, count, seconds
from simoffload.report.formatting import (
    counted,
    group_bounds,
    group_name,
    span,
    stage_needs,
    times,
    uncapitalized,
)
from simoffload.report.presentation import presentation
from simoffload.results import (
    Interval,
    PassResult,
    SimulationResult,
    TierUse,
    Timeline,
    TrainingResult,
    cause_of,
    cause_text,
)
from simoffload.schedule import Cause, OpKind, Schedule
from simoffload.units import format_bytes, format_number, format_rate, format_seconds, percent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from simoffload.planning.advise import EvaluatedChange
    from simoffload.planning.bandwidth import StorageCurve
    from simoffload.planning.explanation import Sensitivity
    from simoffload.planning.reach import EvaluatedValue, Reach
    from simoffload.planning.service_levels import ServiceLevel

_WIDEST = 2.5
"""Largest value on the axis of capacity, as a multiple of the capacity of a tier."""
_TALL_ROW, _BAR = 48, 0.5
"""[px] of a row with a text above the bar, and the fraction of it that the bar takes."""
HEIGHT = 370
"""[px] of a chart of points."""
_GIGA = 1e9
_WIDE = 20
"""Ratio of the largest and the smallest value from which an axis is logarithmic, as no other shows both: our
choice."""


def capacity(uses: Sequence[TierUse], *, names: Sequence[str] = ()) -> draw.Properties:
    """Draw the memory of each tier as a fraction of its capacity, stacked by term; what exceeds it is
    hatched.

    ``names`` label the rows if a tier has several.
    """
    terms = dict.fromkeys((term.name, term.pinned) for use in uses for term in use.terms)
    colours = {term.name: draw.held_colour(term.name, term.kind) for use in uses for term in use.terms}
    data = []
    for name, pinned in terms:
        parts = [
            (y, use, term)
            for y, use in enumerate(uses)
            for term in use.terms
            if (term.name, term.pinned) == (name, pinned)
        ]
        data.append(
            draw.bars(
                f"{name} (pinned)" if pinned else name,
                y=[y for y, _, _ in parts],
                x=[term.size / use.capacity for _, use, term in parts],
                hover=[f"{draw.plain(term.name)}: {counted(term.size, use)}" for _, use, term in parts],
                color=colours[name],
                marker={"pattern": {"shape": "." if pinned else "", "solidity": 0.15}},
                **draw.labelled(name, len(parts)),
            )
        )
    data += _excess(uses)
    widest = min(_WIDEST, 1.08 * max([1.0, *(use.needed / use.capacity for use in uses)]))
    return draw.figure(
        data,
        draw.height(len(uses), row=_TALL_ROW),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        bargap=1 - _BAR,
        xaxis=draw.axis("needed, as a fraction of the tier's capacity", tickformat=".0%", range=[0, widest]),
        yaxis=draw.names_axis(names or [use.tier for use in uses]),
        annotations=[_filled(y, use) for y, use in enumerate(uses)],
        shapes=[draw.rule(1, color=draw.BLACK, dash="dot")],
    )


def _excess(uses: Sequence[TierUse]) -> list[draw.Properties]:
    """Return the bars of what tiers hold beyond their capacity, if there are any."""
    rows = [(y, use) for y, use in enumerate(uses) if not use.fits]
    if not rows:
        return []
    excess = draw.bars(
        "beyond capacity",
        y=[y for y, _ in rows],
        x=[use.needed / use.capacity - 1 for _, use in rows],
        hover=[f"lacks {counted(-use.headroom, use)}" for _, use in rows],
        color=draw.BLACK,
        base=[1.0] * len(rows),
        **draw.labelled("beyond capacity", len(rows)),
        marker={"pattern": {"shape": "x", "fillmode": "replace", "fgcolor": draw.BLACK}},
    )
    return [excess]


def _filled(y: int, use: TierUse) -> draw.Properties:
    """Write the used fraction of a tier above its bar."""
    filled = f"{counted(use.needed, use)} of {counted(use.capacity, use)}"
    text = f" {filled} ({percent(use.needed / use.capacity)})"
    above = {"yanchor": "bottom", "bgcolor": "rgba(255,255,255,0.85)", "borderpad": 0}
    return draw.note(text, x=0, y=y - _BAR / 2, xanchor="left", **above)


_SMALL = 0.005
"""Share of a step below which a bar would not be seen; tables have all causes."""


def causes(step: PassResult) -> draw.Properties:
    """Draw the exposed and the hidden time of each cause that is long enough to be seen."""
    shares = [share for share in step.shares if max(share.exposed_s, share.busy_s) > _SMALL * step.time_s]
    rows = range(len(shares))
    colours = [draw.cause_colour(share.cause) for share in shares]
    exposed = [share.exposed_s for share in shares]
    hidden = [max(0.0, share.busy_s - share.exposed_s) for share in shares]
    longest = max(map(sum, zip(exposed, hidden, strict=True)))
    faint = {"opacity": 0.45, "pattern": {"shape": "/", "solidity": 0.5, "bgcolor": "#ffffff"}}

    def hover(times: Sequence[float], how: str) -> list[str]:
        pairs = zip(shares, times, strict=True)
        return [f"{draw.plain(share.cause_text)}: {format_seconds(time)} {how}" for share, time in pairs]

    return draw.figure(
        [
            draw.bars("exposed", y=rows, x=exposed, hover=hover(exposed, "exposed"), color=colours),
            draw.bars("hidden", y=rows, x=hidden, hover=hover(hidden, "hidden"), color=colours, marker=faint),
        ],
        draw.height(len(shares)),
        barmode="stack",
        showlegend=False,
        xaxis=draw.seconds_axis("exposed time, and hidden time (hatched)", longest),
        yaxis=draw.names_axis([share.cause_text for share in shares]),
        annotations=[
            draw.beside(y, exposed[y] + hidden[y], _exposed(share.exposed_s, step.time_s))
            for y, share in enumerate(shares)
        ],
    )


def _exposed(exposed: float, total: float) -> str:
    return f"{format_seconds(exposed)}, {percent(exposed / total)}" if exposed else "hidden"


def bounds(step: PassResult, *, most: int) -> draw.Properties:
    """Draw the largest bounds, and the time of the step as a line."""
    largest = group_bounds(step)[:most]
    hover = [f"{format_seconds(time)}, {percent(time / step.time_s)}" for _, time in largest]
    text = f"simulated {format_seconds(step.time_s)}"
    above = {"y": 1, "yref": "paper", "yanchor": "bottom", "font": {"color": draw.VERMILION}}
    return draw.figure(
        [
            draw.bars(
                "bound",
                y=range(len(largest)),
                x=[time for _, time in largest],
                hover=hover,
                color=draw.GREY,
            )
        ],
        draw.height(len(largest)),
        xaxis=draw.seconds_axis("time", 1.1 * step.time_s),
        yaxis=draw.names_axis([group_name(names) for names, _ in largest]),
        shapes=[draw.rule(step.time_s, color=draw.VERMILION, width=3)],
        annotations=[
            draw.note(text, x=step.time_s, **above),
            *(draw.beside(y, largest[y][1], shown) for y, shown in enumerate(hover)),
        ],
    )


# ---- training ----


def result_chart(result: SimulationResult) -> Figure:
    """Draw where the time of a result goes, or what each tier must hold."""
    return draw.of_plotly(capacity(result.capacity) if result.step is None else causes(result.step))


def memory(result: TrainingResult) -> draw.Properties:
    """Draw the memory of every tier at each stage that needs another amount than the one before, with the
    stages of a tier below each other."""
    found = stage_needs(result)
    names = [name for name, _ in found]
    rows: list[tuple[str, TierUse]] = []
    for uses in zip(*(uses for _, uses in found), strict=True):
        befores = [-1, *(use.needed for use in uses)]
        apart = [
            (name, use)
            for name, use, before in zip(names, uses, befores, strict=False)
            if use.needed != before
        ]
        rows += [(f"{use.tier}, {name}" if len(apart) > 1 else use.tier, use) for name, use in apart]
    return capacity([use for _, use in rows], names=[name for name, _ in rows])


def phases(result: TrainingResult) -> draw.Properties:
    """Draw the time of each phase in one step, stacked by cause."""
    parts = []
    for y, phase in enumerate(result.phases):
        for share in phase.result.shares:
            exposed = float(phase.times) * share.exposed_s
            if exposed:
                part = f"{format_seconds(exposed)}, {percent(exposed / phase.time_s)}"
                hover = f"{draw.plain(share.cause_text)}: {part}"
                parts.append(
                    draw.CauseBar(y, share.cause_text, draw.cause_colour(share.cause), exposed, hover)
                )
    data = draw.by_cause(parts)
    shares = [percent(phase.time_s / (result.step_s or 1.0)) for phase in result.phases]
    ends = [
        draw.note(f" {format_seconds(phase.time_s)} ({share})", x=phase.time_s, y=y, xanchor="left")
        for y, (phase, share) in enumerate(zip(result.phases, shares, strict=True))
    ]
    longest = max(phase.time_s for phase in result.phases)
    return draw.figure(
        data,
        draw.height(len(result.phases)),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.axis("exposed time in one step [s]", range=[0, 1.25 * longest]),
        yaxis=draw.names_axis(
            [
                phase.result.name if phase.times == 1 else f"{times(phase)} {phase.result.name}"
                for phase in result.phases
            ]
        ),
        annotations=ends,
    )


# ---- explanations ----


def tornado(found: Sensitivity, *, most: int) -> draw.Properties:
    """Draw the change of the time with each input lower (hatched) and higher, the largest change on top."""
    rows, time = found.rows[:most], found.result.compared_s or 1.0
    compared = uncapitalized(found.result.declared[found.result.compared_by].title)
    data = []
    for name, color, shape, ends in (
        (f"{percent(found.change)} lower", draw.BLUE, "/", [row.low for row in rows]),
        (f"{percent(found.change)} higher", draw.ORANGE, "", [row.high for row in rows]),
    ):
        marks = [
            (
                y,
                end / time - 1,
                f"{draw.plain(f'{rows[y].number.key} of {rows[y].number.profile}')}: {format_seconds(end)}",
            )
            for y, end in enumerate(ends)
            if end is not None
        ]
        data.append(
            {**draw.hatched(name, marks, color=color, shape=shape), **draw.at_one(name, len(marks), 0)}
        )
    return draw.figure(
        data,
        draw.height(len(rows)),
        barmode="overlay",
        showlegend=False,
        xaxis=draw.axis(f"change of the {compared}", tickformat="+.1%"),
        yaxis=draw.names_axis([f"{row.number.key}, {row.number.profile}" for row in rows]),
        shapes=[draw.rule(0, color=draw.BLACK)],
    )


def bandwidth(curve: StorageCurve) -> draw.Properties:
    """Draw throughput over the rate of the storage, with its upper bound and this platform."""
    rates, own = [point.rate / _GIGA for point in curve.points], curve.own
    end = -1 if own.rate**2 < curve.points[0].rate * curve.points[-1].rate else 0  # away from the platform

    def line(name: str, values: Sequence[float], color: str, dash: str, place: str) -> draw.Properties:
        pairs = zip(rates, values, strict=True)
        return draw.points(
            name,
            x=rates,
            y=values,
            hover=[f"{name}, {format_rate(rate * _GIGA)}: {format_number(value)}" for rate, value in pairs],
            mode="lines+markers+text",
            line={"color": color, "dash": dash},
            textposition=place,
            **draw.at_one(name, len(rates), end),
        )

    data = [
        line("upper bound", [point.bound for point in curve.points], draw.GREY, "dash", "top center"),
        line("simulated", [point.throughput for point in curve.points], draw.BLUE, "solid", "bottom center"),
        draw.points(
            "this platform",
            x=[own.rate / _GIGA],
            y=[own.throughput],
            hover=[f"{format_rate(own.rate)}: {format_number(own.throughput)} {curve.unit}s/s"],
            mode="markers+text",
            text=["this platform"],
            textposition="bottom right",
            marker={"color": draw.VERMILION, "size": 13, "symbol": "diamond"},
        ),
    ]
    ends = [("hidden above", curve.hidden), ("fast enough:", curve.enough)]
    needed = [(f"{name} {format_rate(one.rate)}", one.rate / _GIGA) for name, one in ends if one]
    above = {"y": 1, "yref": "paper", "yanchor": "top"}
    return draw.figure(
        data,
        HEIGHT,
        showlegend=False,
        xaxis=draw.axis(f"{draw.plain(curve.tier)} {curve.verb} [GB/s]", type="log", dtick="D2"),
        yaxis=draw.axis(f"{curve.unit}s/s", type="log", dtick="D2"),
        shapes=[draw.rule(rate, color=draw.BLACK, dash="dot", width=1) for _, rate in needed],
        annotations=[draw.note(text, x=rate, **above) for text, rate in needed],
    )


def reached(found: Reach) -> draw.Properties:
    """Draw the metric of each service level over the values that were tried, with its 80 % interval as a band
    and its limit as a dotted line; several metrics are drawn relative to their limits."""
    texts = [draw.plain(one.value) for one in found.trials]
    across = draw.number_axis(draw.plain(found.path), texts)
    if across is None:  # no numbers with one unit: each at its own place
        places = [float(at) for at in range(len(texts))]
        across = draw.axis(draw.plain(found.path), tickvals=places, ticktext=texts), places
    timed = [(x, one, one.result) for x, one in zip(across[1], found.trials, strict=True) if one.result]
    barred = _next_without(found, across[1])
    alone = len(found.service) == 1
    data = [one for number, level in enumerate(found.service) for one in _level(level, timed, number, alone)]
    limit = found.service[0].limit if alone else 1.0
    values = [y for one in data for y in one["y"]]
    shown = [*(x for x, *_ in timed), *(x for x, _ in barred)]
    ends, line = [min(shown), max(shown)], {"color": draw.BLACK, "dash": "dot"}
    text = draw.at_one(f"limit: {found.service[0].text}" if alone else "limits", 2, 1)
    drawn: dict[str, Any] = {"x": ends, "y": [limit] * 2, "hover": ["limit"] * 2, "mode": "lines+text"}
    above = limit < max(values)  # else the title of the axis is there
    place = "top left" if above else "bottom left"
    data.append(draw.points("limit", **drawn, line=line, textposition=place, **text))
    wide = max(values) > _WIDE * min(values) > 0
    form = {"type": "log"} if wide else {"rangemode": "tozero"}
    metric = found.service[0].metric
    title = f"{metric.title} [{metric.unit.name}]" if alone else "relative to the limits (dotted)"
    up = draw.axis(title, **form)
    if alone and metric.unit.name == "s" and not wide:
        up = draw.seconds_axis(metric.title, max(*values, limit))
    return draw.figure(
        data,
        HEIGHT,
        showlegend=False,
        xaxis=across[0],
        yaxis=up,
        shapes=[draw.rule(x, color=draw.VERMILION, dash="dot") for x, _ in barred],
        annotations=[draw.note(f"{one.value}: {one.status}", x=x) for x, one in barred],
    )


def _next_without(found: Reach, places: Sequence[float]) -> list[tuple[float, EvaluatedValue]]:
    """Return the values without a result that are next to those with one; further ones are not drawn."""
    pairs = list(zip(places, found.trials, strict=True))
    beside = [[*pairs[max(0, at - 1) : at], *pairs[at + 1 : at + 2]] for at in range(len(pairs))]
    return [
        pair
        for pair, around in zip(pairs, beside, strict=True)
        if pair[1].result is None and any(one.result is not None for _, one in around)
    ]


def _level(
    level: ServiceLevel,
    timed: Sequence[tuple[float, EvaluatedValue, SimulationResult]],
    number: int,
    alone: bool,
) -> Iterator[draw.Properties]:
    """Yield the band and the line of a service level over the values that have results; ``alone`` in its own
    unit, and otherwise relative to its limit."""
    color, unit = draw.CYCLE[number % len(draw.CYCLE)], 1.0 if alone else level.limit
    places, values = [x for x, *_ in timed], [(level.of(result) or 0.0) for *_, result in timed]
    intervals = [confidence(result).intervals().get(level.metric.name) for *_, result in timed]
    ends = [(one[0] / unit, one[1] / unit) for one in intervals if one is not None]
    if len(ends) == len(places) > 1:
        yield draw.band("80 % interval", x=places, ends=ends, color=color)
    hover = [
        f"{draw.plain(one.value)}: {level.name} {level.metric.short(value)}"
        for (_, one, _), value in zip(timed, values, strict=True)
    ]
    yield draw.points(
        level.text,
        x=places,
        y=[value / unit for value in values],
        hover=hover,
        mode="lines+markers+text",
        line={"color": color},
        **draw.at_one("" if alone else level.text, len(timed), -1),
    )


# ---- advice ----


def gains(tried: Sequence[EvaluatedChange], *, axis: str = "throughput") -> draw.Properties:
    """Draw the throughput or speed (``axis``) with each change, relative to the unchanged scenario; the kind
    of the change has its colour, and its name beside the bar."""
    gains = [one.gain or 0.0 for one in tried]
    texts = [f"{_gained(one)}, {one.change.kind}{_bought(one)}" for one in tried]
    ends = [one.gain_interval or (one.gain or 0.0,) * 2 for one in tried]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [end[1] - gain for end, gain in zip(ends, gains, strict=True)],
        "arrayminus": [gain - end[0] for end, gain in zip(ends, gains, strict=True)],
    }
    hover = [f"{draw.plain(one.change.description)}: {text}" for one, text in zip(tried, texts, strict=True)]
    colours = [draw.CHANGES[one.change.kind] for one in tried]
    return draw.figure(
        [draw.bars("gain", y=range(len(tried)), x=gains, hover=hover, color=colours, error_x=error)],
        draw.height(len(tried)),
        showlegend=False,
        xaxis=draw.axis(f"{axis} relative to the unchanged scenario", rangemode="tozero"),
        yaxis=draw.names_axis([one.change.description for one in tried]),
        annotations=[
            draw.beside(y, gain, text) for y, (gain, text) in enumerate(zip(gains, texts, strict=True))
        ],
    )


def _gained(one: EvaluatedChange) -> str:
    """Return a gain with its interval: "4.85× [3.55 to 6.61]"."""
    value = f"{format_number(one.gain or 0.0)}×"
    return f"{value} [{span(*map(format_number, one.gain_interval))}]" if one.gain_interval else value


def _bought(one: EvaluatedChange) -> str:
    """Return what a change costs, if it does."""
    return f", {one.extra:,.0f} {one.economics.costs.currency}".rstrip() if one.extra else ""


# -- the section with the operations of ranks over time --------------------------------------------
# It has charts of the first layers and of one in the middle, and a list of the longest operations.


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
    notes = [f"Each row is one stream of {found[0].ranks}."]
    if any(not bar.own for one in found for bar in one.bars):
        notes[0] += f" Pale bars belong to neighbouring {parts}."
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
