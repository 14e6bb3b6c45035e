"""The report document of several results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from simoffload.planning.confidence import confidence
from simoffload.planning.costs import Costed
from simoffload.report import comparison_charts
from simoffload.report.comparison import (
    ComparisonRow,
    Group,
    Published,
    by_kind,
    group_verdict,
    groups,
    in_common,
    keys,
    tie_rule,
    warnings,
)
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    ReportDocument,
    ReportSection,
    ReportTable,
    fraction,
    held,
)
from simoffload.report.formatting import NameFirst, largest, span, uncapitalized
from simoffload.report.from_result import MOST_BARS, result_document
from simoffload.report.presentation import presentation
from simoffload.report.sections.background import commands, inputs, limits, scenario, versions
from simoffload.report.sections.capacity import CAPACITY
from simoffload.report.sections.costs import costs_compared
from simoffload.report.sections.performance import CAUSES, INTERVAL, PHASES, unit_of
from simoffload.results import SimulationResult, TrainingResult, definitions
from simoffload.units import format_number


def comparison_document(
    results: Sequence[SimulationResult],
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    notes: Sequence[str] = (),
    command: str = "",
) -> ReportDocument:
    """Return the document of several results.

    ``comparison.groups`` explains ``published`` and ``baseline``; ``notes`` are sentences to begin with, and
    ``command`` is the command line that reproduces the comparison. Raises ValueError if there are no results
    or ``baseline`` names none of them.
    """
    if not results:
        raise ValueError("there is nothing to compare")
    found = groups(results, published=published, baseline=baseline)
    numbers = tuple(dict.fromkeys(one for result in results for one in result.provenance.inputs))
    origins = Counter(origin for _, _, _, origin, *_ in numbers)
    programs = dict.fromkeys(one for result in results for one in result.provenance.versions.items())
    profiles = dict.fromkeys(one for result in results for one in result.provenance.profiles)
    bars = MOST_BARS // len(results)
    return ReportDocument(
        in_common(results) or ("comparison",),
        None,
        tuple(map(group_verdict, found)),
        tuple(warnings(found)),
        (*_side_by_side(found, notes), *_fastest(found), *_charts(found), _capacity(found), *_costs(found)),
        (inputs(numbers, origins), versions(programs, profiles, command), limits()),
        tuple(
            (f"{group.title}, {row.label}", _each(row.result, bars)) for group in found for row in group.rows
        ),
    )


def _each(result: SimulationResult, bars: int) -> ReportDocument:
    """Return the document of one of the results, without costs and inputs, which are in the common
    document."""
    document = result_document(replace(result, planner=None), bars=bars)
    return document._replace(background=(scenario(result.provenance.scenario),))


def _side_by_side(found: Sequence[Group], notes: Sequence[str]) -> Iterator[ReportSection]:
    """Return a section for each kind of work, with a table for each model; ``notes`` begin the first."""
    kinds = by_kind(found)
    for number, (kind, mine) in enumerate(kinds.items()):
        sentences = [
            text for group in mine for text in (*_missing(group), *_limits(group), *_reservations(group))
        ]
        if number == 0:
            sentences = [*notes, *sentences]
        yield ReportSection(
            "Comparison" if len(kinds) == 1 else f"Comparison: {kind}",
            tuple(dict.fromkeys(sentences)),
            tuple(
                table
                for group in mine
                for table in (_table(group, alone=len(found) == 1), _interval_table(group))
                if table.rows
            ),
            tuple(_legend(mine)),
            notes_on_terminal=True,
        )


def _fastest(found: Sequence[Group]) -> Iterator[ReportSection]:
    """Return what to type or to copy for the fastest result of each group."""
    for group in found:
        timed = [row for row in group.rows if row.result.compared_s is not None]
        for row in sorted(timed, key=lambda row: row.result.compared_s or 0.0)[:1]:
            yield from commands(row.result.provenance, f"with the fastest, {row.label}")


def _missing(group: Group) -> Iterator[str]:
    """Return sentences that state why results have no times."""
    for row in group.rows:
        if not row.result.fits:
            yield NameFirst(f"{row.label} {'is ' if row.result.refused else ''}{row.result.shortfall}")
    if not any(row.result.fits for row in group.rows):
        for row in group.rows:
            yield from (NameFirst(f"{row.label} would fit with {one}") for one in _remedies(row.result))


def _remedies(result: SimulationResult) -> Iterator[str]:
    """Return the changes with which a result would fit, as one phrase."""
    found = result.remedies
    if found is not None and found.changes:
        yield f"{'; '.join(one.description for one in found.changes)} (simoffload fit)"


def _limits(group: Group) -> Iterator[str]:
    """Return the limits of bottlenecks, such as "ai400x2 read is limited by ib0 in", by row if they
    differ."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in group.rows:
        cause, limit = row.result.bottleneck, row.result.limit
        if cause and limit and limit != cause:
            found.setdefault(cause, {}).setdefault(limit, []).append(row.label)
    for cause, limits_found in found.items():
        for limit, labels in limits_found.items():
            where = f" ({', '.join(labels)})" if len(limits_found) > 1 else ""
            yield NameFirst(f"{cause} is limited by {limit}{where}")


