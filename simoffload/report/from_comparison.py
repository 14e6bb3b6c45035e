"""The report document of several results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from simoffload.errors import InputError, printable
from simoffload.planning.answers import Answer
from simoffload.planning.economics import Costed
from simoffload.planning.measured import MeasuredValue, agreement
from simoffload.report import comparison
from simoffload.report.comparison import (
    ComparisonRow,
    Group,
    Published,
    by_kind,
    groups,
    in_common,
    keys,
    tie_rule,
    warnings,
)
from simoffload.report.document import (
    INTERVAL,
    Chart,
    Datum,
    Entry,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    fraction,
    held,
)
from simoffload.report.formatting import NameFirst, counted, joined, largest, span, uncapitalized
from simoffload.report.from_result import MOST_BARS, result_document
from simoffload.report.presentation import BOUND, cells, presentation, ranged
from simoffload.report.sections.background import (
    COMMAND,
    commands,
    inputs,
    limits,
    scenario,
    settings,
    versions,
)
from simoffload.report.sections.capacity import CAPACITY
from simoffload.report.sections.costs import costs_compared, per_million
from simoffload.report.sections.performance import CAUSES, PHASES
from simoffload.report.summary import common_name, facts, summaries
from simoffload.results import SimulationResult, TrainingResult
from simoffload.units import format_number


def comparison_document(
    results: Sequence[SimulationResult],
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    notes: Sequence[str] = (),
    measured: Sequence[MeasuredValue] = (),
    command: str = "",
) -> ReportDocument:
    """Return the document of several results.

    ``comparison.groups`` explains ``published``, ``baseline`` and ``measured``; ``notes`` are sentences to
    begin with, and ``command`` is the command line that reproduces the comparison. Raises InputError if
    there are no results or ``baseline`` names none of them.
    """
    if not results:
        raise InputError.at("results", "there is nothing to compare")
    offers = tuple(map(Answer.of, results))
    found = groups(offers, published=published, baseline=baseline, measured=measured)
    numbers = tuple(dict.fromkeys(one for result in results for one in result.provenance.inputs))
    origins = Counter(origin for _, _, _, origin, *_ in numbers)
    programs = dict.fromkeys(one for result in results for one in result.provenance.versions.items())
    profiles = dict.fromkeys(one for result in results for one in result.provenance.profiles)
    bars = MOST_BARS // len(results)
    answers = summaries(found)
    return ReportDocument(
        in_common(offers) or ("comparison",),
        None,
        answers,
        tuple(warnings(found)),
        (*side_by_side(found, notes), *_beside(measured), *_after(found)),
        (inputs(numbers, origins), versions(programs, profiles, command), limits()),
        tuple(
            (f"{group.title}, {row.label}", _each(row.result, bars)) for group in found for row in group.rows
        ),
        common_name([result.name for result in results if not result.superseded]),
        answers,
        facts(offers),
    )


def agreed(document: ReportDocument, measured: Sequence[MeasuredValue]) -> ReportDocument:
    """Return a document whose answer ends with how measured values agree with it, if there are any."""
    added = (Verdict.of(agreement(measured)),) if measured else ()
    return document._replace(verdicts=(*document.verdicts, *added), summary=(*document.summary, *added))


def _after(found: Sequence[Group]) -> tuple[ReportSection, ...]:
    """Return the sections after the comparison itself."""
    return (*_charts(found), _capacity(found), *_costs(found), *_fastest(found))


def _beside(measured: Sequence[MeasuredValue]) -> Iterator[ReportSection]:
    """Yield the section about measured values, if there are any."""
    if not measured:
        return
    rows = tuple(tuple(_measured_row(one)) for one in measured)
    head = ("", "metric", "measured", "predicted", "ratio", "within 80 %", "source")
    table = ReportTable("", head, rows, (2, 3, 4), keys=2).without_empty_columns()
    notes = ("ratio: predicted over measured",)
    yield ReportSection("Measured and predicted", (agreement(measured),), (table,), notes, leads=True)


def _measured_row(one: MeasuredValue) -> Iterator[Entry]:
    """Return the cells of a measured value."""
    metric = one.metric
    yield printable(one.label)
    yield metric.column or metric.title
    yield Datum(metric.text(one.value), one.value, metric.unit.name)
    if one.predicted is None:
        yield from ("", "", "", printable(one.source))
        return
    ends = one.ends or ()
    text = ranged(one.result, metric.name) if ends else metric.text(one.predicted)
    yield Datum(text, one.predicted, metric.unit.name, ends=ends)
    yield Datum(f"{one.ratio or 0.0:.2f}", one.ratio)
    yield "" if one.inside is None else "yes" if one.inside else "no"
    yield printable(one.source)


def _each(result: Answer, bars: int) -> ReportDocument:
    """Return the document of one of the results, without costs and inputs, which are in the common
    document."""
    document = result_document(replace(result, scenario=None), bars=bars)
    return document._replace(background=(scenario(result.provenance.scenario),))


def side_by_side(
    found: Sequence[Group], notes: Sequence[str] = (), *, title: str = "Comparison"
) -> Iterator[ReportSection]:
    """Return a section for each kind of work, with a table for each model; ``notes`` begin the first."""
    kinds = by_kind(found)
    for number, (kind, mine) in enumerate(kinds.items()):
        sentences = [*_missing(mine), *_limits(mine), *_reservations(mine)]
        if number == 0:
            sentences = [*notes, *sentences]
        table = _table(mine, costs=len(mine) > 1)
        yield ReportSection(
            title if len(kinds) == 1 else f"{title}: {kind}",
            tuple(dict.fromkeys(sentences)),
            tuple(one for one in (table, _interval_table(mine)) if one.rows),
            tuple(_legend(mine, table)),
            charts=tuple(_times_chart(mine)),
            notes_on_terminal=True,
            leads=number == 0,
        )


def _times_chart(mine: Sequence[Group]) -> Iterator[Chart]:
    """Yield the chart of the times of the groups of a kind of work, if there are any."""
    if not any(row.result.step for group in mine for row in group.rows):
        return
    notes = [f"{mine[0].measure.title}, with 80 % intervals"]
    if any(len(group.leading) > 1 for group in mine):
        notes.append("blue: as fast within the uncertainty")
    if any(row.published for group in mine for row in group.rows):
        notes.append("diamonds: the published ratio of times, from the simulated baseline")
    if any(row.measured for group in mine for row in group.rows):
        notes.append("black diamonds: measured")
    label = f"{uncapitalized(mine[0].measure.title)} of each"
    if all(len(group.rows) == 1 for group in mine):  # models, the fastest first
        mine = sorted(mine, key=lambda group: group.rows[0].result.compared_s or math.inf)
    yield Chart(label, partial(comparison.times_compared, mine), "; ".join(notes))


def _fastest(found: Sequence[Group]) -> Iterator[ReportSection]:
    """Return what to type or to copy for the fastest result of each group."""
    for group in found:
        for row in [row for row in group.ordered if group.value(row) is not None][:1]:
            shown = commands if len(found) == 1 else partial(settings, title=COMMAND)
            label = row.label if len(found) == 1 else f"{row.label} of {group.title}"
            best = "fastest" if group.is_speed else "best"
            first = "" if len(group.rows) == 1 < len(found) else f"the {best}, "
            yield from shown(row.result.provenance, f"with {first}{label}")


def _labels(found: Sequence[Group]) -> Iterator[tuple[str, ComparisonRow]]:
    """Yield the rows of all groups with their labels, which have the model where there are several groups and
    nobody has named them."""
    for group in found:
        for row in group.rows:
            parts = (group.title, row.label) if len(group.rows) > 1 else (group.title,)
            yield row.label if group.named or len(found) == 1 else ", ".join(parts), row


def _missing(found: Sequence[Group]) -> Iterator[str]:
    """Return sentences that state why results have no times, and what would help where a group has none."""
    for group in found:
        rows = [(label, row) for label, row in _labels(found) if row in group.rows]
        for label, row in rows:
            if not row.result.fits:
                yield NameFirst(f"{label} {'is ' if row.result.refused else ''}{row.result.shortfall}")
        if not any(row.result.fits for row in group.rows):
            for label, row in rows:
                yield from (NameFirst(f"{label} would fit with {one}") for one in _remedies(row.result))


def _remedies(result: Answer) -> Iterator[str]:
    """Return the changes with which a result would fit, as one phrase."""
    found = result.remedies
    if found is not None and found.changes:
        yield f"{'; '.join(one.description for one in found.changes)} (simoffload fit)"


def _limits(compared: Sequence[Group]) -> Iterator[str]:
    """Return the limits of bottlenecks, such as "ai400x2 read is limited by ib0 in", by row if they
    differ."""
    found: dict[str, dict[str, list[str]]] = {}
    for label, row in _labels(compared):
        cause, limit = row.result.bottleneck, row.result.limit
        if cause and limit and limit != cause:
            found.setdefault(cause, {}).setdefault(limit, []).append(label)
    for cause, limits_found in found.items():
        for limit, labels in limits_found.items():
            where = f" ({joined(labels)})" if len(limits_found) > 1 else ""
            yield NameFirst(f"{cause} is limited by {limit}{where}")


def _reservations(compared: Sequence[Group]) -> Iterator[str]:
    """Return what makes intervals wide: no real runs, a host that nobody measured."""
    timed = [
        (label, row.result.confidence)
        for label, row in _labels(compared)
        if row.result.step_time_s is not None
    ]
    about = {
        "no comparable real runs": [label for label, found in timed if found.unlike],
        "beyond the calibrated range": [label for label, found in timed if found.extrapolates],
        "mostly the host thread's time, whose speed was not measured on this machine": [
            label for label, found in timed if found.caution
        ],
    }
    for text, labels in about.items():
        if labels:
            yield NameFirst(f"{'all' if len(labels) == len(timed) > 1 else joined(labels)}: {text}")


def _legend(found: Sequence[Group], table: ReportTable) -> Iterator[str]:
    """Explain the columns of the tables, as far as every reader sees them."""
    shown = [head for at, head in enumerate(table.head) if at not in table.page_columns]
    timed = [row.result for group in found for row in group.rows if row.result.step]
    if timed:
        wording = presentation(timed[0])
        formulas = timed[0].formulas()
        yield from (f"{one.name} = {formulas[one.name]}" for one, _ in timed[0].valued() if one.column)
        columns = {"", BOUND} & {"", *shown}
        own = f"{found[0].ratio_name} "
        columns |= {"ratio"} if any(head.startswith(own) for head in shown) else set()
        texts = [text for column, text in wording.legend.items() if text and column in columns]
        yield from ["; ".join(texts)] if texts else []
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


def _named_rows(
    found: Sequence[Group],
) -> tuple[tuple[str, ...], list[tuple[tuple[str, ...], ComparisonRow, Group]]]:
    """Return the headings and cells that identify the rows of all groups, the model's first if there are
    several groups."""
    keyed = [(group, *keys(group)) for group in found]
    heads = max((heads for _, heads, _ in keyed), key=len)
    rows = []
    for group, own, names in keyed:
        for name, row in zip(names, group.rows, strict=True):
            label = (row.result.name,) if len(own) < len(heads) else ()
            model = (group.model,) if len(found) > 1 else ()
            rows.append(((*model, *map(printable, label), *name), row, group))
    return (("model", *heads) if len(found) > 1 else heads), rows


def _table(found: Sequence[Group], *, costs: bool) -> ReportTable:
    """Return the table of the groups of a kind of work; ratios are within a group."""
    heads, named = _named_rows(found)
    first = found[0].rows[0].result
    baselines = {group.against for group in found if len(group.rows) > 1 or len(found) == 1}
    against = baselines.pop() if len(baselines) == 1 else ""
    ratio = f"{found[0].ratio_name} {f'vs {against}' if against else 'ratio'}"
    answer = "bottleneck" if any(row.result.step for _, row, _ in named) else "answer"
    head = (*heads, *cells(first), ratio, "throughput", "published", "cost/1M", answer, BOUND)
    rows = tuple(
        (*name, *_row(group, row, several=len(found) > 1, costs=costs)) for name, row, group in named
    )
    at = len(heads)
    return ReportTable(
        "",
        head,
        rows,
        (*range(at, at + len(cells(first)) + 4), len(head) - 1),
        keys=at,
        refused=tuple(number for number, (_, row, _) in enumerate(named) if not row.result.fits),
        grouped=len(found) > 1,
        page_columns=(len(head) - 1,) if len(found) > 1 else (),
    ).without_empty_columns()


def _interval_table(found: Sequence[Group]) -> ReportTable:
    """Return the interval of every time and rate of the table of the groups."""
    heads, named = _named_rows(found)
    rows = tuple((*name, *_spans(row.result)) for name, row, _ in named if row.result.step_time_s is not None)
    head = (*heads, *cells(found[0].rows[0].result))
    numbers = tuple(range(len(heads), len(head)))
    table = ReportTable(INTERVAL, head, rows, numbers, keys=len(heads), grouped=len(found) > 1)
    return table.without_empty_columns()


def _spans(result: Answer) -> Iterator[Entry]:
    intervals = result.intervals()
    for metric in result.declared.values():
        if metric.column and metric.name not in intervals:
            yield ""
        elif metric.column:
            ends = intervals[metric.name]
            text = span(*map(metric.text, ends), value=f"0 {metric.column}")
            yield Datum(text, unit=metric.unit.name, ends=ends)
    yield from [""] if result.asked and not result.compared_metric.column else []


def _row(group: Group, row: ComparisonRow, *, several: bool, costs: bool) -> Iterator[Entry]:
    """Return the cells of a row: times, ratios, and the bottleneck, or the reason why there is none."""
    result, step = row.result, row.result.step
    related = len(group.rows) > 1 or not several  # a single row has nothing to be compared with
    yield from cells(result).values()
    is_named = row.label != group.baseline or bool(group.against)  # the heading has no room for a long name
    yield Datum(row.ratio_text if is_named else "baseline", row.ratio) if row.ratio_text and related else ""
    yield Datum(row.throughput_text, row.throughput) if group.throughput_apart and row.throughput_text else ""
    ratio = row.published.ratio if row.published else None
    yield "" if ratio is None else Datum(f"{format_number(ratio)}×", ratio)
    yield per_million(result.costs) if costs and result.costs is not None else ""
    yield largest(step) if step is not None else _answer(result, lacking=several)
    # If more than the weights is offloaded, a table has no room for it.
    yield "" if group.narrow or step is None else fraction(result.bound_fraction or 0.0)


def _answer(result: Answer, *, lacking: bool) -> str:
    """Return what became of a result without times, with what it lacks most if that is asked for."""
    if result.refused or result.fits:
        return "refused" if result.refused else "fits"
    worst = min(result.capacity, key=lambda use: use.headroom)
    return f"lacks {counted(-worst.headroom, worst)} of {worst.tier}" if lacking else "does not fit"


def _charts(found: Sequence[Group]) -> Iterator[ReportSection]:
    kinds = by_kind(found)
    for kind, mine in kinds.items():
        if not any(row.result.step for group in mine for row in group.rows):
            continue
        about = f": {kind}" if len(kinds) > 1 else ""
        if isinstance(mine[0].rows[0].result, TrainingResult):
            phases = Chart("phases of a step of each target", partial(comparison.phases_compared, mine))
            yield ReportSection(f"{PHASES}{about}", charts=(phases,), page_only=True)
        causes = Chart("causes of time of each target", partial(comparison.causes_compared, mine))
        yield ReportSection(f"{CAUSES}{about}", charts=(causes,), page_only=True)


def _capacity(found: Sequence[Group]) -> ReportSection:
    """Return the memory of every tier; a terminal shows it only if a result has no times."""
    result = "result" if any(group.narrow for group in found) else "weights"
    head = (result, "tier", "needed", "capacity", "filled", "scope", "")
    untimed = any(row.result.fits and row.result.step is None for group in found for row in group.rows)
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
        folded = "" if untimed else "Memory of every tier"
        tables.append(
            ReportTable(caption, head, rows, (2, 3, 4), 2, refused=refused, grouped=True, folded=folded)
        )
    return ReportSection(CAPACITY, tables=tuple(tables), charts=_memory(found), page_only=not untimed)


def _memory(found: Sequence[Group]) -> tuple[Chart, ...]:
    """Return the chart of the fullest tier of each result, if any result has tiers."""
    if not any(row.result.capacity for group in found for row in group.rows):
        return ()
    label = "what the fullest tier of each must hold"
    drawn = partial(comparison.capacity_compared, found)
    return (Chart(label, drawn, "The fullest tier of each"),)


def _costs(found: Sequence[Group]) -> tuple[ReportSection, ...]:
    """Return the comparison of costs, for the results that have costs."""
    several = len(found) > 1
    priced = [
        Costed(f"{group.title}, {row.label}" if several else row.label, row.result, row.result.costs)
        for group in found
        for row in group.rows
        if row.result.costs is not None and not row.result.superseded
    ]
    return costs_compared(priced) if priced else ()
