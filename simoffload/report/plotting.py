"""Colours, axes and traces that all charts share.

A chart is plain data in plotly's schema, which ``svg`` draws; plotly is imported only where somebody asks for
its figure. The colours are
those of Okabe and Ito, "Color Universal Design" (2008), which people with red-green blindness can
distinguish, and darker shades of them for backward and optimizer. Labels or tables repeat the information of
colours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

from simoffload.results import HeldKind
from simoffload.schedule import Cause, CauseKind
from simoffload.units import format_number

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Properties = Mapping[str, Any]
"""A part of a plotly figure: a trace, an axis, a line, a text; or the figure itself."""

BLACK, GREY = "#000000", "#999999"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
DARK_BLUE, DARK_GREEN, DARK_PURPLE = "#003A5C", "#00563F", "#7A3F62"
DARK_GREY, DARK_ORANGE, DARK_YELLOW = "#555555", "#7A4F00", "#A39A00"
LIGHT_GREEN = "#8FCFB5"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY, BLACK)


class Colour(NamedTuple):
    """A Colour is the name of a colour, its shade on a dark page, and those of text on both."""

    name: str
    dark: str
    on: str = "#000000"
    on_dark: str = "#000000"


_WHITE = "#FFFFFF"
PALETTE: Mapping[str, Colour] = {
    BLACK: Colour("black", "#E0E0E0", _WHITE),
    GREY: Colour("grey", GREY),
    ORANGE: Colour("orange", ORANGE),
    SKY: Colour("sky", SKY),
    GREEN: Colour("green", "#00B487"),
    YELLOW: Colour("yellow", YELLOW),
    BLUE: Colour("blue", "#1E88CC", _WHITE),
    VERMILION: Colour("vermilion", "#F07A1F"),
    PURPLE: Colour("purple", PURPLE),
    DARK_BLUE: Colour("dark-blue", "#9CCBEB", _WHITE),
    DARK_GREEN: Colour("dark-green", "#A5E0CB", _WHITE),
    DARK_PURPLE: Colour("dark-purple", "#EBC4DB", _WHITE),
    DARK_GREY: Colour("dark-grey", "#C4C4C4", _WHITE),
    DARK_ORANGE: Colour("dark-orange", "#C79A45", _WHITE),
    DARK_YELLOW: Colour("dark-yellow", "#C9C05A"),
    LIGHT_GREEN: Colour("light-green", "#5FAF90"),
}
"""Colours of all charts; on a dark page most are lighter. Text on them has a contrast of 4.5 or more."""
_CAUSES: Mapping[CauseKind, str] = {
    "host-thread": GREY,
    "update-wait": DARK_ORANGE,
    "gpu-compute": GREEN,
    "gpu-optimizer": DARK_ORANGE,
    "gpu-gradients": DARK_GREEN,
    "gathered-copies": LIGHT_GREEN,
    "in-place": BLUE,
    "host-to-gpu": BLUE,
    "gpu-to-host": DARK_BLUE,
    "gpu-to-gpu": PURPLE,
    "stage-to-stage": PURPLE,
    "all-gather": PURPLE,
    "all-reduce": DARK_PURPLE,
    "gradient-reduction": DARK_PURPLE,
    "broadcast": PURPLE,
    "column-broadcast": DARK_PURPLE,
    "read": VERMILION,
    "write": ORANGE,
    "mapped-copies": BLUE,
    "host-copies": DARK_GREY,
    "new-pages": GREY,
    "new-pinned-memory": GREY,
    "page-cache-entry": DARK_GREY,
    "crc32": DARK_YELLOW,
    "cpu-work": BLACK,
    "cpu-adam": BLACK,
    "cpu-adamw": BLACK,
    "cpu-casts": DARK_GREY,
    "cpu-overflow-check": DARK_YELLOW,
    "cpu-attention": BLACK,
    "cpu-products": BLACK,
    "cache-stores": SKY,
    "tensor-loops": DARK_GREY,
    "to-io-buffer": DARK_GREY,
    "to-array": DARK_GREY,
    "to-snapshot": DARK_GREY,
    "to-optimizer": DARK_GREY,
    "to-page-cache": SKY,
    "from-page-cache": DARK_GREY,
    "file-to-file": DARK_GREY,
    "own": BLUE,
}
_HELD: Mapping[HeldKind, tuple[str, ...]] = {
    "weights": (BLUE, DARK_BLUE),
    "optimizer": (DARK_ORANGE, ORANGE),
    "cache": (SKY,),
    "activations": (GREEN, DARK_GREEN),
    "checkpoints": (LIGHT_GREEN,),
    "staging": (PURPLE, DARK_PURPLE),
    "working": (GREY, YELLOW, DARK_GREY, DARK_YELLOW, BLACK),
}
_NAMED = {
    "page-locked memory that PyTorch keeps after start-up": DARK_YELLOW,
    "buffers of the graph": LIGHT_GREEN,
}
"""Colours of names that are of several kinds."""
_APART = 1.5
"""Contrast from which two shades of grey are told apart: our choice."""
_PHASES = {"forward": GREEN, "backward": DARK_GREEN, "optimizer": DARK_ORANGE}
CHANGES = {"hardware": BLUE, "placement": GREEN, "workload": ORANGE, "setting": PURPLE}
"""Colour of each kind of change."""

_TICKS = 5
"""Largest number of intervals between ticks."""


def round_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high`` at equal distances of 1, 2 or 5 and a power of ten."""
    if high <= low:
        return [low]
    exponent = floor(log10((high - low) / _TICKS))
    steps = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    step = next(one for one in steps if (high - low) / one <= _TICKS)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two numbers, with some multiples of them where there are few."""
    powers, decades = range(floor(log10(low)), ceil(log10(high)) + 1), log10(high / low)
    factors = (1, 2, 3, 4, 6, 8) if decades < 1.3 else (1, 2, 5) if decades < 3 else (1,)
    every = max(1, len(powers) // (_TICKS + 1))
    found = [factor * 10.0**power for power in powers[::every] for factor in factors]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


class ChartAxis(NamedTuple):
    """A ChartAxis maps values to fractions of its length, and has ticks at round numbers."""

    low: float
    high: float
    title: str
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    @classmethod
    def of(cls, layout: Properties, values: Sequence[float]) -> Self:
        """Return the axis that a layout describes, long enough for ``values`` where it has no range."""
        log = layout.get("type") == "log"
        low, high = min(values, default=0.0), max(values, default=1.0)
        given = layout.get("range")
        if given is not None:
            low, high = (10.0**end for end in given) if log else given
        elif log:
            low, high = low / 1.1, high * 1.1
        else:
            room = 0.04 * (high - low) or 0.5
            if layout.get("rangemode") == "tozero":
                low = min(0.0, low)
            low, high = low - (room if low else 0.0), high + room
        if (ticks := layout.get("tickvals")) is None:
            ticks = _log_ticks(low, high) if log else round_ticks(low, high)
        texts = layout.get("ticktext") or [_formatted(value, layout.get("tickformat", "")) for value in ticks]
        title = layout["title"]["text"] + (" (logarithmic)" if log else "")
        return cls(low, high, title, tuple(zip(ticks, texts, strict=True)), log)

    def at(self, value: float) -> float:
        """Return the place of a value, from 0 to 1."""
        if self.logarithmic:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))


def _formatted(value: float, form: str) -> str:
    """Return the text of a tick, in per cent if its format is."""
    if not form.endswith("%"):
        return format_number(value).replace("-", "−")
    sign = "+" if form.startswith("+") and value > 0 else ""
    return f"{sign}{format_number(round(100 * value, 6))} %".replace("-", "−")


_BAR = 0.7
"""Width of a bar, in rows; by default plotly makes it depend on the gaps between the bars of one colour."""
_ROW, _FRAME = 34, 98
"""[px] of a bar with its gap; around the bars: axis, its title, margins."""
ROOM_FOR_NAMES: Properties = {"minsize": 11, "mode": "hide"}
"""``uniformtext`` of a layout whose bars contain names: all have the same size or are hidden."""
_LONGEST_NAME = 34


def plain(text: str) -> str:
    """Return a name without the characters that plotly would read as HTML tags."""
    return text.replace("<", "‹").replace(">", "›")


def wrapped(name: str) -> str:
    """Return a name in lines that leave room for the chart, for plotly."""
    return "<br>".join(wrap(plain(name), _LONGEST_NAME, break_on_hyphens=False)) or plain(name)


def cause_colour(cause: Cause) -> str:
    """Return the colour of a cause of time, the same in every chart."""
    if cause.moves_cache:
        return SKY
    if cause.memory == "never written":
        return BLUE
    if cause.memory == "pageable":
        return DARK_YELLOW if cause.kind == "gpu-to-host" else YELLOW
    return _CAUSES[cause.kind]


def held_colour(name: str, kind: HeldKind) -> str:
    """Return the colour of something that tiers hold, the same in every chart: a shade of its kind's."""
    return _NAMED.get(name) or _shade(name, _HELD[kind])