def _reservations(group: Group) -> Iterator[str]:
    """Return what makes intervals wide: no real runs, a host that nobody measured."""
    timed = [(row.label, confidence(row.result)) for row in group.rows if row.result.compared_s is not None]
    about = {
        "no comparable real runs": [label for label, found in timed if found.unlike],
        "beyond the calibrated range": [label for label, found in timed if found.extrapolates],
        "mostly the host thread's time, whose speed was not measured on this machine": [
            label for label, found in timed if found.caution
        ],
    }
    for text, labels in about.items():
        if labels:
            yield NameFirst(f"{'all' if len(labels) == len(timed) > 1 else ', '.join(labels)}: {text}")


def _legend(found: Sequence[Group]) -> Iterator[str]:
    """Explain the columns of the tables."""
    timed = [row.result for group in found for row in group.rows if row.result.step]
    if timed:
        wording = presentation(timed[0])
        formulas = definitions(timed[0])
        yield from (f"{name} = {formulas[name]}" for name in wording.formulas)
        yield wording.legend
    if any(group.throughput_apart for group in found):
        yield "throughput: ratio of tokens/s"
    if any(row.published for group in found for row in group.rows):
        yield "published: published ratio of the times per token of all sequences"
    for group in found:
        for row in group.rows:
            if row.published and row.published.source:
                yield f"published for {group.title}, {row.label}: {row.published.source}"
    if rule := tie_rule(found):
        yield rule


def _table(group: Group, *, alone: bool) -> ReportTable:
    heads, names = keys(group)
    cells = presentation(group.rows[0].result).cells
    metric = presentation(group.rows[0].result).ratio
    ratio = f"{metric} vs {group.against}" if group.against else f"{metric} ratio"
    answer = "bottleneck" if any(row.result.step for row in group.rows) else "answer"
    head = (*heads, *cells, ratio, "throughput", "published", answer, "share of the bound")
    rows = tuple((*name, *_row(group, row)) for name, row in zip(names, group.rows, strict=True))
    first = len(heads)
    return ReportTable(
        "" if alone else " · ".join(in_common([row.result for row in group.rows])),
        head,
        rows,
        (*range(first, first + len(cells) + 3), len(head) - 1),
        keys=first,
        refused=tuple(number for number, row in enumerate(group.rows) if not row.result.fits),
    ).without_empty_columns()


def _interval_table(group: Group) -> ReportTable:
    """Return the interval of every time and rate of the table of the group."""
    heads, names = keys(group)
    cells = presentation(group.rows[0].result)
    rows = tuple(
        (*name, *_spans(row.result))
        for name, row in zip(names, group.rows, strict=True)
        if row.result.compared_s is not None
    )
    first = len(heads)
    head = (*heads, *cells.cells)
    numbers = tuple(range(first, len(head)))
    return ReportTable(INTERVAL, head, rows, numbers, keys=first).without_empty_columns()


