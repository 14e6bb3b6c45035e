"""The report documents of one result: of a run, of a fit, and of advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simoffload.errors import printable
from simoffload.planning.answers import Answer
from simoffload.report.charts import timeline
from simoffload.report.document import ReportDocument, ReportSection, Verdict
from simoffload.report.first_screen import next_texts
from simoffload.report.formatting import simulated_work
from simoffload.report.presentation import headline
from simoffload.report.sections import background as origin
from simoffload.report.sections.capacity import caches_section, capacity, remedies_section
from simoffload.report.sections.costs import costs
from simoffload.report.sections.performance import (
    added,
    bounds,
    causes,
    how_sure,
    links,
    phases,
    programs,
    speed,
    storage,
)
from simoffload.report.summary import facts, result_summary
from simoffload.results import SimulationResult, TrainingResult

if TYPE_CHECKING:
    from simoffload.planning.advise import Advice, EvaluatedChange
    from simoffload.planning.bandwidth import StorageCurve
    from simoffload.planning.service_levels import ServiceLevel

MOST_BARS = 2_000
"""Number of operations drawn on a page, about 500 kB."""


def result_document(result: SimulationResult, *, command: str = "", bars: int = MOST_BARS) -> ReportDocument:
    """Build the document of one result, with explanations, advice and costs where the result has them.

    ``command`` reproduces the result; a page draws at most ``bars`` operations of its timeline.
    """
    drawn = (timeline(result, bars=bars),) if result.step is not None else ()
    result = Answer.of(result)
    answer, advice = result_summary(result), result.next_changes
    return ReportDocument(
        headline(result),
        result.fits,
        (answer,),
        result.all_warnings,
        (*findings(result), *_planned(result), *drawn),
        _background(result, command),
        name=printable(result.name),
        summary=(answer,),
        facts=facts([result]),
        better=next_texts(advice.helping) if advice is not None else "",
    )


def advice_document(
    advice: Advice,
    curve: StorageCurve | None = None,
    *,
    beside: ReportDocument | None = None,
    service: Sequence[ServiceLevel] = (),
    command: str = "",
) -> ReportDocument:
    """Build the document of advice: what was found ``beside`` it, changes that help, what faster storage
    would gain (``curve``), then the unchanged scenario. ``service`` are the limits that it has to keep."""
    from simoffload.report.sections.advice import advice_verdict, advised

    verdicts, looked = (beside.verdicts, beside.sections) if beside is not None else ((), ())
    first = [Verdict.of(f"{beside.heading}: ", *one.parts) for one in verdicts if beside is not None]
    found = (*findings(Answer.of(advice.result)), *costs(advice.result, advice.economics))
    unchanged = tuple(section._replace(leads=False) for section in found)
    verdicts = (*first, advice_verdict(advice, service))
    warned = (f"with {' or '.join(of[:2])}: {text}" for text, of in advice.new_warnings.items())
    stopped = (f"not complete: {advice.extent}",) if advice.stopped else ()
    paid = [one.economics for one in (*advice.helping, *advice.uncertain) if one.extra]
    document = result_document(advice.result, command=command)
    return document._replace(
        verdicts=verdicts,
        warnings=(
            *stopped,
            *document.warnings,
            *warned,
            *(text for one in paid[:1] for text in one.old_prices(paid)),
        ),
        summary=verdicts,
        better=next_texts(_others(advice)),
        sections=(*looked, *advised(advice, curve), *unchanged),
    )


def _others(advice: Advice) -> list[EvaluatedChange]:
    """Return the first change with other answers, which the verdict often has no room for."""
    from simoffload.report.sections.advice import by_answers

    return by_answers(advice.helping)[1][:1]


def brief_document(result: Answer) -> ReportDocument:
    """Build the document of one result with the section alone that a chart of it is of."""
    shown = capacity(result) if result.step is None else causes(result, result.step)
    found, answer = headline(result), result_summary(result)
    name, about = printable(result.name), facts([result])
    return ReportDocument(found, result.fits, (answer,), (), (shown,), (), (), name, (answer,), about)


def findings(result: Answer) -> tuple[ReportSection, ...]:
    """The sections about the answer, in the order of reading."""
    return tuple(_findings(result))


def _findings(result: Answer) -> Iterator[ReportSection]:
    if result.refused:
        yield ReportSection("Why it is refused", tuple(result.refused))
        return
    training = result if isinstance(result, TrainingResult) else None
    if result.choice is not None and len(result.choice.programs) > 1:
        yield programs(result.choice)
    yield capacity(result)
    if result.remedies is not None:
        yield remedies_section(result.remedies)
    if any(one.batch.most for one in result.caches):
        yield caches_section(result)
    if result.step is not None:
        yield speed(result)
        if training:
            yield phases(training)
        yield causes(result, result.step)
        yield bounds(result, result.step)
        yield links(result, result.step)
    if training:
        yield storage(training)
    yield from added(result)
    if result.step is not None:
        yield how_sure(result)


def _planned(result: Answer) -> Iterator[ReportSection]:
    """The sections that need further simulations: explanations, next steps, costs."""
    if result.explanation is not None:
        from simoffload.report.sections.advice import explained

        yield from explained(result.explanation)
    if result.next_changes is not None:
        from simoffload.report.sections.advice import next_steps_section

        yield next_steps_section(result.next_changes)
    if result.costs is not None:
        yield from costs(result, result.costs)


def _background(result: Answer, command: str) -> tuple[ReportSection, ...]:
    """The sections about the inputs of the answer; ``command`` reproduces it."""
    origins = result.provenance
    work = simulated_work(result)
    return (
        origin.inputs(origins.inputs, origins.origins),
        *origin.settings(origins),
        origin.scenario(origins.scenario, command),
        *((ReportSection("Simulation", (work,)),) if work else ()),
        origin.versions(origins.versions.items(), origins.profiles),
        origin.limits(),
    )
