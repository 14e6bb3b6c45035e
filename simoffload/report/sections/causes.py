"""Why not faster: what the time goes to, how close that is to the bound, and what crossed the links."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from simoffload.report import charts
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    ReportSection,
    ReportTable,
    fraction,
    group_cell,
    seconds,
)
from simoffload.report.formatting import bottleneck, bound, capacity, carried, group_bounds, group_links
from simoffload.report.presentation import presentation
from simoffload.report.training_tables import PhaseShares, causes_by_phase, phase_names, times
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.units import format_seconds

__all__ = ["BOUND", "CAUSES", "bounds", "causes", "links"]

CAUSES = "Where the time goes"
BOUND = "How close to the bound"
_EXPOSED = (
    "Exposed: on the chain of operations that determined the time; these add up to it. "
    "What is busy beyond that is hidden (hatched in the chart): done meanwhile."
)
_MOST_BOUNDS = 8
"""Bounds that are drawn."""
_MOST_LINKS = 8
"""Links that a terminal shows."""
_NO_FASTER = (
    "No schedule is faster than its slowest part: the bytes of each link over its bandwidth, and what the "
    "GPU and the host thread have to do one after the other."
)


def causes(result: SimulationResult, step: PassResult) -> ReportSection:
    """The causes of the step that stands for the run, then of everything else that was simulated."""
    shown = presentation(result)
    tables = _of_training(result, step) if isinstance(result, TrainingResult) else _of_passes(result, step)
    largest = f"largest part: {bottleneck(step, shown.called)}"
    table, *folded = tables
    chart = Chart("time by cause", partial(charts.causes, step))
    return ReportSection(CAUSES, (largest,), (table, _groups(step), *folded), (_EXPOSED,), charts=(chart,))


def _groups(step: PassResult) -> ReportTable:
    """The causes of a step put together by what works: the GPU, the host, transfers, storage."""
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (one.group, seconds(one.exposed_s), fraction(one.exposed_s / step.time_s), seconds(one.hidden_s))
        for one in step.groups
    )
    return ReportTable("By what works", ("in all", "exposed", "share", "hidden"), rows, (1, 2, 3))


def _of_passes(result: SimulationResult, step: PassResult) -> tuple[ReportTable, ...]:
    others = [one for one in result.passes if one is not step]
    folded = "The other simulated passes"
    return _by_cause(step, _of_pass(step)), *(_by_cause(one, _of_pass(one), folded) for one in others)


def _of_pass(one: PassResult) -> str:
    time = f"{one.name}: {format_seconds(one.time_s)}"
    if not one.new_tokens:
        return time
    tokens = "token" if one.new_tokens == 1 else "tokens"
    return f"{time}, {one.new_tokens} new {tokens} per sequence, context {one.context}"


def _of_training(result: TrainingResult, step: PassResult) -> tuple[ReportTable, ...]:
    unit_name = f"{step.name}: {format_seconds(step.time_s)}"
    table = _by_cause(step, unit_name, phases=phase_names(result), splits=causes_by_phase(result))
    folded = "The phases one by one"
    parts = [
        (phase.result, f"{format_seconds(phase.result.time_s)} each, {times(phase)}")
        for phase in result.phases
    ]
    return table, *(_by_cause(one, f"{one.name}: {shown} in a step", folded) for one, shown in parts)


def _by_cause(
    one: PassResult,
    caption: str,
    folded: str = "",
    *,
    phases: tuple[str, ...] = (),
    splits: Sequence[PhaseShares] = (),
) -> ReportTable:
    """Causes with their share of a pass; of a whole step also with what each phase has of them."""
    rows: list[tuple[Entry, ...]] = []
    for number, share in enumerate(one.shares):
        parts = [seconds(part or None) for part in splits[number].exposed_s] if phases else []
        unit_name = fraction(share.exposed_s / one.time_s)
        rows.append(
            (share.cause, seconds(share.exposed_s), unit_name, *parts, seconds(share.busy_s), share.limit)
        )
    head = ("cause", "exposed", "share", *(f"in {name}" for name in phases), "busy", "held back by")
    return ReportTable(caption, head, tuple(rows), tuple(range(1, len(head) - 1)), folded=folded)


def bounds(result: SimulationResult, step: PassResult) -> ReportSection:
    """The fastest that each resource allows."""
    rows = tuple(
        (group_cell(names), seconds(time), fraction(time / step.time_s)) for names, time in group_bounds(step)
    )
    head = ("resource", "at least", f"of the {presentation(result).unit_name}")
    table = ReportTable("", head, rows, (1, 2), folded="All bounds")
    chart = Chart("bounds and simulated time", partial(charts.bounds, step, most=_MOST_BOUNDS))
    return ReportSection(BOUND, (bound(step),), (table,), (_NO_FASTER,), charts=(chart,))


def links(result: SimulationResult, step: PassResult) -> ReportSection:
    """What each link carried, and for how long."""
    rows: list[tuple[Entry, ...]] = []
    for names, use in group_links(step.links):
        carried_text = Datum(carried(use), use.size, use.unit)
        if len(names) > 1:
            carried_text = carried_text._replace(text=f"{carried_text.text} each")
        mean: Entry = ""
        if use.busy_s:
            each = round(use.size / use.busy_s)
            mean = Datum(capacity(use._replace(capacity=each)), each, f"{use.unit}/s")
        shares = (fraction(time / step.time_s) for time in (use.busy_s, use.saturated_s))
        full: tuple[Datum, ...] = tuple(shares)
        rows.append(
            (
                group_cell(names),
                carried_text,
                Datum(capacity(use), use.capacity, f"{use.unit}/s"),
                mean,
                seconds(use.busy_s),
                *full,
            )
        )
    unit_name = f"of the {presentation(result).unit_name}"
    head = ("link", "moved", "capacity", "mean while busy", "busy", unit_name, "filled to capacity")
    numbers = tuple(range(1, len(head)))
    table = ReportTable(step.name, head, tuple(rows), numbers, page_columns=(3, 4), most=_MOST_LINKS)
    return ReportSection("Links", tables=(table,))