def _spans(result: SimulationResult) -> Iterator[Entry]:
    wording, intervals = presentation(result), confidence(result).intervals()
    formats = {metric.key: metric.shown for metric in wording.metrics}
    for head, metric in zip(wording.cells, wording.cell_metrics, strict=True):
        ends = intervals.get(metric)
        if ends is None:
            yield ""
            continue
        text = span(*map(formats[metric], ends), value=f"0 {head}")
        yield Datum(text, unit=unit_of(metric), ends=ends)


def _row(group: Group, row: ComparisonRow) -> Iterator[Entry]:
    """Return the cells of a row: times, ratios, and the bottleneck, or the reason why there is none."""
    result, step = row.result, row.result.step
    yield from presentation(result).cells.values()
    yield Datum(row.ratio_text, row.ratio) if row.ratio_text else ""
    yield Datum(row.throughput_text, row.throughput) if group.throughput_apart and row.throughput_text else ""
    ratio = row.published.ratio if row.published else None
    yield "" if ratio is None else Datum(f"{format_number(ratio)}×", ratio)
    yield largest(step) if step is not None else _answer(result)
    # If more than the weights is offloaded, a table has no room for it.
    yield "" if group.narrow or step is None else fraction(result.bound_fraction or 0.0)


def _answer(result: SimulationResult) -> str:
    return "refused" if result.refused else "fits" if result.fits else "does not fit"


def _charts(found: Sequence[Group]) -> Iterator[ReportSection]:
    kinds = by_kind(found)
    published = any(row.published for group in found for row in group.rows)
    diamonds = " Diamonds: the published ratio times the simulated baseline." if published else ""
    for kind, mine in kinds.items():
        if not any(row.result.step for group in mine for row in group.rows):
            continue
        about = f": {kind}" if len(kinds) > 1 else ""
        label = f"{uncapitalized(mine[0].compared)} of each target"
        times = Chart(label, partial(comparison_charts.times_compared, mine))
        note = f"Logarithmic axis.{diamonds}"
        yield ReportSection(f"{mine[0].compared}{about}", notes=(note,), charts=(times,), page_only=True)
        if isinstance(mine[0].rows[0].result, TrainingResult):
            phases = Chart(
                "phases of a step of each target", partial(comparison_charts.phases_compared, mine)
            )
            yield ReportSection(f"{PHASES}{about}", charts=(phases,), page_only=True)
        causes = Chart("causes of time of each target", partial(comparison_charts.causes_compared, mine))
        yield ReportSection(f"{CAUSES}{about}", charts=(causes,), page_only=True)


def _capacity(found: Sequence[Group]) -> ReportSection:
    """Return the memory of every tier; a terminal shows it only if a result has no times."""
    result = "result" if any(group.narrow for group in found) else "weights"
    head = (result, "tier", "needed", "capacity", "filled", "scope", "")
    tables = []
    for group in found:
        uses = [(row.label, use) for row in group.rows for use in row.result.capacity]
        rows = tuple(
            (
                label,
                use.tier,
                held(use.needed, use),
                held(use.capacity, use),
                fraction(use.needed / use.capacity),
                use.scope,
                "fits" if use.fits else "does not fit",
            )
            for label, use in uses
        )
        refused = tuple(number for number, (_, use) in enumerate(uses) if not use.fits)
        caption = group.title if len(found) > 1 else ""
        tables.append(ReportTable(caption, head, rows, (2, 3, 4), keys=2, refused=refused, grouped=True))
    untimed = any(row.result.fits and row.result.step is None for group in found for row in group.rows)
    return ReportSection(CAPACITY, tables=tuple(tables), page_only=not untimed)


def _costs(found: Sequence[Group]) -> tuple[ReportSection, ...]:
    """Return the comparison of costs, for the results that have costs."""
    several = len(found) > 1
    priced = [
        Costed(f"{group.title}, {row.label}" if several else row.label, row.result, row.result.costs)
        for group in found
        for row in group.rows
        if row.result.costs is not None
    ]
    return costs_compared(priced) if priced else ()
