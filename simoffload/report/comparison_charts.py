"""Charts that compare several results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simoffload.planning.confidence import confidence
from simoffload.report import plotting as draw
from simoffload.report.charts import capacity
from simoffload.report.comparison import ComparisonRow, Group
from simoffload.report.formatting import uncapitalized
from simoffload.report.presentation import presentation, ranged
from simoffload.results import Share, SimulationResult, TrainingResult
from simoffload.units import format_number, format_seconds


def times_compared(groups: Sequence[Group], *, log: bool = False) -> draw.Properties:
    """Draw the time by which results are compared, the fastest of each model on top, with 80 % intervals.

    What may be the fastest has one tint, published ratios are diamonds, and what has no time has a row
    without a bar. The axis begins at zero unless a logarithmic one is asked for.
    """
    rows = [_TimeRow(group, row) for group in groups for row in group.ordered]
    timed = [(y, one) for y, one in enumerate(rows) if one.value is not None]
    data = [
        _times([(y, one) for y, one in timed if one.leads is leads], name, color)
        for leads, name, color in ((True, "fastest or a tie", draw.BLUE), (False, "slower", draw.GREY))
    ]
    marks = _published(groups, rows)
    ends = [end for _, one in timed for end in one.ends] + [x for trace in marks for x in trace["x"]]
    measure = groups[0].measure
    title = uncapitalized(measure.title)
    if log:
        across = draw.axis(f"{title} [{'1/s' if measure.larger else 's'}]", type="log")
    elif measure.larger:
        across = draw.axis(title, rangemode="tozero")
    else:
        across = draw.seconds_axis(title, max(ends, default=1.0))
    return draw.figure(
        [*data, *marks],
        draw.height(len(rows)),
        barmode="overlay",
        showlegend=False,
        xaxis=across,
        yaxis=_rows_axis(groups, [(one.group, one.row) for one in rows]),
        annotations=[draw.beside(y, max(one.ends, default=0.0), one.text) for y, one in enumerate(rows)],
    )


class _TimeRow(NamedTuple):
    """A _TimeRow is a row of the chart of times."""

    group: Group
    row: ComparisonRow

    @property
    def value(self) -> float | None:
        return self.group.value(self.row)

    @property
    def ends(self) -> tuple[float, ...]:
        """P10 and P90; nothing without a time."""
        result = self.row.result
        return () if self.value is None else confidence(result).interval(self.group.measure.name)

    @property
    def leads(self) -> bool:
        """Whether it is the fastest, or as fast within the uncertainty."""
        return self.row.label in self.group.leading

    @property
    def text(self) -> str:
        """Value, interval and relation to the fastest; or the reason why there is none."""
        result, measure = self.row.result, self.group.measure
        if self.value is None:
            return "refused" if result.refused else "fits" if result.fits else "does not fit"
        best = self.group.ordered[0]
        relation = "tie" if self.leads else self.group.behind(self.row)
        if self.row is best:
            relation = "fastest" if len(self.group.rows) > 1 else ""
        return ", ".join(filter(None, (ranged(result, measure.name), relation)))


def _times(rows: Sequence[tuple[int, _TimeRow]], name: str, color: str) -> draw.Properties:
    values = [one.value or 0.0 for _, one in rows]
    pairs = list(zip(values, (one.ends for _, one in rows), strict=True))
    return draw.bars(
        name,
        y=[y for y, _ in rows],
        x=values,
        hover=[f"{draw.plain(one.row.label)}: {one.text}" for _, one in rows],
        color=color,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [ends[1] - value for value, ends in pairs],
            "arrayminus": [value - ends[0] for value, ends in pairs],
        },
    )


def _published(groups: Sequence[Group], rows: Sequence[_TimeRow]) -> list[draw.Properties]:
    """Draw published ratios times the simulated baseline, if there are any."""
    bases = {
        group.title: next((group.value(row) for row in group.rows if row.label == group.baseline), None)
        for group in groups
    }
    found = [
        (y, one.row.published.ratio, base, one.group.baseline)
        for y, one in enumerate(rows)
        if one.row.published is not None and (base := bases[one.group.title]) is not None
    ]
    if not found or groups[0].measure.larger:
        return []
    hover = [f"published: {format_number(ratio)} × {draw.plain(name)}" for _, ratio, _, name in found]
    marker = {"symbol": "diamond-open", "size": 11, "color": draw.BLACK, "line": {"width": 2}}
    name = "published ratio × simulated baseline"
    x, y = [ratio * base for _, ratio, base, _ in found], [y for y, *_ in found]
    return [draw.points(name, x=x, y=y, hover=hover, marker=marker)]


class CurvePoint(NamedTuple):
    """A CurvePoint is the result for one value of an input."""

    at: int
    """Place of the value on the axis."""
    name: str
    """Text of the value, which stands at the axis."""
    y: float
    text: str
    """Text of ``y``, with its interval if it has one."""
    ends: tuple[float, float] | None = None
    """P10 and P90 of ``y``; None if it has no interval."""


def curve_of(
    points: Sequence[CurvePoint], now: int, *, across: str, up: str, seconds: bool
) -> draw.Properties:
    """Draw results over the values of an input (``across``), each value at its own place; ``now`` is the
    present one. ``up`` is what is drawn, in seconds if so said."""
    ends = [one.ends or (one.y, one.y) for one in points]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [high - one.y for one, (_, high) in zip(points, ends, strict=True)],
        "arrayminus": [one.y - low for one, (low, _) in zip(points, ends, strict=True)],
    }
    present = [one for one in points if one.at == now]
    data = [
        _curve("simulated", points, mode="lines+markers", error_y=error, line={"color": draw.BLUE}),
        _curve("now", present, marker={"color": draw.VERMILION, "size": 13, "symbol": "diamond"}),
    ]
    most = max(high for _, high in ends)
    return draw.figure(
        data,
        draw.height(8),
        showlegend=False,
        xaxis=draw.axis(
            draw.plain(across),
            tickvals=[one.at for one in points],
            ticktext=[draw.plain(one.name) for one in points],
        ),
        yaxis=draw.seconds_axis(up, most) if seconds else draw.axis(up, rangemode="tozero"),
    )


def _curve(name: str, points: Sequence[CurvePoint], **more: Any) -> draw.Properties:
    hover = [f"{draw.plain(one.name)}: {one.text}" for one in points]
    return draw.points(name, x=[one.at for one in points], y=[one.y for one in points], hover=hover, **more)


def capacity_compared(groups: Sequence[Group]) -> draw.Properties:
    """Draw the fullest tier of each result."""
    rows = [(group, row) for group in groups for row in group.rows if row.result.capacity]
    fullest = [max(row.result.capacity, key=lambda use: use.needed / use.capacity) for _, row in rows]
    names = [
        f"{_named(groups, group, row)}: {use.tier}" for (group, row), use in zip(rows, fullest, strict=True)
    ]
    return capacity(fullest, names=names)


def causes_compared(groups: Sequence[Group]) -> draw.Properties:
    """Draw the share of each cause in the step; reading from any target counts as one cause."""
    rows = [(group, row, row.result.step) for group in groups for row in group.rows if row.result.step]
    data = draw.by_cause(
        [
            draw.CauseBar(
                y,
                _general(share, row.result),
                draw.cause_colour(share.cause),
                share.exposed_s / step.time_s,
                f"{draw.plain(share.cause_text)}: {format_seconds(share.exposed_s)}",
            )
            for y, (_, row, step) in enumerate(rows)
            for share in step.shares
            if share.exposed_s
        ]
    )
    return draw.figure(
        data,
        draw.height(len(rows)),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.axis("exposed time, as a fraction of the step", tickformat=".0%", range=[0, 1]),
        yaxis=_rows_axis(groups, [(group, row) for group, row, _ in rows]),
    )


def phases_compared(groups: Sequence[Group]) -> draw.Properties:
    """Draw the times of the phases of a training step, one row for each result."""
    rows = [
        (group, row, row.result)
        for group in groups
        for row in group.rows
        if isinstance(row.result, TrainingResult) and row.result.phases
    ]
    names = dict.fromkeys(phase.name for _, _, result in rows for phase in result.phases)
    data = []
    for name, colour in zip(names, draw.phase_colours(list(names)), strict=True):
        times = [result.metrics().get(f"{name}_s") or 0.0 for _, _, result in rows]
        data.append(
            draw.bars(
                name,
                y=range(len(rows)),
                x=times,
                hover=[f"{draw.plain(name)}: {format_seconds(time)}" for time in times],
                color=colour,
                **draw.labelled(name, len(rows)),
            )
        )
    return draw.figure(
        data,
        draw.height(len(rows)),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.seconds_axis("time of one step", max(result.step_s or 0.0 for _, _, result in rows)),
        yaxis=_rows_axis(groups, [(group, row) for group, row, _ in rows]),
    )


def _rows_axis(groups: Sequence[Group], rows: Sequence[tuple[Group, ComparisonRow]]) -> draw.Properties:
    """Return the axis with the names of results, with their models where there are several."""
    return draw.names_axis([_named(groups, group, row) for group, row in rows])


def _named(groups: Sequence[Group], group: Group, row: ComparisonRow) -> str:
    """Return the name of a result, with its model where there are several and nobody has named it."""
    return row.label if group.named or len(groups) == 1 else f"{group.model}, {row.label}"


def _general(share: Share, result: SimulationResult) -> str:
    """Return the general name of a cause, such as "storage read" for "raid read", if raid holds weights or
    optimizer."""
    tiers = [place.tier for place in presentation(result).places]
    general = share.cause.kind in ("read", "write") and share.cause.tier in tiers
    return f"storage{share.cause_text.removeprefix(share.cause.tier)}" if general else share.cause_text
