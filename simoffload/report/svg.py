"""Charts as SVG that needs no script: a figure of ``plotting``, drawn as wide as the page lets it.

Horizontal positions are per cent and vertical ones are pixels, so that text keeps its size at any width. The
name and the number of a bar are above it, where there is room at any width. A text that needs more room than
the part of a bar has is below the bar, with a square of its colour. Colours are classes, which follow the
colour scheme of the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from textwrap import wrap
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from simoffload.errors import printable
from simoffload.report.plotting import PALETTE, ChartAxis, greys_alike

Trace = Mapping[str, Any]
_TEXT, _SMALL, _BAR, _GAP = 19, 16, 16, 12
"""[px] of a line of text above a bar and of one at an axis; of a bar; between bars."""
_LETTER = 6.9
"""[px] of a letter of the charts' font: at most what it takes on average."""
_BOLD = 1.15
"""Width of a bold letter, relative to others."""
_NARROW = 376
"""[px] of the narrowest chart for which the layout is made, on a page of 420 px."""
_WIDTHS = (440, 560, 680, 800, 960)
"""[px] of charts from which a text is shown that needs so much room."""
_BESIDE = 18
"""Longest name [characters] that has a place at the left of its bar."""
_EDGE = 1.5
"""[px] of a line along a bar, and from its edge."""
_SEEN = 0.006
"""Smallest part of a chart's width that is named: our choice; tables have all."""
_LEAST = 2
"""[px] of a bar that would be too short to be seen."""
_SHORT = 0.006
"""Part of a chart's width below which a bar may be shorter than that."""
_PLOT = 260
"""[px] of the height of a chart of points."""


def drawn(figure: Mapping[str, Any], label: str) -> Markup:
    """Return a figure as a ``div``; ``label`` describes it for screen readers."""
    traces: list[Trace] = [dict(trace) for trace in figure["data"]]
    layout = figure["layout"]
    kinds = {trace["type"] for trace in traces}
    if "heatmap" in kinds:
        (heat,) = traces
        body = _heat_map(heat, layout)
    elif any(trace.get("orientation") == "h" for trace in traces) or not traces:
        body = _Rows(traces, layout).body()
    else:
        body = _points(traces, layout)
    style = f' class="chart beside-{body.left}"' if body.left else ' class="chart"'
    content = Markup("").join(body.parts)
    image = element(
        "svg", content, role="img", aria_label=printable(label), width="100%", height=_number(body.height)
    )
    return Markup('<div{}><div class="plot">{}</div></div>').format(Markup(style), image)


class _Body(NamedTuple):
    parts: list[Markup]
    height: float
    """[px]"""
    left: int = 0
    """[px] of the names at the left, in steps of ten."""


# -- elements ------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _percent(fraction: float) -> str:
    return f"{_number(round(100 * fraction, 3))}%"


def element(tag: str, content: Markup | str = "", /, **attributes: Any) -> Markup:
    """Return an element of SVG; "_" in names of attributes is "-", and None and "" are left out."""
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    kept = {name: value for name, value in given.items() if value not in (None, "")}
    texts = (Markup(' {}="{}"').format(name, value) for name, value in kept.items())
    return Markup("<{0}{1}>{2}</{0}>").format(tag, Markup("").join(texts), content)


def _text(text: str, x: str, y: float, **more: Any) -> Markup:
    return element("text", _plain(text), x=x, y=_number(y), **more)


def _plain(text: str) -> str:
    """Return the text of a figure, which may have tags for plotly, as lines of plain text."""
    return printable(text.replace("<br>", "; "))


def _titled(shape: Markup, hover: str) -> Markup:
    """Return a shape with the text that hovering over it shows."""
    return element("g", element("title", _plain(hover)) + shape) if hover else shape


def _line(x1: str, y1: float, x2: str, y2: float, class_: str, **more: Any) -> Markup:
    return element("line", x1=x1, y1=_number(y1), x2=x2, y2=_number(y2), class_=class_, **more)


def colour(value: str) -> str:
    """Return the name of a colour of the palette. Raises KeyError for any other colour."""
    return PALETTE[value].name


