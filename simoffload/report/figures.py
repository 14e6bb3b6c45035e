"""Charts as plain plotly.js figures: dictionaries of data and layout.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), which people who cannot tell red from
green still can. What a colour says is also said by a label or a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simoffload.report.comparison import Group
from simoffload.report.phrases import counted, percent, step_time
from simoffload.report.window import Bar, Window
from simoffload.results.capacity import TierUse
from simoffload.results.passes import PassResult
from simoffload.units import format_bytes, format_seconds

__all__ = ["bounds", "capacity", "causes", "causes_compared", "plain", "schedule", "times_compared"]

Figure = dict[str, Any]

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
)  # fmt: skip
_GREY = "#999999"
_CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, _GREY, BLACK)

_KINDS = {
    "read": ("read from storage", VERMILION),
    "write": ("write to storage", ORANGE),
    "copy": ("copy to the GPU", BLUE),
    "gather": ("all-gather", PURPLE),
    "concat": ("copies on the GPU", SKY),
    "compute": ("GPU compute", GREEN),
    "launch": ("kernel launch", _GREY),
    "hook": ("DeepSpeed's hooks", _GREY),
}
_CAUSES = {"GPU compute": GREEN, "host thread": _GREY, "GPU copies of gathered tensors": SKY, "all-gather": PURPLE}
_WIDEST = 2.5  # times a tier's capacity: how far the capacity axis goes
_ROW = 34  # [px] height of a horizontal bar with its gap
_FRAME = 96  # [px] axis, title and margins


def plain(text: str) -> str:
    """A name as plotly text: its subset of HTML must not see tags."""
    return text.replace("<", "‹").replace(">", "›")


def _layout(height: float, **more: Any) -> Figure:
    return {
        "height": height,
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        "margin": {"l": 10, "r": 20, "t": 12, "b": 44},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hoverlabel": {"align": "left", "namelength": -1},
        "bargap": 0.3,
        **more,
    }


def _axis(title: str = "", **more: Any) -> Figure:
    return {
        "title": {"text": title, "font": {"size": 12}},
        "automargin": True,
        "gridcolor": "#dddddd",
        "zerolinecolor": "#888888",
        "fixedrange": True,
        **more,
    }


def _rows(names: Sequence[str]) -> Figure:
    """A vertical axis of names, the first one on top."""
    order = [plain(name) for name in names]
    return _axis(type="category", autorange="reversed", categoryarray=order, ticklabelstandoff=6, showgrid=False)


def _cause_colour(cause: str) -> str:
    if cause in _CAUSES:
        return _CAUSES[cause]
    ends = {" read": VERMILION, " write": ORANGE, ", pageable": YELLOW}
    return next((colour for end, colour in ends.items() if cause.endswith(end)), BLUE)


def capacity(uses: Sequence[TierUse]) -> Figure:
    """What each tier must hold, stacked by term, as a fraction of what it has; pinned memory hatched."""
    names = list(dict.fromkeys((term.name, term.pinned) for use in uses for term in use.terms))
    data = []
    for number, (name, pinned) in enumerate(names):
        parts = [(use, term) for use in uses for term in use.terms if (term.name, term.pinned) == (name, pinned)]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(name) + (" (pinned)" if pinned else ""),
                "y": [plain(use.tier) for use, _ in parts],
                "x": [term.size / use.capacity for use, term in parts],
                "hovertext": [f"{plain(term.name)}: {counted(term.size, use)}" for use, term in parts],
                "hoverinfo": "text",
                "marker": {
                    "color": _CYCLE[number % len(_CYCLE)],
                    "pattern": {"shape": "/" if pinned else "", "solidity": 0.3},
                },
            }
        )
    widest = min(_WIDEST, 1.08 * max([1.0, *(use.needed / use.capacity for use in uses)]))
    notes = [
        {
            "x": min(use.needed / use.capacity, widest),
            "y": plain(use.tier),
            "text": f" {counted(use.needed, use)} of {counted(use.capacity, use)} ({percent(use.needed / use.capacity)})",
            "showarrow": False,
            "xanchor": "left" if use.needed / use.capacity < 0.6 * widest else "right",
            "bgcolor": "rgba(255,255,255,0.85)",
        }
        for use in uses
    ]
    full = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": BLACK, "dash": "dot"}}
    return {
        "data": data,
        "layout": _layout(
            _FRAME + 40 + _ROW * max(2, len(uses)),
            barmode="stack",
            xaxis=_axis("needed, as a fraction of the tier's capacity", tickformat=".0%", range=[0, widest]),
            yaxis=_rows([use.tier for use in uses]),
            annotations=notes,
            shapes=[full],
        ),
    }


def causes(step: PassResult) -> Figure:
    """Exposed and hidden time of each cause."""
    names = [plain(share.cause) for share in step.shares]
    hidden = [max(0.0, share.busy_s - share.exposed_s) for share in step.shares]
    exposed = [share.exposed_s for share in step.shares]
    colours = [_cause_colour(share.cause) for share in step.shares]

    def bars(name: str, times: list[float], **marker: Any) -> Figure:
        texts = [f"{cause}: {format_seconds(time)} {name}" for cause, time in zip(names, times, strict=True)]
        return {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": times,
            "hovertext": texts,
            "hoverinfo": "text",
            "showlegend": False,
            "marker": {"color": colours, **marker},
        }

    faint = {"opacity": 0.45, "pattern": {"shape": "/", "solidity": 0.5, "bgcolor": "#ffffff"}}
    return {
        "data": [bars("exposed", exposed), bars("hidden behind something else", hidden, **faint)],
        "layout": _layout(
            _FRAME + _ROW * len(names), barmode="stack", xaxis=_axis("time [s]", rangemode="tozero"), yaxis=_rows(names)
        ),
    }


def bounds(step: PassResult, *, most: int) -> Figure:
    """The largest bounds, and the time that the step took as a line."""
    largest = sorted(step.bounds.items(), key=lambda item: (-item[1], item[0]))[:most]
    names = [plain(name) for name, _ in largest]
    line = {"color": VERMILION, "width": 3}
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [time for _, time in largest],
                "text": [f"{format_seconds(time)}, {percent(time / step.time_s)}" for _, time in largest],
                "textposition": "auto",
                "hoverinfo": "skip",
                "marker": {"color": SKY},
            }
        ],
        "layout": _layout(
            _FRAME + _ROW * len(names),
            xaxis=_axis("time [s]", range=[0, 1.12 * step.time_s]),
            yaxis=_rows(names),
            shapes=[
                {"type": "line", "x0": step.time_s, "x1": step.time_s, "y0": 0, "y1": 1, "yref": "paper", "line": line}
            ],
            annotations=[
                {
                    "x": step.time_s,
                    "y": 1,
                    "yref": "paper",
                    "yanchor": "bottom",
                    "text": f"simulated {format_seconds(step.time_s)}",
                    "showarrow": False,
                    "font": {"color": VERMILION},
                }
            ],
            margin={"l": 10, "r": 20, "t": 30, "b": 44},
        ),
    }


def schedule(window: Window) -> Figure:
    """Operations of one rank over time, a row for each stream."""
    length = window.end_s - window.start_s
    unit, scale = ("s", 1.0) if length >= 2 else ("ms", 1e3) if length >= 2e-3 else ("µs", 1e6)
    kinds = list(dict.fromkeys([*(kind for kind in _KINDS), *(bar.kind for bar in window.bars)]))
    data = []
    for kind in kinds:
        mine = [bar for bar in window.bars if bar.kind == kind]
        if not mine:
            continue
        words, colour = _KINDS.get(kind, (kind, BLACK))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(words),
                "base": [round(bar.start_s * scale, 6) for bar in mine],
                "x": [round(bar.duration_s * scale, 6) for bar in mine],
                "y": [plain(bar.stream) for bar in mine],
                "hovertext": [_told(bar) for bar in mine],
                "hoverinfo": "text",
                "marker": {"color": colour, "opacity": [1 if bar.own else 0.4 for bar in mine]},
            }
        )
    limits = [window.start_s * scale, window.end_s * scale]
    used = {bar.stream for bar in window.bars}
    streams = [stream for stream in window.streams if stream in used]
    return {
        "data": data,
        "layout": _layout(
            _FRAME + 40 + 40 * len(streams),
            barmode="overlay",
            bargap=0.15,
            xaxis=_axis(f"time since the pass began [{unit}]", range=limits, fixedrange=False),
            yaxis=_rows(streams),
        ),
    }


def _told(bar: Bar) -> str:
    """What hovering shows."""
    moved = f"<br>{format_bytes(bar.size)}, {plain(bar.route)}" if bar.size else ""
    return (
        f"{plain(bar.label)}<br>{plain(bar.kind)} on {plain(bar.stream)}<br>starts at {format_seconds(bar.start_s)}, "
        f"takes {format_seconds(bar.duration_s)}{moved}"
    )


def times_compared(groups: Sequence[Group]) -> Figure:
    """Time per token: a cluster of bars for each model, a colour for each target; published ratios as marks."""
    labels = list(dict.fromkeys(row.label for group in groups for row in group.rows))
    width = 0.8 / len(labels)
    data: list[Figure] = []
    marks: list[tuple[float, float, str]] = []
    for number, label in enumerate(labels):
        x, y, told = [], [], []
        for place, group in enumerate(groups):
            at = place + (number - (len(labels) - 1) / 2) * width
            base = next((row.result.per_token_s for row in group.rows if row.label == group.baseline), None)
            for row in group.rows:
                if row.label != label:
                    continue
                if row.result.per_token_s is not None:
                    x.append(at)
                    y.append(row.result.per_token_s * 1e3)
                    told.append(f"{plain(group.model)}, {plain(label)}: {format_seconds(row.result.per_token_s)}")
                if row.published and base is not None:
                    text = f"published: {row.published.ratio:.3g}× {plain(group.baseline)}"
                    marks.append((at, row.published.ratio * base * 1e3, text))
        data.append(
            {
                "type": "bar",
                "name": plain(label),
                "x": x,
                "y": y,
                "width": width * 0.92,
                "hovertext": told,
                "hoverinfo": "text",
                "marker": {"color": _CYCLE[number % len(_CYCLE)]},
            }
        )
    if marks:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "published ratio × simulated baseline",
                "x": [mark[0] for mark in marks],
                "y": [mark[1] for mark in marks],
                "hovertext": [mark[2] for mark in marks],
                "hoverinfo": "text",
                "marker": {"symbol": "diamond-open", "size": 11, "color": BLACK, "line": {"width": 2}},
            }
        )
    names = [plain(group.model) for group in groups]
    ticks = {"tickvals": list(range(len(groups))), "ticktext": names, "range": [-0.5, len(groups) - 0.5]}
    return {
        "data": data,
        "layout": _layout(
            400,
            barmode="overlay",
            xaxis=_axis(showgrid=False, **ticks),
            yaxis=_axis("time per token [ms]", type="log", dtick=1),
        ),
    }


def causes_compared(groups: Sequence[Group]) -> Figure:
    """Which causes a step's time went to, as fractions of it."""
    several = len(groups) > 1
    rows = [
        (f"{group.model}, {row.label}" if several else row.label, row.result, row.result.step)
        for group in groups
        for row in group.rows
    ]
    steps = [(f"{label} · {format_seconds(step_time(result) or 0)}", step) for label, result, step in rows if step]
    names = list(dict.fromkeys(share.cause for _, step in steps for share in step.shares if share.exposed_s))
    data = []
    for cause in names:
        found = [(label, share, step) for label, step in steps for share in step.shares if share.cause == cause]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(cause),
                "y": [plain(label) for label, _, _ in found],
                "x": [share.exposed_s / step.time_s for _, share, step in found],
                "hovertext": [f"{plain(cause)}: {format_seconds(share.exposed_s)}" for _, share, _ in found],
                "hoverinfo": "text",
                "marker": {"color": _cause_colour(cause)},
            }
        )
    return {
        "data": data,
        "layout": _layout(
            _FRAME + 40 + _ROW * max(2, len(steps)),
            barmode="stack",
            xaxis=_axis("exposed time, as a fraction of the step", tickformat=".0%", range=[0, 1]),
            yaxis=_rows([label for label, _ in steps]),
        ),
    }
