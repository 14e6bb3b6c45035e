"""The document of one result: the answer, why it is so and what it was computed from."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.report.document import ReportDocument, ReportSection
from simoffload.report.formatting import percent, place, worked
from simoffload.report.presentation import TierAssignment, presentation
from simoffload.report.sections import background as origin
from simoffload.report.sections.capacity import capacity
from simoffload.report.sections.causes import bounds, causes, links
from simoffload.report.sections.costs import costs
from simoffload.report.sections.explanation import confidence_section, explained
from simoffload.report.sections.remedies import remedies_section
from simoffload.report.sections.speed import phases, speed
from simoffload.report.sections.timeline import timeline
from simoffload.report.sections.training_overheads import storage, training_overheads
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["MOST_BARS", "findings", "headline", "result_document", "verdict"]

MOST_BARS = 12_000
"""Operations drawn on a page, about 2 MB."""


def result_document(result: SimulationResult, *, command: str = "", bars: int = MOST_BARS) -> ReportDocument:
    """Everything that is told of one result, with what it answers when asked.

    ``command`` is what reproduces it; a page draws at most ``bars`` operations of its timeline.
    """
    shown = (timeline(result, bars=bars),) if result.step is not None else ()
    return ReportDocument(
        headline(result),
        result.fits,
        (verdict(result),),
        result.all_warnings,
        (*findings(result), *_planned(result), *shown),
        _background(result, command),
    )


def headline(result: SimulationResult) -> tuple[str, ...]:
    """Model and work in a few words each."""
    return result.model, result.dtype, *presentation(result).work, result.platform


def verdict(result: SimulationResult) -> str:
    """The answer in one sentence."""
    shown = presentation(result)
    how = f", {shown.how}" if shown.how else ""
    where = f"on {result.platform} with {_places(shown.places)}{how}"
    if result.refused:
        return f"{result.model} {where} is refused: {'; '.join(result.refused)}."
    if not result.fits:
        return f"{result.model} does not fit {where}: {'; '.join(result.advice)}."
    step = result.step
    if step is None or not shown.took:
        return f"{result.model} fits {where}."
    part = f"{step.bottleneck.cause}, {percent(step.bottleneck.exposed_s / step.time_s)}"
    return f"{result.model} {shown.verb} {where}: {shown.took}; largest part: {part}."


def _places(places: tuple[TierAssignment, ...]) -> str:
    """ "its weights in HBM and its optimizer on raid"."""
    if len(places) > 1 and len({each.tier for each in places}) == 1:
        return f"its {' and '.join(each.what for each in places)} {place(places[0].tier)}"
    return " and ".join(f"its {each.what} {place(each.tier)}" for each in places)


def findings(result: SimulationResult) -> tuple[ReportSection, ...]:
    """The answer, in the order of reading."""
    return tuple(_findings(result))


def _findings(result: SimulationResult) -> Iterator[ReportSection]:
    if result.refused:
        return
    training = result if isinstance(result, TrainingResult) else None
    yield capacity(result)
    if result.remedies is not None:
        yield remedies_section(result.remedies)
    if result.step is not None:
        yield speed(result)
        if training:
            yield phases(training)
        yield causes(result, result.step)
        yield bounds(result, result.step)
        yield links(result, result.step)
    if training:
        yield storage(training)
    yield from training_overheads(result)
    if result.step is not None:
        yield confidence_section(result)


def _planned(result: SimulationResult) -> Iterator[ReportSection]:
    """What the result says when it is asked: why it is so, what would help, and what it costs."""
    if result.explanation is not None:
        yield from explained(result.explanation)
    if result.next_changes is not None:
        from simoffload.report.sections.advice import next_steps_section

        yield next_steps_section(result.next_changes)
    if result.costs is not None:
        yield from costs(result, result.costs)


def _background(result: SimulationResult, command: str) -> tuple[ReportSection, ...]:
    """What the answer was computed from; ``command`` is what reproduces it."""
    origins = result.provenance
    shown = worked(result)
    return (
        origin.inputs(origins.inputs, origins.origins),
        *origin.settings(origins),
        origin.scenario(origins.scenario, command),
        *((ReportSection("Simulation", ("; ".join(shown),)),) if shown else ()),
        origin.versions(origins.versions.items(), origins.profiles),
        origin.limits(),
    )