def _of(value: Any, index: int, default: Any = None) -> Any:
    """Return the value at a point, where all points may have the same one."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value[index]
    return default if value is None else value


def _shown_from(room: float, left: float = 0) -> int | None:
    """Return the width [px] of a chart from which a text is shown that needs ``room`` [px] of its width.

    ``left`` [px] are taken by the names. 0 is for any width, None for a text that is never shown.
    """
    room += left
    return 0 if room <= _NARROW else next((width for width in _WIDTHS if room <= width), None)


def _room(names: Iterable[str]) -> int:
    """Return the width [px] of names at the left, in steps of ten."""
    return min(150, 10 * (3 + int(max(map(len, names), default=0) * _LETTER) // 10))


def _from(width: int) -> str:
    return f"from-{width}" if width else ""


def stylesheet() -> Markup:
    """Return the rules that the classes of charts need: colours of both schemes, and container queries."""
    light = "".join(f"--{one.name}:{value};--on-{one.name}:{one.on};" for value, one in PALETTE.items())
    dark = "".join(f"--{one.name}:{one.dark};--on-{one.name}:{one.on_dark};" for one in PALETTE.values())
    names = [one.name for one in PALETTE.values()]
    fills = "".join(
        f".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}"
        f".chart .on-{name}{{fill:var(--on-{name})}}"
        for name in names
    )
    widths = "".join(
        f"@container (max-width:{width - 1}px){{.from-{width}{{display:none}}}}" for width in _WIDTHS
    )
    beside = "".join(f".beside-{size}>.plot{{margin-left:{size}px}}" for size in range(20, 160, 10))
    schemes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return Markup(schemes + fills + widths + beside)


_HATCHES = {"/": "M-2,2l4,-4M0,8l8,-8M6,10l4,-4", "x": "M0,0l8,8M8,0l-8,8", ".": "M3,4h2"}


def hatches() -> Markup:
    """Return the patterns that the charts of a page refer to."""
    patterns = Markup("").join(
        element(
            "pattern",
            element("path", d=path, stroke_width=2, stroke_opacity=0.75, class_="hatch"),
            id=_hatch(shape),
            patternUnits="userSpaceOnUse",
            width=8,
            height=8,
        )
        for shape, path in _HATCHES.items()
    )
    return element("svg", element("defs", patterns), width=0, height=0, aria_hidden="true", class_="hatches")


def _hatch(shape: str) -> str:
    return f"hatch-{list(_HATCHES).index(shape)}"


def _dash(line: Mapping[str, Any]) -> dict[str, str]:
    dashes = {"dash": "7 5", "dot": "2 4"}
    return {"stroke_dasharray": dashes[line["dash"]]} if line.get("dash") in dashes else {}


# -- horizontal bars -----------------------------------------------------------------------------


def _bar(
    trace: Trace, at: int, x: str, width: str, *, y: float, height: float = _BAR, edged: bool = False
) -> Markup:
    """Return a bar, hatched if it has a pattern; ``edged`` with lines along it, beside one of like grey."""
    marker = trace["marker"]
    pattern = marker.get("pattern") or {}
    shape = _of(pattern.get("shape"), at, "")
    opacity = _of(marker.get("opacity"), at)
    box = {"x": x, "y": _number(y), "width": width, "height": _number(height)}
    name = colour(_of(marker["color"], at))
    hollow = pattern.get("fillmode") == "replace"
    parts = [element("rect", **box, class_=f"hollow s-{name}" if hollow else f"f-{name}", opacity=opacity)]
    if shape:
        parts.append(element("rect", **box, fill=f"url(#{_hatch(shape)})", class_="over"))
    if edged:
        edges = (_number(y + place) for place in (_EDGE, height - 2 * _EDGE))
        parts += [element("rect", **{**box, "y": one, "height": _EDGE}, class_="edge") for one in edges]
    return Markup("").join(parts)


def _pattern(trace: Trace) -> str:
    """Return the shape of a hatch, on which no text can be read; "" for none."""
    return str(((trace.get("marker") or {}).get("pattern") or {}).get("shape") or "")


class _Rows:
    """_Rows are horizontal bars in rows, from the top, on a common axis at the bottom."""

    def __init__(self, traces: Sequence[Trace], layout: Mapping[str, Any]) -> None:
        self._traces, self._layout = traces, layout
        self._names = [printable(name.replace("<br>", " ")) for name in layout["yaxis"]["ticktext"]]
        notes: dict[int, str] = {}
        self._above: list[Mapping[str, Any]] = []
        for one in layout.get("annotations", ()):
            if one.get("yref") == "paper":
                self._above.append(one)
            else:
                notes[round(one["y"])] = _plain(one["text"].strip())
        self._notes = notes
        self._stacked = layout.get("barmode") == "stack"
        # Where the part of a bar begins that is hatched over the others, in which no text can be read.
        self._limits = {
            row: trace["base"][at]
            for trace in traces
            if trace["type"] == "bar" and (trace["marker"].get("pattern") or {}).get("fillmode") == "replace"
            for at, row in enumerate(trace["y"])
        }
        self._axis = ChartAxis.of(layout["xaxis"], self._ends())
        longest = max(map(len, self._names), default=0)
        self._beside = not notes and longest <= _BESIDE
        self._left = _room(self._names) if self._beside else 0
        self._edged = self._beside_like_greys()
        self._below = self._named_below()
        self._tops, self._bottom = self._placed()

    def _ends(self) -> list[float]:
        """Return where bars and their intervals begin and end."""
        found = [0.0] if not any("base" in trace for trace in self._traces) else []
        for trace in self._traces:
            for at, _, start, end in self._bars(trace):
                found += [start, end]
                found += [high for _, high in [_spread(trace, at, "x")] if high is not None]
        return found

    def _bars(self, trace: Trace) -> Iterator[tuple[int, int, float, float]]:
        """Yield the number of each bar of a trace, its row, start and end, on top of those before it."""
        starts = dict.fromkeys(range(len(self._names)), 0.0)
        if self._stacked and "base" not in trace:
            for other in self._traces:
                if other is trace:
                    break
                if other["type"] == "bar" and "base" not in other:
                    for row, length in zip(other["y"], other["x"], strict=True):
                        starts[row] += length
        for at, (row, length) in enumerate(zip(trace["y"], trace["x"], strict=True)):
            start = _of(trace["base"], at) if "base" in trace else starts[row]
            yield (at, row, length, length) if trace["type"] != "bar" else (at, row, start, start + length)

    def _beside_like_greys(self) -> set[tuple[int, int]]:
        """Return the parts of stacked bars, by numbers of trace and bar, that in grey print would look like
        the part before them."""
        rows: dict[int, list[tuple[float, int, int]]] = {}
        for number, trace in enumerate(self._traces if self._stacked else ()):
            for at, row, start, end in self._bars(trace):
                if trace["type"] == "bar" and end > start:
                    rows.setdefault(row, []).append((start, number, at))
        found = set[tuple[int, int]]()
        for parts in rows.values():
            for (_, *before), (_, *part) in pairwise(sorted(parts)):
                looks, others = (self._look(*one) for one in (before, part))
                if looks[1] == others[1] and greys_alike(looks[0], others[0]) and tuple(before) not in found:
                    found.add((part[0], part[1]))
        return found

    def _look(self, number: int, at: int) -> tuple[str, str]:
        """Return the colour of a part and its hatch."""
        marker = self._traces[number]["marker"]
        return _of(marker["color"], at), _of((marker.get("pattern") or {}).get("shape"), at, "")

    def _inside(self, row: int, text: str, low: float, high: float) -> float | None:
        """Return the middle of a text in a bar between two places; None where a narrow page has no room."""
        high = max(low, min(high, self._axis.at(self._limits.get(row, self._axis.high))))
        is_shown = high > low and _shown_from((len(text) + 1) * _LETTER / (high - low), self._left) == 0
        return (low + high) / 2 if is_shown else None

    def _named_below(self) -> list[list[list[tuple[str, str]]]]:
        """Return the lines below each bar: colours and names of the parts in which their names have no
        room, if they can be seen."""
        found: list[list[list[tuple[str, str]]]] = [[] for _ in self._names]
        longest = (_NARROW - self._left) / _LETTER
        for trace in self._traces:
            seen: dict[tuple[int, tuple[str, str]], float] = {}
            inside = set[int]()
            for at, row, start, end in self._bars(trace):
                text, (low, high) = _of(trace.get("text"), at, ""), self._between(start, end)
                if text:
                    part = colour(_of(trace["marker"]["color"], at)), text
                    seen[row, part] = seen.get((row, part), 0.0) + high - low
                if text and self._named(trace, at, row, low, high) is not None:
                    inside.add(row)
            for (row, part), length in seen.items():
                lines = found[row]
                if length < _SEEN or row in inside:
                    continue
                if not lines or sum(len(name) + 3 for _, name in (*lines[-1], part)) > longest:
                    lines.append([])
                lines[-1].append(part)
        return found

    def _between(self, start: float, end: float) -> tuple[float, float]:
        """Return the places of the ends of a bar, the left one first."""
        low, high = sorted((self._axis.at(start), self._axis.at(end)))
        return low, high

    def _named(self, trace: Trace, at: int, row: int, low: float, high: float) -> float | None:
        """Return the middle of the text in a bar; None where it has none, or it could not be read there."""
        text, pale = _of(trace.get("text"), at, ""), _of(trace["marker"].get("opacity"), at, 1) < 1
        return self._inside(row, text, low, high) if text and not pale and not _pattern(trace) else None

    def _lines(self, row: int) -> list[str]:
        """Return the name of a row and its number: on one line if there is room on a narrow page."""
        name, note = self._names[row], self._notes.get(row, "")
        if (_BOLD * len(name) + 1 + len(note)) * _LETTER <= _NARROW:
            return [f"{name}\n{note}"]
        lines = wrap(name, int(_NARROW / (_BOLD * _LETTER)), break_on_hyphens=False)
        return [*lines, f"\n{note}"] if note else lines

    def _placed(self) -> tuple[list[float], float]:
        """Return the top of each row's bar [px], and the bottom of the last one."""
        y, tops = (_SMALL + 4.0 if self._above else 4.0), []
        for row in range(len(self._names)):
            y += 0 if self._beside else _TEXT * len(self._lines(row))
            tops.append(y)
            y += _BAR + _SMALL * len(self._below[row]) + _GAP
        return tops, y

    def body(self) -> _Body:
        """Return all elements: the grid first, and the texts last."""
        bars = [one for number, trace in enumerate(self._traces) for one in self._drawn(number, trace)]
        parts = [*_grid_x(self._axis, self._bottom, self._left), *bars, *self._rules(), *self._texts()]
        return _Body(parts, self._bottom + 2 * _SMALL + 8, self._left)

    def _drawn(self, number: int, trace: Trace) -> Iterator[Markup]:
        """Yield the bars or marks of a trace, the texts in them and their intervals."""
        for at, row, start, end in self._bars(trace):
            low, high = self._between(start, end)
            hover, y = _of(trace.get("hovertext"), at, ""), self._tops[row]
            if trace["type"] != "bar":
                yield _titled(_mark(trace, _percent(high), y + _BAR / 2), hover)
                continue
            edged = (number, at) in self._edged
            yield _titled(_bar(trace, at, _percent(low), _percent(high - low), y=y, edged=edged), hover)
            if 0 < high - low < _SHORT and not self._stacked:
                yield _bar(trace, at, _percent(low), str(_LEAST), y=y)
            middle = self._named(trace, at, row, low, high)
            if middle is not None:
                on = f"in on-{colour(_of(trace['marker']['color'], at))}"
                yield _text(
                    _of(trace["text"], at), _percent(middle), y + 12.5, class_=on, text_anchor="middle"
                )
            yield from self._interval(trace, at, y)

    def _interval(self, trace: Trace, at: int, y: float) -> Iterator[Markup]:
        low, high = _spread(trace, at, "x")
        if low is None or high is None:
            return
        middle, ends = y + _BAR / 2, [_percent(self._axis.at(one)) for one in (low, high)]
        yield _line(ends[0], middle, ends[1], middle, "interval")
        for end in ends:
            yield _line(end, middle - 5, end, middle + 5, "interval")

    def _rules(self) -> Iterator[Markup]:
        for shape in self._layout.get("shapes", ()):
            x, line = _percent(self._axis.at(shape["x0"])), shape["line"]
            yield _line(x, 0, x, self._bottom, f"rule s-{colour(line['color'])}", **_dash(line))

    def _texts(self) -> Iterator[Markup]:
        for row, top in enumerate(self._tops):
            for number, parts in enumerate(self._below[row], 1):
                spans = (
                    element("tspan", "■", class_=f"f-{shade}") + escape(f" {_plain(name)}  ")
                    for shade, name in parts
                )
                place = {"x": 0, "y": _number(top + _BAR + _SMALL * number - 3), "class_": "tick below"}
                yield element("text", Markup("").join(spans), **place)
            if self._beside:
                yield _text(self._names[row], "0", top + 12.5, dx=-8, text_anchor="end")
                continue
            lines = self._lines(row)
            for number, line in enumerate(lines):
                name, _, note = line.partition("\n")
                strong = element("tspan", name, class_="name") if name else Markup("")
                rest = element("tspan", f"{' ' if name else ''}{note}") if note else Markup("")
                y = top - _TEXT * (len(lines) - number) + 14
                yield element("text", strong + rest, x=0, y=_number(y))
        for one in self._above:
            at = self._axis.at(one["x"])
            anchor = "end" if at > 0.6 else "start" if at < 0.3 else "middle"
            yield _text(one["text"], _percent(at), 13, text_anchor=anchor)


