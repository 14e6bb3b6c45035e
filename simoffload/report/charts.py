"""Charts of one result, of what explains it, and of advice."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from simoffload.report.formatting import counted, group_bounds, group_name, percent, uncapitalized
from simoffload.report.plotting import (
    BLACK,
    BLUE,
    CYCLE,
    FRAME,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    PURPLE,
    ROOM_FOR_NAMES,
    ROW,
    SKY,
    VERMILION,
    CauseBar,
    Properties,
    axis,
    bars,
    by_cause,
    cause_colour,
    figure,
    hatched,
    names_axis,
    note,
    plain,
    points,
    rule,
)
from simoffload.report.presentation import presentation
from simoffload.report.training_tables import stage_needs, times
from simoffload.results.capacity import TierUse
from simoffload.results.passes import PassResult
from simoffload.results.training import TrainingResult
from simoffload.units import format_number, format_rate, format_seconds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

    from simoffload.planning.advise import Search, SimulatedPurchase, Tried
    from simoffload.planning.bandwidth import StorageCurve
    from simoffload.planning.sensitivity import Sensitivity

__all__ = ["bandwidth", "bounds", "capacity", "causes", "front", "gains", "memory", "phases", "tornado"]

_WIDEST = 2.5
"""How far the axis of capacity goes, times the capacity of a tier."""
_TERMS_A_LINE, _CAUSES_A_LINE = 2, 3
"""Names in a line of a legend."""
_TALL_ROW, _BAR = 48, 0.5
"""[px] of a row with words above the bar, and the part of it that the bar takes."""
_HEIGHT = 370
"""[px] of a chart of points."""
_GIGA = 1e9
_CHANGES = {
    "hardware": ("to buy", BLUE, ""),
    "placement": ("to move", GREEN, "/"),
    "workload": ("more work at a time", ORANGE, "x"),
    "setting": ("settings", PURPLE, "."),
}
"""Presentation, colour and pattern of each kind of change."""


def capacity(uses: Sequence[TierUse], *, names: Sequence[str] = ()) -> Figure:
    """What each tier must hold, stacked by term, as a fraction of what it has; pinned memory hatched.

    ``names`` stand at the rows where a tier has several.
    """
    terms = dict.fromkeys((term.name, term.pinned) for use in uses for term in use.terms)
    sizes = {term.name: term.size / use.capacity for use in uses for term in use.terms}
    by_size = sorted(sizes, key=lambda name: (-sizes[name], name))  # the colours easiest to tell go first
    data = []
    for name, pinned in terms:
        parts = [
            (y, use, term)
            for y, use in enumerate(uses)
            for term in use.terms
            if (term.name, term.pinned) == (name, pinned)
        ]
        data.append(
            bars(
                f"{name} (pinned)" if pinned else name,
                y=[y for y, _, _ in parts],
                x=[term.size / use.capacity for _, use, term in parts],
                hover=[f"{plain(term.name)}: {counted(term.size, use)}" for _, use, term in parts],
                color=CYCLE[by_size.index(name) % len(CYCLE)],
                marker={"pattern": {"shape": "/" if pinned else "", "solidity": 0.15, "fillmode": "overlay"}},
            )
        )
    widest = min(_WIDEST, 1.08 * max([1.0, *(use.needed / use.capacity for use in uses)]))
    return figure(
        data,
        FRAME + LEGEND * -(-len(terms) // _TERMS_A_LINE) + _TALL_ROW * max(2, len(uses)),
        barmode="stack",
        bargap=1 - _BAR,
        xaxis=axis("needed, as a fraction of the tier's capacity", tickformat=".0%", range=[0, widest]),
        yaxis=names_axis(names or [use.tier for use in uses]),
        annotations=[_filled(y, use) for y, use in enumerate(uses)],
        shapes=[rule(1, color=BLACK, dash="dot")],
    )


def _filled(y: int, use: TierUse) -> Properties:
    """How full a tier is, above its bar, of which it covers nothing."""
    filled = f"{counted(use.needed, use)} of {counted(use.capacity, use)}"
    text = f" {filled} ({percent(use.needed / use.capacity)})"
    above = {"yanchor": "bottom", "bgcolor": "rgba(255,255,255,0.85)", "borderpad": 0}
    return note(text, x=0, y=y - _BAR / 2, xanchor="left", **above)


def causes(step: PassResult) -> Figure:
    """Exposed and hidden time of each cause."""
    rows = range(len(step.shares))
    colours = [cause_colour(share.cause) for share in step.shares]
    exposed = [share.exposed_s for share in step.shares]
    hidden = [max(0.0, share.busy_s - share.exposed_s) for share in step.shares]
    faint = {"opacity": 0.45, "pattern": {"shape": "/", "solidity": 0.5, "bgcolor": "#ffffff"}}

    def hover(times: Sequence[float], how: str) -> list[str]:
        pairs = zip(step.shares, times, strict=True)
        return [f"{plain(share.cause)}: {format_seconds(time)} {how}" for share, time in pairs]

    return figure(
        [
            bars("exposed", y=rows, x=exposed, hover=hover(exposed, "exposed"), color=colours),
            bars("hidden", y=rows, x=hidden, hover=hover(hidden, "hidden"), color=colours, marker=faint),
        ],
        FRAME + ROW * len(step.shares),
        barmode="stack",
        showlegend=False,
        xaxis=axis("time [s]", rangemode="tozero"),
        yaxis=names_axis([share.cause for share in step.shares]),
    )


def bounds(step: PassResult, *, most: int) -> Figure:
    """The largest bounds, and the time that the step took as a line."""
    largest = group_bounds(step)[:most]
    hover = [f"{format_seconds(time)}, {percent(time / step.time_s)}" for _, time in largest]
    text = f"simulated {format_seconds(step.time_s)}"
    simulated = note(text, x=step.time_s, y=1, yref="paper", yanchor="bottom", font={"color": VERMILION})
    return figure(
        [
            bars(
                "bound",
                y=range(len(largest)),
                x=[time for _, time in largest],
                hover=hover,
                color=SKY,
                text=hover,
                textposition="auto",
            )
        ],
        FRAME + ROW * len(largest),
        xaxis=axis("time [s]", range=[0, 1.12 * step.time_s]),
        yaxis=names_axis([group_name(names) for names, _ in largest]),
        shapes=[rule(step.time_s, color=VERMILION, width=3)],
        annotations=[simulated],
    )


# ---- training ----


def memory(result: TrainingResult) -> Figure:
    """What every tier holds at each moment, the moments of a tier below each other."""
    found = stage_needs(result)
    pairs = sorted(
        ((row, each.name, use) for each in found for row, use in enumerate(each.uses)),
        key=lambda pair: pair[0],
    )
    return capacity([use for _, _, use in pairs], names=[f"{use.tier}, {name}" for _, name, use in pairs])


def phases(result: TrainingResult) -> Figure:
    """The time of each phase in one step, stacked by cause."""
    parts = []
    for y, phase in enumerate(result.phases):
        for share in phase.result.shares:
            exposed = float(phase.times) * share.exposed_s
            if exposed:
                hover = f"{plain(share.cause)}: {format_seconds(exposed)}, {percent(exposed / phase.time_s)}"
                parts.append(CauseBar(y, share.cause, exposed, hover))
    data = by_cause(parts)
    shares = [percent(phase.time_s / (result.step_s or 1.0)) for phase in result.phases]
    ends = [
        note(f" {format_seconds(phase.time_s)} ({share})", x=phase.time_s, y=y, xanchor="left")
        for y, (phase, share) in enumerate(zip(result.phases, shares, strict=True))
    ]
    longest = max(phase.time_s for phase in result.phases)
    return figure(
        data,
        FRAME + LEGEND * -(-len(data) // _CAUSES_A_LINE) + ROW * max(2, len(result.phases)),
        barmode="stack",
        showlegend=True,
        uniformtext=ROOM_FOR_NAMES,
        xaxis=axis("exposed time in one step [s]", range=[0, 1.25 * longest]),
        yaxis=names_axis(
            [
                phase.result.name if phase.times == 1 else f"{times(phase)} {phase.result.name}"
                for phase in result.phases
            ]
        ),
        annotations=ends,
    )


# ---- explanations ----


def tornado(found: Sensitivity, *, most: int) -> Figure:
    """Change of the time with each number lower (hatched) and higher, the largest on top."""
    rows, time = found.rows[:most], found.result.compared_s or 1.0
    data = []
    for name, color, shape, ends in (
        (f"{percent(found.change)} lower", BLUE, "/", [row.low for row in rows]),
        (f"{percent(found.change)} higher", ORANGE, "", [row.high for row in rows]),
    ):
        marks = [
            (
                y,
                end / time - 1,
                f"{plain(rows[y].number.key)} of {plain(rows[y].number.profile)}: {format_seconds(end)}",
            )
            for y, end in enumerate(ends)
            if end is not None
        ]
        data.append(hatched(name, marks, color=color, shape=shape))
    return figure(
        data,
        FRAME + LEGEND + ROW * len(rows),
        barmode="overlay",
        showlegend=True,
        xaxis=axis(f"change of the {uncapitalized(presentation(found.result).compared)}", tickformat="+.1%"),
        yaxis=names_axis([f"{row.number.key}, {row.number.profile}" for row in rows]),
        shapes=[rule(0, color=BLACK)],
    )


def bandwidth(curve: StorageCurve) -> Figure:
    """Throughput over the rate of the storage, the bound above it, this platform on it."""
    rates = [point.rate / _GIGA for point in curve.points]
    own = curve.own
    data = [
        _line("no schedule is faster", rates, [point.roof for point in curve.points], GREY, dash="dash"),
        _line("simulated", rates, [point.throughput for point in curve.points], BLUE, dash="solid"),
        points(
            "this platform",
            x=[own.rate / _GIGA],
            y=[own.throughput],
            hover=[f"{format_rate(own.rate)}: {format_number(own.throughput)} {curve.unit}s/s"],
            mode="markers+text",
            text=["this platform"],
            textposition="bottom right",
            marker={"color": VERMILION, "size": 13, "symbol": "diamond"},
        ),
    ]
    needed = [one for one in (curve.hidden, curve.enough) if one]
    return figure(
        data,
        _HEIGHT,
        showlegend=True,
        xaxis=axis(f"{plain(curve.tier)} {curve.verb} [GB/s]", type="log", dtick="D2"),
        yaxis=axis(f"{curve.unit}s/s", type="log", dtick="D2"),
        shapes=[rule(one.rate / _GIGA, color=BLACK, dash="dot", width=1) for one in needed],
    )


def _line(name: str, x: Sequence[float], y: Sequence[float], color: str, *, dash: str) -> Scatter:
    values = zip(x, y, strict=True)
    hover = [f"{name}, {format_rate(rate * _GIGA)}: {format_number(value)}" for rate, value in values]
    return points(name, x=x, y=y, hover=hover, mode="lines+markers", line={"color": color, "dash": dash})


# ---- advice ----


def gains(tried: Sequence[Tried]) -> Figure:
    """Bars of speed over that of the scenario as it is."""
    data = []
    for kind, (called, color, shape) in _CHANGES.items():
        marks = [
            (y, one.gain or 0.0, f"{plain(one.option.description)}: {format_number(one.gain or 0.0)}×")
            for y, one in enumerate(tried)
            if one.option.kind == kind
        ]
        if marks:
            data.append(hatched(called, marks, color=color, shape=shape))
    return figure(
        data,
        FRAME + LEGEND + ROW * len(tried),
        barmode="overlay",
        showlegend=True,
        xaxis=axis("speed over that of the scenario as it is", rangemode="tozero"),
        yaxis=names_axis([one.option.description for one in tried]),
    )


def front(search: Search) -> Figure:
    """Everything that was simulated, and the line of what nothing else beats."""
    rest = [point for point in search.points if isfinite(point.purchase)]
    best = [search.best] if search.best in rest else []
    data = [
        _marks("simulated", rest, GREY, "circle-open"),
        _marks("nothing is cheaper and faster", search.front, BLUE, "circle", mode="lines+markers"),
        _marks("best", best, VERMILION, "diamond", size=13),
    ]
    return figure(
        data,
        _HEIGHT,
        showlegend=True,
        xaxis=axis(f"purchase [{plain(search.currency)}]"),
        yaxis=axis("units of work per second", rangemode="tozero"),
    )


def _marks(
    name: str,
    found: Sequence[SimulatedPurchase],
    color: str,
    symbol: str,
    *,
    size: int = 8,
    mode: str = "markers",
) -> Scatter:
    return points(
        name,
        x=[point.purchase for point in found],
        y=[point.rate for point in found],
        hover=[plain(", ".join(point.description) or "as it is") for point in found],
        mode=mode,
        marker={"color": color, "symbol": symbol, "size": size},
    )
