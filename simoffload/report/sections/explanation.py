"""How sure a result is, what it hangs on and what faster storage would bring, for terminal and page."""

from __future__ import annotations

from functools import partial

from simoffload.planning.bandwidth import NO_STORAGE, StorageCurve
from simoffload.planning.confidence import confidence
from simoffload.planning.explanation import Explanation
from simoffload.planning.sensitivity import Sensitivity, SensitivityRow
from simoffload.planning.uncertainty import ASSUMED, Uncertainty, UncertaintyTerm
from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, ReportSection, ReportTable, byte_rate
from simoffload.report.formatting import percent, uncapitalized
from simoffload.report.presentation import presentation
from simoffload.results.result import SimulationResult
from simoffload.units import format_number, format_seconds

__all__ = ["STORAGE", "TOP", "bandwidth_section", "confidence_section", "explained"]

TOP = 10
"""Inputs that are told."""
_HANGS_ON = "What the result hangs on"
STORAGE = "Storage bandwidth and throughput"


def confidence_section(result: SimulationResult) -> ReportSection:
    """The error on real runs that stands for a result with times."""
    return ReportSection("How sure", (confidence(result).sentence,))


def explained(explanation: Explanation) -> tuple[ReportSection, ...]:
    """Why a result is as it is, and in which range it lies."""
    return (
        bandwidth_section(explanation.storage),
        _sensitivity_section(explanation.sensitivity),
        _range(explanation.uncertainty, explanation.sensitivity.result),
    )


def bandwidth_section(curve: StorageCurve | None) -> ReportSection:
    """Throughput over the rate of the storage, and how fast is fast enough."""
    if curve is None:
        return ReportSection(STORAGE, (NO_STORAGE,))
    head = ("storage", f"{curve.unit}s/s", "no schedule beats", "")
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (
            byte_rate(point.rate),
            Datum(f"{format_number(point.throughput)}", point.throughput, "1/s"),
            Datum(f"{format_number(point.roof)}", point.roof, "1/s"),
            "this platform" if point.rate == curve.own.rate else "",
        )
        for point in curve.points
    )
    chart = Chart("throughput over the rate of the storage", partial(charts.bandwidth, curve))
    return ReportSection(STORAGE, curve.sentences, (ReportTable("", head, rows, (0, 1, 2)),), charts=(chart,))


def _sensitivity_section(found: Sensitivity) -> ReportSection:
    few = min(TOP, len(found.rows))
    time = uncapitalized(presentation(found.result).compared)
    text = (
        f"{time} with inputs {percent(found.change)} lower and higher: {few} of {len(found.rows)} that "
        f"matter; {found.without_effect} change nothing, {found.left_out} are not used"
    )
    rows = tuple(
        (
            row.number.key,
            *_changes(row, found.result.compared_s or 0.0),
            f"{row.elasticity:+.2f}",
            row.number.origin,
            row.number.profile,
        )
        for row in found.rows[:TOP]
    )
    head = ("input", "lower", "higher", "elasticity", "origin", "of")
    label = "change of the time with each input lower and higher"
    drawn = (Chart(label, partial(charts.tornado, found, most=TOP)),) if rows else ()
    return ReportSection(_HANGS_ON, (text,), (ReportTable("", head, rows, (1, 2, 3)),), charts=drawn)


def _changes(row: SensitivityRow, time: float) -> tuple[str, str]:
    low, high = (f"{end / time - 1:+.1%}".replace("%", " %") if end else "" for end in (row.low, row.high))
    return low, high


def _range(found: Uncertainty, result: SimulationResult) -> ReportSection:
    assumed = ", ".join(f"{share * 100:.0f} % for {origin}" for origin, share in ASSUMED.items())
    model, inputs = percent(found.confidence.relative_error), percent(found.of_inputs)
    time = uncapitalized(presentation(result).compared)
    ends = f"{time} {format_seconds(found.low)} to {format_seconds(found.high)}"
    text = f"{ends} (±{percent(found.relative)}: the model ±{model}, the inputs ±{inputs}, taking {assumed})"
    rows = tuple(map(_uncertainty_sentences, found.largest))
    table = ReportTable("Largest doubts", ("input", "moves the time by", "origin", "of"), rows, (1,))
    return ReportSection("Range, with the doubt about inputs", (text,), (table,))


def _uncertainty_sentences(one: UncertaintyTerm) -> tuple[str, ...]:
    first, *more = one.keys
    called = f"{first} and {len(more)} of the same source" if more else first
    return called, f"±{percent(one.contribution)}", one.origin, one.profile
