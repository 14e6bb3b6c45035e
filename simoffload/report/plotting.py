"""What all charts share: colours, axes, traces.

Plotly is imported where something is drawn, as most reports are read in a terminal.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), which people who cannot tell red from
green still can, and darker shades of them for the way back in training and for what the optimizer does.
What a colour says is also said by a label or a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from plotly.graph_objects import Bar, Figure, Scatter

__all__ = [
    "BLACK",
    "BLUE",
    "CYCLE",
    "DARK_ORANGE",
    "DARK_PURPLE",
    "FRAME",
    "GREEN",
    "GREY",
    "LEGEND",
    "ORANGE",
    "PURPLE",
    "ROOM_FOR_NAMES",
    "ROW",
    "SKY",
    "VERMILION",
    "CauseBar",
    "Properties",
    "axis",
    "bars",
    "by_cause",
    "cause_colour",
    "figure",
    "hatched",
    "labelled",
    "names_axis",
    "note",
    "plain",
    "points",
    "rule",
    "short",
]

Properties = Mapping[str, Any]
"""A part of a figure: an axis, a line, words."""

BLACK, GREY = "#000000", "#999999"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
DARK_BLUE, DARK_GREEN, DARK_PURPLE = "#003A5C", "#00563F", "#7A3F62"
DARK_GREY, DARK_ORANGE, DARK_YELLOW = "#555555", "#7A4F00", "#A39A00"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY, BLACK)
_CAUSES = {
    "GPU compute": GREEN,
    "host thread": GREY,
    "GPU copies of gathered tensors": SKY,
    "all-gather": PURPLE,
    "CPU Adam": BLACK,
    "CPU casts and scaling": DARK_GREY,
    "GPU to host": DARK_BLUE,
    "GPU to host, pageable": DARK_YELLOW,
    "gradients on the GPU": DARK_GREEN,
    "optimizer on the GPU": DARK_ORANGE,
    "reduction of gradients": DARK_PURPLE,
    "new pages for copies": GREY,
    "entering the page cache": DARK_GREY,
    "into the page cache": SKY,
    "crc32": PURPLE,
}
_CAUSES_ENDING = {" read": VERMILION, " write": ORANGE, ", pageable": YELLOW}

_BAR = 0.7
"""Width of a bar, in rows; left to plotly it depends on the gaps between the bars of one colour."""
ROW = 34
"""[px] of a horizontal bar with its gap."""
FRAME = 68
"""[px] around the bars: axis, its title, margins."""
LEGEND = 30
"""[px] of a line of legend above the bars."""
ROOM_FOR_NAMES: Properties = {"minsize": 11, "mode": "hide"}
"""``uniformtext`` of a layout whose bars have names in them: all equally large, or left out."""
_LONGEST_NAME = 34


def plain(text: str) -> str:
    """A name as plotly text: its subset of HTML must not see tags."""
    return text.replace("<", "‹").replace(">", "›")


def short(name: str) -> str:
    """A name that leaves room for the chart."""
    return plain(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")


def cause_colour(cause: str) -> str:
    """The colour of a cause of time, the same in every chart."""
    if cause in _CAUSES:
        return _CAUSES[cause]
    return next((colour for end, colour in _CAUSES_ENDING.items() if cause.endswith(end)), BLUE)


def figure(data: Sequence[Bar | Scatter], height: float, **more: Any) -> Figure:
    """A figure ``height`` [px] high; ``more`` of its layout."""
    from plotly.graph_objects import Figure, Layout

    layout = Layout(
        template="none",
        height=height,
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        hoverlabel={"align": "left", "namelength": -1},
        **{"margin": {"l": 10, "r": 20, "t": 24, "b": 44}, "bargap": 0.3, **more},
    )
    return Figure(data, layout)


def axis(title: str = "", **more: Any) -> Properties:
    """An axis that does not move."""
    return {
        "title": {"text": title, "font": {"size": 12}},
        "automargin": True,
        "gridcolor": "#dddddd",
        "zerolinecolor": "#888888",
        "fixedrange": True,
        **more,
    }


def names_axis(names: Sequence[str]) -> Properties:
    """A vertical axis of names at 0, 1, 2, …, the first one on top."""
    return axis(
        autorange="reversed",
        showgrid=False,
        zeroline=False,
        ticklabelstandoff=6,
        tickvals=list(range(len(names))),
        ticktext=[short(name) for name in names],
    )


def bars(
    name: str, *, y: Sequence[int], x: Sequence[float], hover: Sequence[str], color: Any, **more: Any
) -> Bar:
    """Horizontal bars, with what hovering over each tells."""
    from plotly.graph_objects import Bar

    marker = {"color": color, **more.pop("marker", {})}
    return Bar(
        orientation="h",
        name=plain(name),
        y=list(y),
        x=list(x),
        hovertext=list(hover),
        hoverinfo="text",
        marker=marker,
        **more,
    )


def points(
    name: str,
    *,
    x: Sequence[float],
    y: Sequence[float],
    hover: Sequence[str],
    mode: str = "markers",
    **more: Any,
) -> Scatter:
    """Marks or lines, with what hovering over each point tells."""
    from plotly.graph_objects import Scatter

    return Scatter(
        name=plain(name),
        x=list(x),
        y=list(y),
        hovertext=list(hover),
        hoverinfo="text",
        mode=mode,
        **more,
    )


def hatched(name: str, marks: Sequence[tuple[int, float, str]], *, color: str, shape: str) -> Bar:
    """Bars (row, length, what hovering tells) of one colour and pattern; "" is plain."""
    return bars(
        name,
        y=[y for y, _, _ in marks],
        x=[x for _, x, _ in marks],
        hover=[hover for _, _, hover in marks],
        color=color,
        marker={"pattern": {"shape": shape, "solidity": 0.3}},
        width=_BAR,
    )


class CauseBar(NamedTuple):
    """What one cause has of a bar."""

    y: int
    """Row of the bar."""
    cause: str
    length: float
    hover: str
    """What hovering over it tells."""


def labelled(name: str, count: int) -> Properties:
    """What writes the name of a trace into each of ``count`` bars that have room for it: a colour alone does
    not say enough. Goes with ``ROOM_FOR_NAMES`` in the layout."""
    return {
        "text": [plain(name)] * count,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def by_cause(parts: Sequence[CauseBar]) -> list[Bar]:
    """Stacked bars, a trace for each cause; the one with most in all comes first."""
    totals: dict[str, float] = {}
    for part in parts:
        totals[part.cause] = totals.get(part.cause, 0.0) + part.length
    traces = []
    for cause in sorted(totals, key=lambda cause: (-totals[cause], cause)):
        mine = [part for part in parts if part.cause == cause]
        traces.append(
            bars(
                cause,
                y=[part.y for part in mine],
                x=[part.length for part in mine],
                hover=[part.hover for part in mine],
                color=cause_colour(cause),
                **labelled(cause, len(mine)),
            )
        )
    return traces


def rule(x: float, **line: Any) -> Properties:
    """A vertical line over the whole height."""
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def note(text: str, **more: Any) -> Properties:
    """Words without an arrow."""
    return {"text": text, "showarrow": False, **more}