def _spread(trace: Trace, at: int, along: str) -> tuple[float | None, float | None]:
    """Return the ends of the interval of a point; None if it has none."""
    error = trace.get(f"error_{along}")
    if not error:
        return None, None
    value = trace[along][at]
    return value - error["arrayminus"][at], value + error["array"][at]


def _grid_x(axis: ChartAxis, bottom: float, left: float, *, lines: bool = True) -> Iterator[Markup]:
    """Yield vertical lines of the grid, the ticks below them and the title of the axis."""
    marks = [(axis.at(value), text) for value, text in axis.ticks]
    need = max((len(text) + 2 for _, text in marks), default=0) * _LETTER
    gap = min((b - a for (a, _), (b, _) in pairwise(marks)), default=1.0)
    every = max(1, -int(-need // (gap * (_NARROW - left))))
    full = _shown_from(need / gap, left)
    for number, (at, text) in enumerate(marks):
        hidden = "" if number % every == 0 else "never" if full is None else _from(full)
        x = _percent(at)
        if lines:
            yield _line(x, 0, x, bottom, "grid")
        anchor = "end" if at > 0.97 else "start" if at < 0.03 else "middle"
        yield _text(text, x, bottom + 14, class_=f"tick {hidden}".strip(), text_anchor=anchor)
    yield _text(axis.title, "0", bottom + _SMALL + 16, class_="tick")


# -- points and cells ----------------------------------------------------------------------------


def _mark(trace: Trace, x: str, y: float) -> Markup:
    """Return a marker: a circle or a diamond, filled or open."""
    marker = trace.get("marker") or {}
    name = colour(marker.get("color") or trace["line"]["color"])
    symbol, radius = marker.get("symbol", "circle"), marker.get("size", 8) / 2
    paint = f"hollow s-{name}" if symbol.endswith("open") else f"f-{name}"
    if not symbol.startswith("diamond"):
        return element("circle", cx=x, cy=_number(y), r=_number(radius), class_=paint)
    path = f"M0,{-radius}L{radius},0L0,{radius}L{-radius},0Z"
    return element("svg", element("path", d=path, class_=paint), x=x, y=_number(y), class_="mark")


def _points(traces: Sequence[Trace], layout: Mapping[str, Any]) -> _Body:
    """Draw lines and markers between two axes."""
    along = ChartAxis.of(layout["xaxis"], [x for trace in traces for x in trace["x"]])
    ends = [end for trace in traces for at in range(len(trace["y"])) for end in _spread(trace, at, "y")]
    values = [y for trace in traces for y in trace["y"]] + [end for end in ends if end is not None]
    up = ChartAxis.of(layout["yaxis"], values)
    top = _SMALL + 8.0

    def height(value: float) -> float:
        return top + _PLOT * (1 - up.at(value))

    left = _room(text for _, text in up.ticks)
    parts = list(_grid_x(along, top + _PLOT, left))
    for value, text in up.ticks:
        parts.append(_line("0", height(value), "100%", height(value), "grid"))
        parts.append(_text(text, "0", height(value) + 4, dx=-8, class_="tick", text_anchor="end"))
    for shape in layout.get("shapes", ()):
        place, line = _percent(along.at(shape["x0"])), shape["line"]
        parts.append(_line(place, top, place, top + _PLOT, f"rule s-{colour(line['color'])}", **_dash(line)))
    named = list[tuple[float, float, str]]()
    for trace in traces:
        if trace.get("fill"):
            corners = [(along.at(x), height(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
            parts.append(_area(trace, corners, top + _PLOT))
            continue
        places = [(along.at(x), height(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
        parts += _connected(trace, places)
        for at, (x, y) in enumerate(places):
            low, high = _spread(trace, at, "y")
            if low is not None and high is not None:
                parts.append(_line(_percent(x), height(low), _percent(x), height(high), "interval"))
            if "markers" in trace["mode"]:
                parts.append(_titled(_mark(trace, _percent(x), y), _of(trace.get("hovertext"), at, "")))
            if text := _of(trace.get("text"), at, ""):
                above = str(trace.get("textposition", "")).startswith("top")
                named.append((x, y - 9 if above else y + 16, text))
    for number, one in enumerate(layout.get("annotations", ())):
        named.append((along.at(one["x"]), top + 14 + _SMALL * number, one["text"]))
    parts += _apart(named, top + _PLOT)
    parts.append(_text(up.title, "0", 12, class_="tick"))
    return _Body(parts, top + _PLOT + 2 * _SMALL + 8, left)


def _apart(named: Iterable[tuple[float, float, str]], bottom: float) -> Iterator[Markup]:
    """Yield names beside points, each [fraction of the width, px]: to the middle of the chart, above its
    ``bottom`` [px], and below or else above those that they would overlap."""
    taken: list[tuple[float, float, float]] = []
    for x, wanted, text in sorted(named, key=lambda one: one[1]):
        need = (_BOLD * len(text) * _LETTER + 9) / _NARROW
        start, end = (x - need, x) if x > 0.5 else (x, x + need)
        rows = [there for low, high, there in taken if low < end and start < high]
        below = (wanted + _SMALL / 2 * step for step in count())
        y = next(one for one in below if all(abs(one - there) >= _SMALL for there in rows))
        if y > bottom - 4:
            y = min((bottom - 4, *(there - _SMALL for there in rows)))
        taken.append((start, end, y))
        side = {"dx": -9, "text_anchor": "end"} if x > 0.5 else {"dx": 9}
        yield _text(text, _percent(x), y, class_="name", **side)


def _area(trace: Trace, ends: Sequence[tuple[float, float]], bottom: float) -> Markup:
    """Return a filled area between places [fraction of the width, px] in a chart that ends at ``bottom``."""
    corners = " ".join(f"{_number(100 * x)},{_number(y)}" for x, y in ends)
    box = {"width": "100%", "height": _number(bottom), "viewBox": f"0 0 100 {_number(bottom)}"}
    area = element(
        "polygon", points=corners, class_=f"f-{colour(trace['fillcolor'])}", opacity=trace["opacity"]
    )
    return element("svg", area, **box, preserveAspectRatio="none")


def _connected(trace: Trace, places: Sequence[tuple[float, float]]) -> Iterator[Markup]:
    if "lines" not in trace["mode"]:
        return
    line = trace.get("line") or {}
    name = colour(line.get("color") or trace["marker"]["color"])
    for (x1, y1), (x2, y2) in pairwise(places):
        yield _line(_percent(x1), y1, _percent(x2), y2, f"line s-{name}", **_dash(line))


def _heat_map(trace: Trace, layout: Mapping[str, Any]) -> _Body:
    """Draw a table whose cells are the darker, the larger their value is; empty cells have none."""
    columns, rows = [_plain(str(one)) for one in trace["x"]], [_plain(str(one)) for one in trace["y"]]
    known = [value for row in trace["z"] for value in row if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    width, height, left = 1 / len(columns), 30, _room(rows)
    parts = []
    for row, values in enumerate(trace["z"]):
        for column, value in enumerate(values):
            text, x, y = trace["text"][row][column], column * width, row * height
            box = {"x": _percent(x), "y": y, "width": _percent(width), "height": height}
            share = 0.0 if value is None else 0.12 + 0.5 * ((value - low) / (high - low) if high > low else 1)
            cell = element("rect", **box, class_="cell f-blue", fill_opacity=_number(share))
            parts.append(_titled(cell, _of(_of(trace.get("hovertext"), row, ""), column, "")))
            if (shown := _shown_from((len(text) + 1) * _LETTER / width, left)) is not None:
                middle = _percent(x + width / 2)
                parts.append(_text(text, middle, y + 19, class_=f"in {_from(shown)}", text_anchor="middle"))
    bottom = len(rows) * height
    for row, name in enumerate(rows):
        parts.append(_text(name, "0", row * height + 19, dx=-8, class_="tick", text_anchor="end"))
    ticks = tuple(((column + 0.5) * width, name) for column, name in enumerate(columns))
    title = f"{layout['xaxis']['title']['text']}; rows: {layout['yaxis']['title']['text']}"
    parts += _grid_x(ChartAxis(0, 1, title, ticks), bottom, left, lines=False)
    return _Body(parts, bottom + 2 * _SMALL + 8, left)
