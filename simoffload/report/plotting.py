"""Colours, axes and traces that all charts share.

Plotly is imported only when a chart is drawn, because most reports are read in a terminal. The colours are
those of Okabe and Ito, "Color Universal Design" (2008), which people with red-green blindness can
distinguish, and darker shades of them for backward and optimizer. Labels or tables repeat the information of
colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.schedule import Cause, CauseKind

if TYPE_CHECKING:
    from plotly.graph_objects import Bar, Figure, Scatter

Properties = Mapping[str, Any]
"""A part of a plotly figure: an axis, a line, a text."""

BLACK, GREY = "#000000", "#999999"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
DARK_BLUE, DARK_GREEN, DARK_PURPLE = "#003A5C", "#00563F", "#7A3F62"
DARK_GREY, DARK_ORANGE, DARK_YELLOW = "#555555", "#7A4F00", "#A39A00"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY, BLACK)
_CAUSES: Mapping[CauseKind, str] = {
    "host-thread": GREY,
    "update-wait": DARK_ORANGE,
    "gpu-compute": GREEN,
    "gpu-optimizer": DARK_ORANGE,
    "gpu-gradients": DARK_GREEN,
    "gathered-copies": SKY,
    "in-place": BLUE,
    "host-to-gpu": BLUE,
    "gpu-to-host": DARK_BLUE,
    "gpu-to-gpu": BLUE,
    "stage-to-stage": BLUE,
    "all-gather": PURPLE,
    "all-reduce": BLUE,
    "gradient-reduction": DARK_PURPLE,
    "broadcast": BLUE,
    "column-broadcast": BLUE,
    "read": VERMILION,
    "write": ORANGE,
    "mapped-copies": BLUE,
    "host-copies": BLUE,
    "new-pages": GREY,
    "new-pinned-memory": GREY,
    "page-cache-entry": DARK_GREY,
    "crc32": PURPLE,
    "cpu-work": BLUE,
    "cpu-adam": BLACK,
    "cpu-adamw": BLUE,
    "cpu-casts": DARK_GREY,
    "cpu-overflow-check": BLUE,
    "cpu-attention": BLUE,
    "cache-stores": BLUE,
    "tensor-loops": BLUE,
    "to-io-buffer": BLUE,
    "to-array": BLUE,
    "to-snapshot": BLUE,
    "to-optimizer": BLUE,
    "to-page-cache": SKY,
    "from-page-cache": BLUE,
    "file-to-file": BLUE,
    "own": BLUE,
}

_BAR = 0.7
"""Width of a bar, in rows; by default plotly makes it depend on the gaps between the bars of one colour."""
_ROW, _FRAME, _LEGEND = 34, 68, 30
"""[px] of a bar with its gap; around the bars (axis, its title, margins); of a line of legend."""
ROOM_FOR_NAMES: Properties = {"minsize": 11, "mode": "hide"}
"""``uniformtext`` of a layout whose bars contain names: all have the same size or are hidden."""
_LONGEST_NAME = 34


def plain(text: str) -> str:
    """Return a name without the characters that plotly would read as HTML tags."""
    return text.replace("<", "‹").replace(">", "›")


def short(name: str) -> str:
    """Return a name cut to a length that leaves room for the chart."""
    return plain(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")


def cause_colour(cause: Cause) -> str:
    """Return the colour of a cause of time, the same in every chart."""
    if cause.moves_cache or cause.memory == "never written":
        return BLUE
    if cause.memory == "pageable":
        return DARK_YELLOW if cause.kind == "gpu-to-host" else YELLOW
    return _CAUSES[cause.kind]


def height(rows: int, *, legends: int = 0, row: float = _ROW) -> float:
    """Return the height [px] of a chart with so many horizontal bars and lines of legend."""
    return _FRAME + _LEGEND * legends + row * max(2, rows)


def figure(data: Sequence[Bar | Scatter], height: float, **more: Any) -> Figure:
    """Return a figure ``height`` [px] high; ``more`` are keys of its layout."""
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
    """Return an axis that cannot be dragged."""
    return {
        "title": {"text": title, "font": {"size": 12}},
        "automargin": True,
        "gridcolor": "#dddddd",
        "zerolinecolor": "#888888",
        "fixedrange": True,
        **more,
    }


def names_axis(names: Sequence[str]) -> Properties:
    """Return a vertical axis with names at 0, 1, 2, …, the first one on top."""
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
    """Return horizontal bars, each with the text that hovering shows."""
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
    """Return markers or lines, each point with the text that hovering shows."""
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
    """Return bars (row, length, text of hovering) of one colour and pattern; "" is a plain one."""
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
    """The part of a stacked bar that belongs to one cause of time."""

    y: int
    """Row of the bar, the first at the top."""
    name: str
    colour: str
    length: float
    hover: str
    """Text that hovering over the part shows."""


def labelled(name: str, count: int) -> Properties:
    """Return the properties that write a trace's name into each of ``count`` bars with enough room.

    The layout needs ``ROOM_FOR_NAMES``. Colours alone would not identify the traces.
    """
    return {
        "text": [plain(name)] * count,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def by_cause(parts: Sequence[CauseBar]) -> list[Bar]:
    """Return stacked bars, a trace for each cause; the one with the largest total comes first."""
    totals: dict[str, float] = {}
    for part in parts:
        totals[part.name] = totals.get(part.name, 0.0) + part.length
    traces = []
    for name in sorted(totals, key=lambda name: (-totals[name], name)):
        own = [part for part in parts if part.name == name]
        traces.append(
            bars(
                name,
                y=[part.y for part in own],
                x=[part.length for part in own],
                hover=[part.hover for part in own],
                color=own[0].colour,
                **labelled(name, len(own)),
            )
        )
    return traces


def rule(x: float, **line: Any) -> Properties:
    """Return a vertical line over the full height of the chart."""
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def note(text: str, **more: Any) -> Properties:
    """Return a text in the chart, without an arrow."""
    return {"text": text, "showarrow": False, **more}
