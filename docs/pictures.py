"""Static pictures of the charts in the notebooks, which are interactive when a notebook is run."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.rcParams |= {
    "svg.hashsalt": "simoffload",
    "svg.fonttype": "none",  # text stays text
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def svg(figure: Mapping[str, Any]) -> str:
    """Return a plotly figure of bars, lines and points, or of one heat map, as SVG.

    Raises ValueError for other kinds of traces.
    """
    layout, traces = figure["layout"], figure["data"]
    drawn = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = drawn.add_subplot()
    for axis, scale, label in (
        ("xaxis", axes.set_xscale, axes.set_xlabel),
        ("yaxis", axes.set_yscale, axes.set_ylabel),
    ):
        about = layout.get(axis, {})
        scale("log" if about.get("type") == "log" else "linear")
        label(about.get("title", {}).get("text", ""))
    axes.set_title(layout.get("title", {}).get("text", ""))
    bars = [trace for trace in traces if trace["type"] == "bar"]
    if bars:
        _bars(axes, bars, grouped=layout.get("barmode") == "group")
    for trace in traces:
        if trace["type"] == "heatmap":
            _heat_map(axes, trace)
        elif trace["type"] == "scatter":
            lines, points = ("lines" in trace.get("mode", "lines"), "markers" in trace.get("mode", ""))
            style = {"linestyle": "-" if lines else "", "marker": "o" if points else None}
            axes.plot(_values(trace["x"]), _values(trace["y"]), label=trace.get("name"), **style)
        elif trace not in bars:
            raise ValueError(f"no picture of a chart of kind {trace['type']}")
    for shape in layout.get("shapes", ()):
        if shape["y0"] == shape["y1"]:
            axes.axhline(shape["y0"], linestyle=":", color="gray")
    for note in layout.get("annotations", ()):
        axes.annotate(
            note["text"], (0.99, note["y"]), xycoords=("axes fraction", "data"), ha="right", va="bottom"
        )
    if len([trace for trace in traces if trace.get("name")]) > 1:
        drawn.legend(loc="outside right upper", frameon=False)
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("?>\n")[2]


def _values(data: Any) -> Any:
    """Return a list, or the array that plotly encodes in base 64."""
    if not isinstance(data, Mapping):
        return data
    found = np.frombuffer(base64.b64decode(data["bdata"]), dtype=data["dtype"])
    return found.reshape([int(part) for part in str(data.get("shape", found.size)).split(",")])


def _bars(axes: Axes, traces: list[Any], *, grouped: bool) -> None:
    """Draw bars beside or upon each other, the first category at the top or left."""
    flat = traces[0].get("orientation") == "h"
    names, numbers = ("y", "x") if flat else ("x", "y")
    places = list(dict.fromkeys(str(name) for trace in traces for name in _values(trace[names])))
    width, ends = 0.8 / (len(traces) if grouped else 1), np.zeros(len(places))
    for number, trace in enumerate(traces):
        sizes = np.zeros(len(places))
        for name, size in zip(_values(trace[names]), _values(trace[numbers]), strict=True):
            sizes[places.index(str(name))] += size
        at = np.arange(len(places)) + (number - (len(traces) - 1) / 2) * width * grouped
        draw, beside = (axes.barh, "left") if flat else (axes.bar, "bottom")
        draw(at, sizes, width, label=trace.get("name"), **({} if grouped else {beside: ends}))
        ends += sizes
    (axes.set_yticks if flat else axes.set_xticks)(range(len(places)), places)
    if flat:
        axes.invert_yaxis()


def _heat_map(axes: Axes, trace: Mapping[str, Any]) -> None:
    """Draw a table of numbers, each on a field of its colour."""
    numbers = np.asarray(_values(trace["z"]), dtype=float)
    axes.imshow(numbers, aspect="auto", cmap="Blues", alpha=0.7)
    axes.set_xticks(range(numbers.shape[1]), [str(name) for name in _values(trace["x"])])
    axes.set_yticks(range(numbers.shape[0]), [str(name) for name in _values(trace["y"])])
    for (row, column), value in np.ndenumerate(numbers):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center")