def phase_colour(name: str) -> str:
    """Return the colour of a phase of a step, the same in every chart."""
    return _PHASES.get(name) or _shade(name, [one for one in CYCLE if one not in _PHASES.values()])


def _shade(name: str, shades: Sequence[str]) -> str:
    """Return the shade that a name always has, whatever numbers are in its brackets."""
    return shades[crc32(name.partition(" (")[0].encode()) % len(shades)]


def greys_alike(one: str, other: str) -> bool:
    """Return whether two colours can hardly be told apart where they are printed in grey."""
    light, dark = sorted(map(_luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05) < _APART


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2, "relative luminance")."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def height(rows: int, *, row: float = _ROW) -> float:
    """Return the height [px] of a chart with so many horizontal bars."""
    return _FRAME + row * max(2, rows)


def figure(data: Sequence[Properties], height: float, **more: Any) -> Properties:
    """Return a figure ``height`` [px] high; ``more`` are keys of its layout."""
    layout = {
        "template": "none",
        "height": height,
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hoverlabel": {"align": "left", "namelength": -1},
        "margin": {"l": 10, "r": 20, "t": 24, "b": 44},
        "bargap": 0.3,
        **more,
    }
    return {"data": list(data), "layout": layout}


def of_plotly(chart: Properties) -> Figure:
    """Return a chart as a figure of plotly."""
    from plotly.graph_objects import Figure

    return Figure(chart)


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


