"""Charts of a stream of requests: what keeps the limits over the load, and requests over time."""

from __future__ import annotations

from math import isfinite
from typing import Any

from simoffload.extensions.serving.streams import StreamResult
from simoffload.report import plotting as draw
from simoffload.report.charts import HEIGHT
from simoffload.units import format_number, format_seconds, percent

_MARGIN = 1.1
"""Factor by which a logarithmic axis goes on beyond its values."""


def within_limits(found: StreamResult) -> draw.Properties:
    """Draw the share of requests that keep all limits over the load, with its interval by replications as a
    band, the share that has to as a dotted line, and the interval of the largest load."""
    tried, attain = found.trials, found.options.slo.attain
    loads = [one.load for one in tried]
    hover = [f"{format_number(one.load)} {found.unit}: {percent(one.attained.value)}" for one in tried]
    ends = [(max(0.0, one.attained.low), min(1.0, one.attained.high)) for one in tried]
    known = all(map(isfinite, (end for pair in ends for end in pair)))
    needed = draw.at_one(f"{percent(attain)} must keep the limits", 2, 1)
    lines: dict[str, Any] = {
        "x": [loads[0], loads[-1]],
        "y": [attain] * 2,
        "hover": ["limit"] * 2,
        "mode": "lines+text",
    }
    data = [
        *([draw.band("interval", x=loads, ends=ends, color=draw.BLUE)] if known and len(loads) > 1 else []),
        draw.points(
            "within limits",
            x=loads,
            y=[one.attained.value for one in tried],
            hover=hover,
            mode="lines+markers",
            line={"color": draw.BLUE},
        ),
        draw.points("limit", **lines, line={"color": draw.BLACK, "dash": "dot"}, **needed),
    ]
    between, texts = found.capacity or (), ("80 % interval from here", "to here")
    return draw.figure(
        data,
        HEIGHT,
        showlegend=False,
        xaxis=draw.axis(found.unit, type="log"),
        yaxis=draw.axis("requests within limits", rangemode="tozero", tickformat=".0%"),
        shapes=[draw.rule(one, color=draw.VERMILION, dash="dot") for one in between if one > 0],
        annotations=[
            draw.note(text, x=one)
            for one, text in zip(between, texts, strict=False)
            if one >= loads[0] / _MARGIN
        ],
    )


def goodput(found: StreamResult) -> draw.Properties:
    """Draw the requests that keep all limits per second over the load."""
    tried = found.trials
    hover = [
        f"{format_number(one.load)} {found.unit}: {format_number(one.goodput.value)}/s, "
        f"{percent(one.attained.value)} within limits"
        for one in tried
    ]
    line = draw.points(
        "goodput",
        x=[one.load for one in tried],
        y=[one.goodput.value for one in tried],
        hover=hover,
        mode="lines+markers",
        line={"color": draw.BLUE},
    )
    return draw.figure(
        [line],
        HEIGHT,
        xaxis=draw.axis(found.unit, type="log"),
        yaxis=draw.axis("requests within limits per second", rangemode="tozero"),
    )


def requests_over_time(found: StreamResult) -> draw.Properties:
    """Draw the requests that run and that wait over the time of the first replication."""
    time, running, waiting = found.timeline
    data = [
        draw.points(
            name,
            x=time,
            y=values,
            hover=[f"{format_seconds(at)}: {one} {name}" for at, one in zip(time, values, strict=True)],
            mode="lines+text",
            line={"color": color, "shape": "hv"},
            **draw.at_one(name, len(time), max(range(len(time)), key=values.__getitem__, default=0)),
        )
        for name, values, color in (("running", running, draw.BLUE), ("waiting", waiting, draw.ORANGE))
    ]
    return draw.figure(
        data,
        HEIGHT,
        showlegend=False,
        xaxis=draw.axis("time [s]"),
        yaxis=draw.axis("requests", rangemode="tozero"),
    )
