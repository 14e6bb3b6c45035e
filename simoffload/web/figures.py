"""Figures of a page that no report has: all variants on one axis, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simoffload.report import plotting as draw
from simoffload.report.comparison import Group
from simoffload.report.formatting import uncapitalized
from simoffload.report.presentation import ranged
from simoffload.results import SimulationResult

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_LETTER, _BELOW = 7.5, 48
"""[px] of a letter of a name beside a bar, and of the axis below the bars."""


def drawn(figure: Figure) -> dict[str, Any]:
    """Return a figure for a page: the names and colours of its legend are in ``meta``, as the page has one
    that fits any width; margins are known, which a browser needs as long to find out as to draw."""
    found: dict[str, Any] = figure.to_plotly_json()
    layout = found["layout"]
    names = layout["yaxis"].get("ticktext", ())
    for axis in ("xaxis", "yaxis"):
        layout[axis]["automargin"] = False
    data = found["data"]
    shown = layout.get("showlegend", len(data) > 1)
    layout["meta"] = [(one["name"], one["marker"]["color"]) for one in data] if shown else []
    layout["showlegend"] = False
    layout["margin"] |= {"l": 20 + _LETTER * max(map(len, names), default=0), "b": _BELOW}
    return found


def variants(groups: Sequence[Group], current: SimulationResult) -> Figure:
    """Draw the compared time of each result as a dot with its 80 % interval, the shortest on top."""
    rows = [(group, row) for group in groups for row in group.rows]
    rows.sort(key=lambda pair: pair[1].result.compared_s or float("inf"))
    data, notes = [], []
    for y, (_, row) in enumerate(rows):
        time = row.result.compared_s
        if time is None:
            text = "refused" if row.result.refused else "does not fit"
            notes.append(draw.note(text, x=0, y=y, xanchor="left", font={"color": draw.VERMILION}))
            continue
        low, high = row.result.intervals()[row.result.compared_by]
        text = ranged(row.result, row.result.compared_by)
        notes.append(draw.note(text, x=low, y=y, yshift=-16, xanchor="left", font={"size": 12}))
        data.append(
            draw.points(
                row.label,
                x=[time],
                y=[y],
                hover=[f"{draw.plain(row.label)}: {text}"],
                marker={"size": 11, "color": draw.BLUE if row.result is current else draw.GREY},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [high - time],
                    "arrayminus": [time - low],
                },
            )
        )
    return draw.figure(
        data,
        draw.height(len(rows), row=52),
        showlegend=False,
        xaxis=draw.axis(f"{uncapitalized(groups[0].measure.name)} [s]", rangemode="tozero"),
        yaxis={
            **draw.names_axis(
                [row.label if len(groups) == 1 else f"{g.model}, {row.label}" for g, row in rows]
            ),
            "range": [len(rows) - 0.4, -0.6],
            "autorange": False,
        },
        annotations=notes,
    )
