"""Figures of reports, as a page draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
