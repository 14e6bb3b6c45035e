"""Charts that compare several results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import TYPE_CHECKING, Any

from simoffload.report import plotting as draw
from simoffload.report.comparison import ComparisonRow, Group
from simoffload.report.formatting import uncapitalized
from simoffload.report.presentation import presentation
from simoffload.results import Share, SimulationResult, TrainingResult
from simoffload.units import format_number, format_seconds

if TYPE_CHECKING:
    from plotly.graph_objects import Bar, Figure, Scatter

_FLAT = 6
"""Number of bars up to which there is room for horizontal text between them."""
_ONE_LINE = 8
"""Number of causes up to which one line of legend is enough; beyond, a line has three."""


def times_compared(groups: Sequence[Group]) -> Figure:
    """Draw the time by which results are compared: a cluster of bars per model, a colour per target, and
    published ratios as marks."""
    labels = list(dict.fromkeys(row.label for group in groups for row in group.rows))
    width = 0.8 / len(labels)
    at = {
        (cluster, label): cluster + (number - (len(labels) - 1) / 2) * width
        for cluster in range(len(groups))
        for number, label in enumerate(labels)
    }
    data = [
        _times(
            label,
            groups,
            at,
            width=0.92 * width,
            marker={"color": draw.CYCLE[number % len(draw.CYCLE)]},
            showlegend=len(groups) > 1,
        )
        for number, label in enumerate(labels)
    ]
    if len(groups) == 1:
        names = {at[0, label]: draw.short(label) for label in labels}
    else:
        names = {float(cluster): draw.short(group.title) for cluster, group in enumerate(groups)}
    marks = _marks(groups, at)
    times = [time for trace in (*data, *marks) for time in trace.y]
    return draw.figure(
        [*data, *marks],
        380,
        barmode="overlay",
        xaxis=draw.axis(
            showgrid=False,
            zeroline=False,
            range=[-0.5, len(groups) - 0.5],
            tickvals=list(names),
            ticktext=list(names.values()),
        ),
        yaxis=draw.axis(
            f"{uncapitalized(groups[0].compared)} [ms]",
            type="log",
            dtick=1,
            exponentformat="none",
            range=[floor(log10(min(times) / 2)), log10(max(times) * 2)],
        ),
        annotations=_refused(groups, at),
    )


def _times(label: str, groups: Sequence[Group], at: Mapping[tuple[int, str], float], **more: Any) -> Bar:
    from plotly.graph_objects import Bar

    found = [
        (at[cluster, label], row.result.compared_s)
        for cluster, group in enumerate(groups)
        for row in group.rows
        if row.label == label and row.result.compared_s is not None
    ]
    return Bar(
        name=draw.plain(label),
        x=[x for x, _ in found],
        y=[time * 1e3 for _, time in found],
        text=[format_seconds(time) for _, time in found],
        textposition="inside",
        insidetextanchor="start",
        hovertext=[f"{draw.plain(label)}: {format_seconds(time)}" for _, time in found],
        hoverinfo="text",
        **more,
    )


def _marks(groups: Sequence[Group], at: Mapping[tuple[int, str], float]) -> list[Scatter]:
    """Draw published ratios times the simulated baseline, if there are any."""
    found = []
    for cluster, group in enumerate(groups):
        base = next((row.result.compared_s for row in group.rows if row.label == group.baseline), None)
        for row in group.rows:
            if row.published is not None and base is not None:
                hover = f"published: {format_number(row.published.ratio)} × {draw.plain(group.baseline)}"
                found.append((at[cluster, row.label], row.published.ratio * base * 1e3, hover))
    if not found:
        return []
    x, y, hovers = zip(*found, strict=True)
    marker = {"symbol": "diamond-open", "size": 11, "color": draw.BLACK, "line": {"width": 2}}
    name = "published ratio × simulated baseline"
    return [draw.points(name, x=x, y=y, hover=hovers, showlegend=True, marker=marker)]


def _refused(groups: Sequence[Group], at: Mapping[tuple[int, str], float]) -> list[draw.Properties]:
    """Write the reason for a missing bar."""
    below = {"y": 0, "yref": "paper", "yanchor": "bottom", "textangle": 0 if len(at) <= _FLAT else -90}
    return [
        draw.note(
            "refused" if row.result.refused else "does not fit",
            x=at[cluster, row.label],
            font={"color": draw.VERMILION},
            **below,
        )
        for cluster, group in enumerate(groups)
        for row in group.rows
        if not row.result.fits
    ]


def causes_compared(groups: Sequence[Group]) -> Figure:
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
        draw.height(len(rows), legends=1 if len(data) <= _ONE_LINE else -(-len(data) // 3)),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.axis("exposed time, as a fraction of the step", tickformat=".0%", range=[0, 1]),
        yaxis=_rows_axis(groups, [(group, row) for group, row, _ in rows]),
    )


def phases_compared(groups: Sequence[Group]) -> Figure:
    """Draw the times of the phases of a training step, one row for each result."""
    rows = [
        (group, row, row.result)
        for group in groups
        for row in group.rows
        if isinstance(row.result, TrainingResult) and row.result.phases
    ]
    names = dict.fromkeys(phase.name for _, _, result in rows for phase in result.phases)
    data = []
    for number, name in enumerate(names):
        times = [result.phase_s(name) or 0.0 for _, _, result in rows]
        data.append(
            draw.bars(
                name,
                y=range(len(rows)),
                x=times,
                hover=[f"{draw.plain(name)}: {format_seconds(time)}" for time in times],
                color=draw.CYCLE[number % len(draw.CYCLE)],
                **draw.labelled(name, len(rows)),
            )
        )
    return draw.figure(
        data,
        draw.height(len(rows), legends=1),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.axis("time of one step [s]", rangemode="tozero"),
        yaxis=_rows_axis(groups, [(group, row) for group, row, _ in rows]),
    )


def _rows_axis(groups: Sequence[Group], rows: Sequence[tuple[Group, ComparisonRow]]) -> draw.Properties:
    """Return the axis with the names of results, with their models where there are several."""
    return draw.names_axis(
        [row.label if len(groups) == 1 else _both(group, row.label) for group, row in rows]
    )


def _both(group: Group, label: str) -> str:
    """Join the names of model and target; a name that is too long is cut."""
    room = max(8, 25 - len(label))
    return f"{group.model if len(group.model) <= room else group.model[:room] + '…'}, {label}"


def _general(share: Share, result: SimulationResult) -> str:
    """Return the general name of a cause, such as "storage read" for "raid read", if raid holds weights or
    optimizer."""
    tiers = [place.tier for place in presentation(result).places]
    general = share.cause.kind in ("read", "write") and share.cause.tier in tiers
    return f"storage{share.cause_text.removeprefix(share.cause.tier)}" if general else share.cause_text
