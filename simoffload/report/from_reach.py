"""The report document of the inverse question: which values of a number keep the service levels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simoffload.documents import parse_path
from simoffload.planning.reach import EvaluatedValue, Reach
from simoffload.planning.service_levels import ServiceLevel
from simoffload.report import charts
from simoffload.report.document import (
    INTERVAL,
    Chart,
    Datum,
    Entry,
    Listing,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import NameFirst, largest
from simoffload.report.presentation import BRACKETS, headline, in_words, ranged
from simoffload.report.sections import background
from simoffload.report.sections.background import COMMAND
from simoffload.report.summary import facts
from simoffload.results import SimulationResult
from simoffload.units import format_number, percent

_TIMES = 2
"""Ratio from which a service level is missed by so many times, and not by a percentage."""
_MEANINGS = (
    "kept: by the predicted value; at the limit itself about half of real runs miss it",
    f"counts are exact, other numbers have three digits; {BRACKETS}",
)


def reach_document(found: Reach, *, run: str = "", command: str = "") -> ReportDocument:
    """Return the document of the inverse question; ``run`` is the command that simulates the value, and
    ``command`` the one that asked."""
    shown = found.best if found.value is None else found.value
    result = shown.result or found.now.result
    typed = Listing(f"with {shown.value}", run)
    sections = [_values(found)]
    if found.reached and run:
        sections.append(ReportSection(COMMAND, listings=(typed,)))
    answer = _verdict(found)
    return ReportDocument(
        (found.scenario.name,) if result is None else headline(result),
        None,
        (answer,),
        () if result is None else tuple(result.warnings),
        tuple(sections),
        () if result is None else _background(result, command),
        name=found.scenario.name if result is not None else "",
        summary=(answer,),
        facts=() if result is None else facts([result]),
    )


def _background(result: SimulationResult, command: str) -> tuple[ReportSection, ...]:
    origins = result.provenance
    return (
        background.inputs(origins.inputs, origins.origins),
        background.scenario(origins.scenario, command),
        background.versions(origins.versions.items(), origins.profiles),
        background.limits(),
    )


def _verdict(found: Reach) -> Verdict:
    """Return the verdict: the value, what it gives and what binds there, and what the next value gives."""
    levels = " and ".join(one.text for one in found.service)
    if found.value is None:
        return Verdict.of(_unreached(found, levels))
    now = f"; now {found.now.value}" if found.now.value else ""
    others = "keeps it" if len(found.others) == 1 else "and other values keep it"
    beyond = found.beyond
    value = found.value
    ending = f"; beyond, with {beyond.value}, {_given(beyond, found.service)}" if beyond else ""
    given = _given(value, found.service, limited=False)
    return Verdict.of(
        f"{levels} with {_number_name(found.path)} {_range(found)}: {given}",
        VerdictPart(ending, 1),
        VerdictPart(now, 3),
        *(VerdictPart(f"; {one.value} {others}, too", 4) for one in found.others[:1]),
    )


def _number_name(path: str) -> str:
    """Return the name of a number in words: "a batch size" for workload.batch_size; other names as they
    are."""
    section, _, key = path.rpartition(".")
    article = "an" if key[:1] in "aeiou" else "a"
    return f"{article} {key.replace('_', ' ')}" if section == "workload" else path


def _range(found: Reach) -> str:
    """Return the values that keep the service levels: "of 2360 MB/s or more", "from 47 to 661"."""
    least, most = found.least, found.most
    assert least is not None
    assert most is not None
    if found.below is None and found.above is None:
        return f"of any value from {least.value} to {most.value}"
    if least.value == most.value:
        return f"of {least.value}"
    if found.above is None:
        return f"of {least.value} or more"
    if found.below is None:
        return f"of {most.value} or less"
    return f"from {least.value} to {most.value}"


def _given(one: EvaluatedValue, service: tuple[ServiceLevel, ...], *, limited: bool = True) -> str:
    """Return what a value gives: its metrics and, if they are ``limited``, the bottleneck, or why there are
    none."""
    result = one.result
    if result is None or result.step is None:
        return one.why if one.status == "does not fit" else f"{one.status}, {one.why}"
    values = ", ".join(
        f"{level.name} {in_words(result, level.metric.name, short=True)}{_by(level, result)}"
        for level in service
    )
    return f"{values}, bottleneck {largest(result.step)}" if limited else values


def _by(level: ServiceLevel, result: SimulationResult) -> str:
    """Return by how much a service level is missed: ", 0.1 % too long", or ", 48 times too long"; nothing
    where it is kept."""
    ratio = level.missed(result)
    over = percent(ratio - 1) if ratio < _TIMES else f"{format_number(ratio)} times"
    how = "low" if level.metric.larger else "long" if level.metric.unit.name == "s" else "high"
    return f", {over} too {how}" if ratio > 1 else ""


def _unreached(found: Reach, levels: str) -> str:
    """Return why no value keeps the service levels, and what comes nearest."""
    low, high = found.trials[0].value, found.trials[-1].value
    text = f"no value of {found.path} from {low} to {high} gives {levels}"
    if found.best.status not in {"", "does not fit"}:
        reasons = dict.fromkeys(one.why for one in (found.best, *found.trials, found.now) if one.why)
        return f"{text}: {'; '.join(list(reasons)[:3])}"
    given = _given(found.best, found.service)
    if found.best.result is not None and not found.matters:
        return f"{text}, as it changes nothing: {given}"
    beside = (f"with {one.value}: {_given(one, found.service)}" for one in (found.below, found.above) if one)
    return "; ".join((f"{text}; nearest, with {found.best.value}: {given}", *beside))


def _values(found: Reach) -> ReportSection:
    metrics = [(level.name, INTERVAL) for level in found.service]
    name = str(parse_path(found.path)[-1])
    head = (name, "", *(text for pair in metrics for text in pair), "bottleneck")
    rows = tuple(tuple(_row(one, found)) for one in found.trials)
    numbers = (0, *range(2, 2 + 2 * len(metrics)))
    missed = tuple(at for at, one in enumerate(found.trials) if not one.kept)
    intervals = tuple(range(3, 2 + 2 * len(metrics), 2)) if metrics[1:] else ()
    table = ReportTable("", head, rows, numbers, refused=missed, page_columns=intervals)
    ends = {one.value for one in (found.below, found.above) if one is not None and one.result is None}
    reasons = tuple(
        NameFirst(
            f"{one.value} is refused: {one.why}" if one.status == "refused" else f"{one.value}: {one.why}"
        )
        for one in found.trials
        if one.value in ends
    )
    drawn = any(one.result is not None for one in found.trials)
    chart = Chart(f"{found.service[0].name} over {found.path}", partial(charts.reached, found))
    return ReportSection(
        "Values that were tried",
        reasons,
        (table,),
        _MEANINGS,
        charts=(chart,) if drawn else (),
        notes_on_terminal=True,
    )


def _row(one: EvaluatedValue, found: Reach) -> Iterator[Entry]:
    result = one.result
    yield one.value
    yield one.status or ("kept" if one.kept else "missed")
    for level in found.service:
        if result is None:
            yield from ("", "")
            continue
        value, _, interval = ranged(result, level.metric.name, short=True).removesuffix("]").partition(" [")
        yield Datum(value, level.of(result), level.metric.unit.name)
        yield interval
    yield largest(result.step) if result is not None and result.step is not None else ""
