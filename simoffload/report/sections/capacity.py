"""What each tier must hold: at its peak, at every moment of a run, and after others' rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, ReportSection, ReportTable, held
from simoffload.report.training_tables import stage_needs
from simoffload.results.capacity import TierUse
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.units import format_bytes

__all__ = ["CAPACITY", "capacity"]

CAPACITY = "Capacity"
_UNITS = (
    "GiB, TiB: powers of 1024, as GPU and memory tools show them. GB, TB: powers of 1000, as storage "
    "is sold. Pinned: page-locked host memory."
)


def capacity(result: SimulationResult) -> ReportSection:
    """Every tier with the parts of what it holds."""
    tables = [_peaks(result.capacity)]
    if isinstance(result, TrainingResult):
        tables += [*_memory_stages(result), *_estimates(result)]
    return ReportSection(CAPACITY, tables=tuple(tables), notes=(_UNITS,), charts=(_chart(result),))


def _chart(result: SimulationResult) -> Chart:
    """Each tier at its peak, or at every moment where there are several."""
    if isinstance(result, TrainingResult) and len(result.memory_stages) > 1:
        return Chart("what each tier must hold at each moment", partial(charts.memory, result))
    return Chart("what each tier must hold", partial(charts.capacity, result.capacity))


def _peaks(uses: Iterable[TierUse]) -> ReportTable:
    rows: list[tuple[Entry, ...]] = []
    refused: list[int] = []
    for use in uses:
        if not use.fits:
            refused.append(len(rows))
        sizes = (held(size, use) for size in (use.needed, use.capacity, use.headroom))
        rows.append(
            (use.tier, "in all", *sizes, use.scope, "fits" if use.fits else "does not fit", use.moment)
        )
        for term in use.terms:
            name = f"{term.name}, pinned" if term.pinned else term.name
            rows.append((use.tier, name, held(term.size, use), *[""] * 5))
    head: tuple[str, ...] = ("tier", "part", "needed", "has", "free", "counted", "", "at its peak")
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return ReportTable("", head, tuple(rows), (2, 3, 4), keys=2, refused=tuple(refused), grouped=True)


def _memory_stages(result: TrainingResult) -> tuple[ReportTable, ...]:
    """What each tier holds at each moment; nothing where there is only one."""
    found = stage_needs(result)
    if len(found) < 2:
        return ()
    head = ("stage", *(f"{use.tier} {use.scope}" for use in found[0].uses))
    rows: list[tuple[Entry, ...]] = [(each.name, *map(_at_a_moment, each.uses)) for each in found]
    fits = [all(use.fits for use in each.uses) for each in found]
    if any(use.passing for use in result.capacity):
        steady = [held(use.steady, use) for use in result.capacity]
        rows.append(("from the second step on", *steady))
        fits.append(all(use.steady <= use.capacity for use in result.capacity))
    refused = tuple(number for number, fit in enumerate(fits) if not fit)
    numbers = tuple(range(1, len(head)))
    return (ReportTable("Needed at each moment", head, tuple(rows), numbers, refused=refused),)


def _at_a_moment(use: TierUse) -> Datum:
    one = held(use.needed, use)
    return one if use.fits else one._replace(text=f"{one.text} (does not fit)")


def _estimates(result: TrainingResult) -> tuple[ReportTable, ...]:
    """What others' rules say of the memory; nothing where there are none."""
    rows = []
    for one in result.estimates:
        sizes = ((one.per_gpu, "per GPU"), (one.per_host, "per host"), (one.total, "in all"))
        sizes_text = ", ".join(f"{format_bytes(size, binary=True)} {scope}" for size, scope in sizes if size)
        rows.append((one.name, sizes_text, one.formula))
    return (
        (ReportTable("What others' rules say", ("rule", "memory", "formula"), tuple(rows), ()),)
        if rows
        else ()
    )
