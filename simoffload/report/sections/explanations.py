"""Sections that explain a result: storage bandwidth, the tier of the key-value cache, sensitivity."""

from __future__ import annotations

from functools import partial

from simoffload.planning.bandwidth import NO_STORAGE, StorageCurve
from simoffload.planning.explanation import Explanation, Sensitivity
from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, ReportSection, ReportTable, byte_rate
from simoffload.report.formatting import minus, uncapitalized
from simoffload.units import format_number, percent, plural

SENSITIVITY = "Sensitivity to inputs"
STORAGE = "Storage bandwidth and throughput"
TOP = 10
"""Number of inputs that are listed."""


def explained(explanation: Explanation) -> tuple[ReportSection, ...]:
    """Return the sections that explain a result: storage bandwidth, the tier of the key-value cache, and
    sensitivity to inputs."""
    curve, found = explanation.storage, []
    if explanation.prefix is not None:
        found.append(ReportSection("Load or compute the prefix", explanation.prefix.sentences))
    if explanation.cache is not None:
        found.append(ReportSection("Tier of the key-value cache", explanation.cache.sentences))
    shown = () if found and curve is None else (bandwidth(curve),)
    if explanation.stopped:
        shown = (ReportSection(STORAGE, (f"left out: {explanation.stopped}",)),)
    return (*shown, *found, _sensitivity(explanation.sensitivity))


def bandwidth(curve: StorageCurve | None) -> ReportSection:
    """Return the throughput by rate of the storage; None if no storage is in use."""
    if curve is None:
        return ReportSection(STORAGE, (NO_STORAGE,))
    head = ("storage", f"{curve.unit}s/s", "upper bound", "")
    marks = {curve.own.rate: ["this platform"]}
    if curve.capped:
        marks.setdefault(curve.points[-1].rate, []).append("limit of ports and connections")
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (
            byte_rate(point.rate),
            Datum(f"{format_number(point.throughput)}", point.throughput, "1/s"),
            Datum(f"{format_number(point.bound)}", point.bound, "1/s"),
            ", ".join(marks.get(point.rate, ())),
        )
        for point in curve.points
    )
    chart = Chart("throughput over the rate of the storage", partial(charts.bandwidth, curve))
    return ReportSection(STORAGE, curve.sentences, (ReportTable("", head, rows, (0, 1, 2)),), charts=(chart,))


def _sensitivity(found: Sensitivity) -> ReportSection:
    time = found.result.compared_s or 0.0
    compared = uncapitalized(found.result.step_metric.title)
    effect = len(found.rows)
    shown = f" ({TOP} shown)" if effect > TOP else ""
    text = (
        f"how the {compared} changes if one input is {percent(found.change)} lower or higher: "
        f"{plural(effect, 'input')} {'has' if effect == 1 else 'have'} an effect{shown}, "
        f"{found.without_effect} have none, {found.left_out} are unused"
    )
    if found.stopped:
        text += f"; not complete, {found.untried} were not tried: {found.stopped}"

    def change(end: float | None) -> str:
        return minus(f"{end / time - 1:+.1%}".replace("%", " %")) if end else ""

    rows = tuple(
        (
            row.number.key,
            change(row.low),
            change(row.high),
            minus(f"{row.elasticity:+.2f}"),
            row.number.origin,
            row.number.profile,
        )
        for row in found.rows[:TOP]
    )
    head = ("input", "lower", "higher", "elasticity", "origin", "profile")
    label = "change of the time with each input lower and higher"
    drawn = (Chart(label, partial(charts.tornado, found, most=TOP)),) if rows else ()
    return ReportSection(SENSITIVITY, (text,), (ReportTable("", head, rows, (1, 2, 3)),), charts=drawn)
