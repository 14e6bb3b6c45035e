"""What each tier must hold: at its peak, at every moment of a run, and after others' rules."""

from __future__ import annotations

from collections.abc import Iterable

from simoffload.report.sections.structure import Datum, Entry, Section, Table, held
from simoffload.report.training_tables import estimates, moments
from simoffload.results.capacity import TierUse
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["CAPACITY", "capacity"]

CAPACITY = "Capacity"
_UNITS = (
    "GiB, TiB: powers of 1024, as GPU and memory tools show them. GB, TB: powers of 1000, as storage "
    "is sold. Pinned: page-locked host memory."
)


def capacity(result: SimulationResult) -> Section:
    """Every tier with the parts of what it holds."""
    tables = [_peaks(result.capacity)]
    if isinstance(result, TrainingResult):
        tables += [*_moments(result), *_estimates(result)]
    return Section(CAPACITY, "", tables=tuple(tables), notes=(_UNITS,))


def _peaks(uses: Iterable[TierUse]) -> Table:
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
    return Table("", head, tuple(rows), (2, 3, 4), keys=2, refused=tuple(refused))


def _moments(result: TrainingResult) -> tuple[Table, ...]:
    """What each tier holds at each moment; nothing where there is only one."""
    found = moments(result)
    if len(found) < 2:
        return ()
    head = ("moment", *(f"{use.tier} {use.scope}" for use in found[0].uses))
    rows: list[tuple[Entry, ...]] = [(each.name, *map(_at_a_moment, each.uses)) for each in found]
    return (Table("Needed at each moment", head, tuple(rows), tuple(range(1, len(head)))),)


def _at_a_moment(use: TierUse) -> Datum:
    one = held(use.needed, use)
    return one if use.fits else one._replace(text=f"{one.text} (does not fit)")


def _estimates(result: TrainingResult) -> tuple[Table, ...]:
    rows = estimates(result)
    return (Table("What others' rules say", ("rule", "memory", "formula"), rows, ()),) if rows else ()