def seconds_axis(title: str, most: float, **more: Any) -> Properties:
    """Return an axis of times [s] from 0 to ``most`` with ticks in the unit that suits them."""
    unit, scale = next(
        (one for one in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if most >= 2 * one[1]), ("ns", 1e-9)
    )
    ticks = round_ticks(0, most / scale)
    texts = [format_number(value) for value in ticks]
    values = [value * scale for value in ticks]
    return axis(f"{title} [{unit}]", range=[0, 1.02 * most], tickvals=values, ticktext=texts, **more)


def names_axis(names: Sequence[str]) -> Properties:
    """Return a vertical axis with names at 0, 1, 2, …, the first one on top."""
    return axis(
        autorange="reversed",
        showgrid=False,
        zeroline=False,
        ticklabelstandoff=6,
        tickvals=list(range(len(names))),
        ticktext=[wrapped(name) for name in names],
    )


def bars(
    name: str, *, y: Sequence[int], x: Sequence[float], hover: Sequence[str], color: Any, **more: Any
) -> Properties:
    """Return horizontal bars, each with the text that hovering shows."""
    marker = {"color": color, **more.pop("marker", {})}
    trace = _trace("bar", name, x=x, y=y, hover=hover)
    return {**trace, "orientation": "h", "marker": marker, **more}


def _trace(
    kind: str, name: str, *, x: Sequence[float], y: Sequence[float], hover: Sequence[str]
) -> Properties:
    texts = {"hovertext": list(hover), "hoverinfo": "text"}
    return {"type": kind, "name": plain(name), "x": list(x), "y": list(y), **texts}


def points(
    name: str,
    *,
    x: Sequence[float],
    y: Sequence[float],
    hover: Sequence[str],
    mode: str = "markers",
    **more: Any,
) -> Properties:
    """Return markers or lines, each point with the text that hovering shows."""
    return {**_trace("scatter", name, x=x, y=y, hover=hover), "mode": mode, **more}


def band(name: str, *, x: Sequence[float], ends: Sequence[tuple[float, float]], color: str) -> Properties:
    """Return the area between two ends at each place, such as an interval around a line."""
    low, high = zip(*ends, strict=True)
    there = {"x": [*x, *reversed(x)], "y": [*low, *reversed(high)], "hoverinfo": "skip"}
    filled = {"mode": "none", "fill": "toself", "fillcolor": color, "opacity": 0.2}
    return {"type": "scatter", "name": plain(name), **there, **filled}


def number_axis(title: str, texts: Sequence[str]) -> tuple[Properties, list[float]] | None:
    """Return an axis for values that are written as numbers with one unit, and the values; logarithmic if
    these are far apart. None for other values."""
    found = [_NUMBER.fullmatch(one) for one in texts]
    units = {one["unit"] for one in found if one}
    if not all(found) or len(units) != 1:
        return None
    values = [float(one["number"].replace(",", "")) for one in found if one]
    unit = units.pop()
    is_wide = min(values) > 0 and max(values) >= _WIDE * min(values)
    return axis(f"{title} [{unit}]" if unit else title, **({"type": "log"} if is_wide else {})), values


_NUMBER = re.compile(r"(?P<number>-?[0-9][0-9,]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?) ?(?P<unit>\S*)")
_WIDE = 20
"""Ratio of the largest to the smallest value from which an axis is logarithmic: our choice."""


def hatched(name: str, marks: Sequence[tuple[int, float, str]], *, color: str, shape: str) -> Properties:
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


def by_cause(parts: Sequence[CauseBar]) -> list[Properties]:
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


def at_one(text: str, count: int, place: int) -> Properties:
    """Return the properties that write a text at one of ``count`` bars or points of a trace, such as the end
    of a line."""
    texts = [""] * count
    if count:
        texts[place] = plain(text)
    return {"text": texts}


def note(text: str, **more: Any) -> Properties:
    """Return a text in the chart, without an arrow."""
    return {"text": text, "showarrow": False, **more}


def beside(row: int, x: float, text: str) -> Properties:
    """Return the text of a row, which is written beside or above its bar."""
    return note(f" {text}", x=x, y=row, xanchor="left")
