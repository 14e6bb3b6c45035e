"""Everything that is told of a result, subject by subject, for page, Markdown, table and terminal.

A subject is a :class:`Section`: it is told the same wherever it is shown, and a new one is added here once.
"""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.report.phrases import worked
from simoffload.report.sections import background as origin
from simoffload.report.sections.around_training import around_training
from simoffload.report.sections.capacity import CAPACITY, capacity
from simoffload.report.sections.causes import BOUND, CAUSES, bounds, causes, links
from simoffload.report.sections.costs import costs
from simoffload.report.sections.explanation import explained, how_sure
from simoffload.report.sections.speed import PHASES, phases, speed
from simoffload.report.sections.storage import storage
from simoffload.report.sections.structure import Datum, Entry, Listing, Section, Table, shown
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = [
    "BOUND",
    "CAPACITY",
    "CAUSES",
    "PHASES",
    "Datum",
    "Entry",
    "Listing",
    "Section",
    "Table",
    "background",
    "findings",
    "planned",
    "shown",
]


def findings(result: SimulationResult) -> tuple[Section, ...]:
    """The answer, in the order of reading."""
    return tuple(_findings(result))


def _findings(result: SimulationResult) -> Iterator[Section]:
    if result.refused:
        return
    training = result if isinstance(result, TrainingResult) else None
    yield capacity(result)
    if result.step is not None:
        yield speed(result)
        if training:
            yield phases(training)
        yield causes(result, result.step)
        yield bounds(result, result.step)
        yield links(result, result.step)
    if training:
        yield storage(training)
    yield from around_training(result)
    if result.step is not None:
        yield how_sure(result)


def planned(result: SimulationResult) -> tuple[Section, ...]:
    """What the result says when it is asked: why it is so, what would help, and what it costs."""
    return (*_explained(result), *(() if result.costs is None else costs(result, result.costs)))


def _explained(result: SimulationResult) -> Iterator[Section]:
    if result.explanation is not None:
        yield from explained(result.explanation)
    if result.next_changes is not None:
        from simoffload.report.sections.advice import what_next

        yield what_next(result.next_changes)


def background(result: SimulationResult, *, command: str = "") -> tuple[Section, ...]:
    """What the answer was computed from; ``command`` is what reproduces it."""
    origins = result.provenance
    told = worked(result)
    return (
        origin.inputs(origins.inputs, origins.origins),
        *origin.settings(origins),
        origin.scenario(origins.scenario, command),
        *((Section("Simulation", "", ("; ".join(told),)),) if told else ()),
        origin.versions(origins.versions.items(), origins.profiles),
        origin.limits(),
    )
