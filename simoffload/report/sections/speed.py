"""How fast: all metrics, and the phases of a training step."""

from __future__ import annotations

from functools import partial

from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, ReportSection, ReportTable, fraction, seconds
from simoffload.report.formatting import largest
from simoffload.report.presentation import presentation
from simoffload.report.training_tables import several, times
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["PHASES", "phases", "speed", "unit_of"]

PHASES = "Phases of a step"
_UNITS = {"bytes_per_s": "B/s", "_per_s": "1/s", "_s": "s", "_bytes": "B", "tflops_per_gpu": "TFLOP/s"}


def unit_of(metric: str) -> str:
    """The unit of a metric, which its name ends in; empty for a fraction."""
    return next((unit for end, unit in _UNITS.items() if metric.endswith(end)), "")


def speed(result: SimulationResult) -> ReportSection:
    """All metrics that have a value, and how each is computed."""
    wording = presentation(result)
    values = result.metrics()
    shares = any(metric.share for metric in wording.metrics)
    rows: list[tuple[Entry, ...]] = []
    for key, name, text, share in wording.metrics:
        value = Datum(text, values[key], unit_of(key))
        of_step = [share] if shares else []
        rows.append((Datum(name, name=key), value, *of_step, f"{key} = {result.formulas[key]}"))
    head = ("metric", "value", *(["share"] if shares else []), "how it is computed")
    table = ReportTable("", head, tuple(rows), tuple(range(1, len(head) - 1)))
    return ReportSection("Speed", tables=(table,), notes=(wording.note,) if wording.note else ())


def phases(result: TrainingResult) -> ReportSection:
    """What a step is made up of; a terminal shows it where that is not one of each phase."""
    step = result.step_s or 0.0
    rows = tuple(
        (
            phase.result.name,
            Datum(times(phase), float(phase.times)),
            seconds(phase.result.time_s),
            seconds(phase.time_s),
            fraction(phase.time_s / step),
            largest(phase.result),
        )
        for phase in result.phases
    )
    head = ("phase", "in a step", "each", "in all", "share", "bottleneck")
    chart = Chart("time of each phase", partial(charts.phases, result))
    return ReportSection(
        PHASES,
        tables=(ReportTable("", head, rows, (1, 2, 3, 4)),),
        charts=(chart,),
        page_only=not several(result),
    )
