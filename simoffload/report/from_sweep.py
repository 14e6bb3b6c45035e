"""The report document of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from simoffload.errors import printable, shortened
from simoffload.report import sweep_charts
from simoffload.report.answer import Verdict
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    Listing,
    ReportDocument,
    ReportSection,
    ReportTable,
)
from simoffload.report.formatting import uncapitalized
from simoffload.report.sweep_charts import Row, best_first, called, measure_of, ranged, varied
from simoffload.results import Metric, declared_metrics
from simoffload.units import format_number, percent, plural

if TYPE_CHECKING:
    from simoffload.planning.sweep import SweepResult

_MOST_ROWS = 200
"""Number of points in the table of a page; all are in the tables that a sweep writes."""
_MOST_WARNINGS = 5
_LONGEST_WARNING = 400
_EQUAL = 1e-3
"""Relative difference below which points are as good: three digits are shown."""


def sweep_document(found: SweepResult, *, command: str = "") -> ReportDocument:
    """Return the document of a sweep: the best point, heat map, axes, Pareto front, and the points."""
    counts = f"{plural(len(found.rows), 'point')} of {', '.join(varied(found))}"
    background = (ReportSection("Command", listings=(Listing("", command),)),) if command else ()
    return ReportDocument(
        (counts,),
        None,
        (),
        tuple(_warnings(found)),
        (*_charts(found), _points(found)),
        background,
        name=found.name or "sweep",
        summary=(_answer(found),),
        facts=(*_settings(found), "brackets: 80 % intervals"),
    )


def _settings(found: SweepResult) -> Iterator[str]:
    """Yield model, machine, program and work of the points, as far as they are not varied."""
    given = found.scenario
    sections = {key: one if isinstance(one, Mapping) else {"name": one} for key, one in given.items()}
    for key, name in (("model", "name"), ("platform", "name"), ("strategy", "kind")):
        if key not in found.axes and (text := sections.get(key, {}).get(name)):
            yield printable(str(text))
    work = sections.get("workload", {})
    parts = [
        f"{key} {one}" for key, one in work.items() if key != "kind" and f"workload.{key}" not in found.axes
    ]
    if parts:
        yield printable(", ".join(parts))


def _answer(found: SweepResult) -> Verdict:
    """Return the best point, its value, and by how much it is better than the worst that fits."""
    known, measure = best_first(found), measure_of(found)
    if not known:
        return Verdict.of(f"None of {plural(len(found.rows), 'point')} has a result")
    best, last = known[0], known[-1]
    text = f"{called(found, best)} is best: {ranged(best, measure)}{measure.each}"
    equal = [row for row in known[1:] if abs(row[measure.name] / best[measure.name] - 1) < _EQUAL]
    if equal:
        text += (
            f", {called(found, equal[0])} as good" if len(equal) == 1 else f", {len(equal)} others as good"
        )
    ratio = best[measure.name] / last[measure.name]
    ratio = ratio if measure.larger else 1 / ratio
    if len(known) > 1:
        text += f", {format_number(ratio)} times as good as the worst of {len(known):,}"
    return Verdict.of(text)


def _warnings(found: SweepResult) -> Iterator[str]:
    """Yield how many points have no result, and why; then what is said of the others."""
    lacking = [row for row in found.rows if row.get("fits") is False]
    failed = [row for row in found.rows if row.get("error")]
    fit = "does not fit" if len(lacking) == 1 else "do not fit"
    for rows, what, why in ((lacking, fit, "advice"), (failed, "failed", "error")):
        if rows:
            share = percent(len(rows) / len(found.rows))
            yield f"{plural(len(rows), 'point')} ({share}) {what}; {called(found, rows[0])}: {rows[0][why]}"
    beyond = [row for row in found.rows if row.get("extrapolates")]
    if beyond:
        yield f"beyond the calibrated range (error unknown): {plural(len(beyond), 'point')}"
    repeated = Counter(str(row["warnings"]) for row in found.rows if row.get("warnings"))
    for text, number in repeated.most_common(_MOST_WARNINGS):
        yield f"{plural(number, 'point')}: {shortened(text, _LONGEST_WARNING)}"


def _charts(found: SweepResult) -> Iterator[ReportSection]:
    if not best_first(found):
        return
    name = f"{measure_of(found).title} [{'tokens/s' if measure_of(found).larger else 's'}]"
    if sweep_charts.has_heat_map(found):
        label = f"{name} of each pair of values"
        yield ReportSection(name, charts=(Chart(label, partial(sweep_charts.heat_map, found)),))
    charts = [
        Chart(f"best value over {axis}", partial(sweep_charts.along, found, axis), axis)
        for axis in varied(found)
    ]
    title = "Best of each value" if len(charts) > 1 else name
    notes = ("Lines: 80 % intervals; all other axes have their best values.",)
    yield ReportSection(title, charts=tuple(charts), notes=notes if len(charts) > 1 else ())
    best = sweep_charts.front(found)
    if best is not None:
        time = uncapitalized(best.time.title)
        text = f"the line joins the points of which none has both a higher throughput and a shorter {time}"
        if len(best.points) == 1:
            text = f"one point has both the highest throughput and the shortest {time}"
        yield ReportSection(
            "Throughput against time",
            (text,),
            (_table(found, best.points, caption="Pareto front"),),
            charts=(Chart("throughput over time", partial(sweep_charts.pareto, found, best)),),
        )


def _points(found: SweepResult) -> ReportSection:
    """Return the points, the best first."""
    known = best_first(found)
    ids = {id(row) for row in known}
    rows = (*known, *(row for row in found.rows if id(row) not in ids))
    first = f"The first {_MOST_ROWS} of " if len(rows) > _MOST_ROWS else "All "
    folded = f"{first}{plural(len(rows), 'point')}, the best first"
    return ReportSection("Points", tables=(_table(found, rows[:_MOST_ROWS], folded=folded),))


def _table(found: SweepResult, rows: tuple[Row, ...], *, caption: str = "", folded: str = "") -> ReportTable:
    axes = varied(found)
    known = declared_metrics().values()
    metrics = [one for one in known if one.column and any(row.get(one.name) for row in rows)]
    head = (*axes, *(one.column for one in metrics), "bottleneck")
    cells = tuple((*(str(row[axis]) for axis in axes), *_values(row, metrics), _last(row)) for row in rows)
    numbers = tuple(range(len(axes), len(head) - 1))
    refused = tuple(at for at, row in enumerate(rows) if not row.get("fits"))
    return ReportTable(caption, head, cells, numbers, len(axes), refused=refused, folded=folded)


def _values(row: Row, metrics: list[Metric]) -> Iterator[Entry]:
    for one in metrics:
        value = row.get(one.name)
        yield Datum(ranged(row, one), value, one.unit.name) if value else ""


def _last(row: Row) -> str:
    return row.get("bottleneck") or ("does not fit" if row.get("fits") is False else row.get("error") or "")
