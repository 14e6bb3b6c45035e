"""What is told of several results side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simoffload.planning.costs import Costed
from simoffload.report.comparison import Group, Row, by_kind, in_common, keys, tie_rule
from simoffload.report.kinds import words
from simoffload.report.phrases import held_back, largest
from simoffload.report.sections.capacity import CAPACITY
from simoffload.report.sections.causes import CAUSES
from simoffload.report.sections.costs import costs_compared
from simoffload.report.sections.speed import PHASES
from simoffload.report.sections.structure import Datum, Entry, Section, Table, fraction, held
from simoffload.results.training import TrainingResult
from simoffload.units import format_number

__all__ = ["charted", "costs_of", "overview"]


def charted(found: Sequence[Group]) -> dict[str, tuple[str, str, str]]:
    """For each kind of work the titles of its sections that are charts: times, phases, causes of time.

    Phases are empty for work that has none; kinds of which nothing has times are left out.
    """
    kinds = by_kind(found)
    titles = {}
    for kind, mine in kinds.items():
        first = mine[0].rows[0].result
        about = f": {kind}" if len(kinds) > 1 else ""
        if any(row.result.step for group in mine for row in group.rows):
            phases = f"{PHASES}{about}" if isinstance(first, TrainingResult) else ""
            titles[kind] = f"{mine[0].compared}{about}", phases, f"{CAUSES}{about}"
    return titles


def overview(found: Sequence[Group]) -> tuple[Section, ...]:
    """The answers, what they are made up of, and what every tier holds."""
    kinds = by_kind(found)
    side_by_side = (_side_by_side(kind, mine, alone=len(kinds) == 1) for kind, mine in kinds.items())
    return (*side_by_side, *_charts(found), _capacity(found))


def _side_by_side(kind: str, found: Sequence[Group], *, alone: bool) -> Section:
    first = found[0].rows[0].result
    published = any(row.published for group in found for row in group.rows)
    notes = [f"{name} = {first.formulas[name]}" for name in words(first).formulas]
    for group in found:
        notes += [
            f"Published for {group.title}, {row.label}: {row.published.source}"
            for row in group.rows
            if row.published and row.published.source
        ]
    notes += filter(None, [tie_rule(found)])
    tables = tuple(_table(group, published=published) for group in found)
    return Section(f"Side by side{'' if alone else f': {kind}'}", "", tables=tables, notes=tuple(notes))


def _table(group: Group, *, published: bool) -> Table:
    heads, names = keys(group)
    columns = [cell.head for cell in words(group.rows[0].result).cells]
    columns.append(f"× {group.against}" if group.against else "ratio")
    columns += ["× throughput"] if group.throughput_apart else []
    columns += ["published"] if published else []
    rows = tuple(
        (*name, *_numbers(group, row, published=published), *_reasons(group, row))
        for name, row in zip(names, group.rows, strict=True)
    )
    bound = () if group.narrow else ("bound reached",)
    last = len(heads) + len(columns)
    numbers = (*range(len(heads), last), *((last + 1,) if bound else ()))
    return Table(
        " · ".join(in_common([row.result for row in group.rows])),
        (*heads, *columns, "most of the time", *bound),
        rows,
        numbers,
        keys=len(heads),
        refused=tuple(number for number, row in enumerate(group.rows) if not row.result.fits),
    )


def _numbers(group: Group, row: Row, *, published: bool) -> Iterator[Entry]:
    for cell in words(row.result).cells:
        yield Datum(cell.value, cell.number) if cell.value else ""
    yield Datum(row.ratio_text, row.ratio) if row.ratio_text else ""
    if group.throughput_apart:
        yield Datum(row.throughput_text, row.throughput) if row.throughput_text else ""
    if published:
        ratio = row.published.ratio if row.published else None
        yield "" if ratio is None else Datum(f"{format_number(ratio)}×", ratio)


def _reasons(group: Group, row: Row) -> Iterator[Entry]:
    """What most of the time goes to, or why there is none; the fraction of the bound that is reached."""
    result = row.result
    step = result.step
    yield largest(step) + held_back(step) if step is not None else result.shortfall or "fits"
    if not group.narrow:
        yield fraction(result.bound_fraction or 0.0) if step is not None else ""


def _charts(found: Sequence[Group]) -> Iterator[Section]:
    """Sections whose charts show what is in the tables of the results."""
    drawn = any(row.published for group in found for row in group.rows)
    diamonds = " Diamonds: the published ratio times the simulated baseline." if drawn else ""
    for times, phases, causes in charted(found).values():
        yield Section(times, "", notes=(f"Logarithmic axis.{diamonds}",))
        if phases:
            yield Section(phases, "")
        yield Section(causes, "")


def _capacity(found: Sequence[Group]) -> Section:
    result = "result" if any(group.narrow for group in found) else "weights"
    head = (result, "tier", "needed", "has", "filled", "counted", "")
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
        tables.append(Table(caption, head, rows, (2, 3, 4), keys=2, refused=refused))
    return Section(CAPACITY, "", tables=tuple(tables))


def costs_of(found: Sequence[Group]) -> tuple[Section, ...]:
    """What the answers cost side by side, of those results that can say so."""
    several = len(found) > 1
    priced = [
        Costed(f"{group.title}, {row.label}" if several else row.label, row.result, row.result.costs)
        for group in found
        for row in group.rows
        if row.result.costs is not None
    ]
    return costs_compared(priced) if priced else ()
