"""Drawings as SVG text: the few shapes that plots need, with the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

__all__ = ["Axis", "Drawing", "linear_ticks", "log_ticks"]

Point = tuple[float, float]
_FONT = "font-family='Helvetica, Arial, sans-serif'"


class Axis(NamedTuple):
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    """Pixel of ``low``."""
    end: float
    """Pixel of ``high``."""
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        place = (log10(value) if self.log else value) - low
        return self.start + (self.end - self.start) * place / (high - low)


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two values above zero."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]


def linear_ticks(low: float, high: float, *, about: int = 6) -> list[float]:
    """Round values between two, about as many as asked for."""
    raw = (high - low) / about
    unit = 10.0 ** floor(log10(raw))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= raw)
    return [number * step for number in range(ceil(low / step), floor(high / step) + 1)]


class Drawing:
    """Shapes on a white ground; lengths in pixels, the origin at the top left."""

    def __init__(self, width: int, height: int, *, title: str) -> None:
        self._size, self._title = (width, height), title
        self._shapes: list[str] = []

    def line(self, start: Point, end: Point, *, color: str, width: float = 1.0) -> None:
        """A straight line."""
        self.path([start, end], color=color, width=width)

    def path(self, points: Sequence[Point], *, color: str, width: float = 1.5, dashed: bool = False) -> None:
        """Straight lines from point to point."""
        dash = " stroke-dasharray='6 4'" if dashed else ""
        self._shapes.append(
            f"<polyline points='{_points(points)}' fill='none' stroke='{color}' "
            f"stroke-width='{_number(width)}'{dash}/>"
        )

    def area(self, points: Sequence[Point], *, color: str) -> None:
        """A filled polygon."""
        self._shapes.append(f"<polygon points='{_points(points)}' fill='{color}'/>")

    def dot(
        self, at: Point, *, color: str, radius: float = 4.0, filled: bool = True, title: str = ""
    ) -> None:
        """A circle; ``title`` appears when the mouse is on it."""
        x, y = map(_number, at)
        self._mark(f"<circle cx='{x}' cy='{y}' r='{_number(radius)}'", color, filled, title)

    def square(self, at: Point, *, color: str, filled: bool = True, title: str = "") -> None:
        """A square around a point."""
        x, y, side = (_number(value) for value in (at[0] - 3.6, at[1] - 3.6, 7.2))
        self._mark(f"<rect x='{x}' y='{y}' width='{side}' height='{side}'", color, filled, title)

    def cross(self, at: Point, *, color: str) -> None:
        """Two short lines."""
        x, y = at
        for way in (3.0, -3.0):
            start, end = (x - 3.0, y - way), (x + 3.0, y + way)
            self.line(start, end, color=color, width=1.2)

    def text(
        self,
        at: Point,
        words: str,
        *,
        size: int = 12,
        anchor: str = "start",
        turned: bool = False,
    ) -> None:
        """A line of text; ``anchor`` is start, middle or end; ``turned`` = read from below."""
        x, y = map(_number, at)
        turn = f" transform='rotate(-90 {x} {y})'" if turned else ""
        self._shapes.append(
            f"<text x='{x}' y='{y}' {_FONT} font-size='{size}' text-anchor='{anchor}' fill='#333'{turn}>"
            f"{escape(words)}</text>"
        )

    def frame(self, x: Axis, y: Axis) -> None:
        """The rectangle that two axes span."""
        corners = [(x.start, y.start), (x.end, y.start), (x.end, y.end), (x.start, y.end), (x.start, y.start)]
        self.path(corners, color="#666", width=1)

    def grid_x(self, x: Axis, y: Axis, ticks: Iterable[float], *, labels: bool = True) -> None:
        """Vertical lines at the ticks, with their numbers below."""
        for tick in ticks:
            self.line((x(tick), y.start), (x(tick), y.end), color="#e4e4e4")
            if labels:
                self.text((x(tick), y.start + 16), _label(tick), size=11, anchor="middle")

    def grid_y(self, x: Axis, y: Axis, ticks: Iterable[float], *, unit: str = "") -> None:
        """Horizontal lines at the ticks, with their numbers to the left."""
        for tick in ticks:
            self.line((x.start, y(tick)), (x.end, y(tick)), color="#e4e4e4")
            self.text((x.start - 6, y(tick) + 4), f"{_label(tick)}{unit}", size=11, anchor="end")

    def __str__(self) -> str:
        width, height = self._size
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}' role='img' aria-label={quoteattr(self._title)}>"
        )
        ground = f"<rect width='{width}' height='{height}' fill='#ffffff'/>"
        return "\n".join((head, f"<title>{escape(self._title)}</title>", ground, *self._shapes, "</svg>\n"))

    def _mark(self, shape: str, color: str, filled: bool, title: str) -> None:
        style = f"fill='{color if filled else '#ffffff'}' stroke='{color}' stroke-width='1.4'"
        inner = f"<title>{escape(title)}</title>" if title else ""
        self._shapes.append(f"{shape} {style}>{inner}</{shape[1:].split(' ', 1)[0]}>")


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
