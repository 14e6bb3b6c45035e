"""One result as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from simoffload.errors import printable
from simoffload.report import training_text
from simoffload.report.columns import columns
from simoffload.report.fit_text import changes
from simoffload.report.kinds import words
from simoffload.report.paper import MARGIN, Paper
from simoffload.report.phrases import (
    alike,
    bottleneck,
    bound,
    capacity,
    carried,
    counted,
    group_links,
    origins,
    percent,
    worked,
)
from simoffload.report.sections import Section, Table, findings, planned
from simoffload.report.sections.groups import groups
from simoffload.report.summary import headline, verdict
from simoffload.results.capacity import TierUse
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.units import format_seconds

__all__ = ["result_text", "tabled", "told"]

_MAX_LINKS = 8


def result_text(result: SimulationResult, *, color: bool = False, width: int = 100) -> str:
    """Describe one result: verdict, capacity, speed, causes, bound, links, what it answers when asked,
    warnings, origin of the inputs."""
    paper = Paper(color=color, width=width)
    training = result if isinstance(result, TrainingResult) else None
    paper.lines += [paper.ink(line, "bold") for line in wrap(" · ".join(headline(result)), paper.width)]
    paper.paragraph("Verdict", verdict(result), "green" if result.fits else "red")
    paper.section("Capacity", _capacity(paper, result.capacity))
    if result.remedies is not None:
        paper.section("Changes", changes(paper, result.remedies))
    if training:
        paper.section("Memory", training_text.memory(paper, training))
    if result.step is not None:
        paper.section("Speed", _speed(paper, result))
        if training:
            paper.section("Phases", training_text.phases(paper, training))
            paper.section("Why", training_text.causes(paper, training, result.step))
        else:
            paper.section("Why", _causes(paper, result.step))
        paper.section("", tabled(paper, groups(result.step)))
        most = bottleneck(result.step, words(result).called)
        paper.paragraph("Bound", f"{most}; {bound(result.step)}.", "bold")
        paper.section("Links", _links(paper, result.step))
    if training:
        paper.section("Storage", training_text.storage(paper, training))
    for one in (*findings(result), *planned(result)):
        if one.short:
            paper.section(one.short, told(paper, one))
    for warning in result.all_warnings:
        paper.paragraph("Warning", printable(warning), "yellow")
    if result.work:
        paper.paragraph("Engine", "; ".join(worked(result)))
    paper.paragraph("Inputs", origins(result.provenance.origins) or "none")
    return str(paper)


def _capacity(paper: Paper, uses: Sequence[TierUse]) -> list[str]:
    """Each tier at its peak; when that is, where the need changes over the run."""
    table: list[tuple[str, ...]] = [("tier", "needed", "has", "free", "", "", "at its peak")]
    for use in uses:
        sizes = (counted(size, use) for size in (use.needed, use.capacity, use.headroom))
        answer = "fits" if use.fits else "does not fit"
        table.append((printable(use.tier), *sizes, use.scope, answer, printable(use.moment)))
    if not any(use.moment for use in uses):
        table = [row[:-1] for row in table]
    terms = (
        ", ".join(
            f"{printable(term.name)} {counted(term.size, use)}{' (pinned)' if term.pinned else ''}"
            for term in use.terms
        )
        for use in uses
    )
    styles = ["" if use.fits else "red" for use in uses]
    return paper.headed(table, right=(1, 2, 3), styles=styles, below=[paper.detail(text) for text in terms])


def _speed(paper: Paper, result: SimulationResult) -> list[str]:
    metrics = words(result).metrics
    shares = any(metric.share for metric in metrics)
    rows = [(metric.key, metric.value, *([metric.share] if shares else []), "") for metric in metrics]
    told = []
    for metric, line in zip(metrics, columns(rows, right=(1, 2)), strict=True):
        first, *rest = wrap(result.formulas[metric.key], max(20, paper.width - MARGIN - len(line)))
        told.append(line + paper.ink(first, "dim"))
        told += (" " * len(line) + paper.ink(more, "dim") for more in rest)
    return told


def told(paper: Paper, section: Section) -> list[str]:
    """Sentences, then tables."""
    lines = [line for text in section.sentences for line in paper.wrapped(printable(text))]
    return lines + [line for table in section.tables for line in tabled(paper, table)]


def tabled(paper: Paper, table: Table) -> list[str]:
    """Rows under their head, without what a terminal has no room for."""
    kept = [column for column in range(len(table.head)) if column not in table.aside]
    rows = [[row[column] for column in kept] for row in (table.head, *table.texts)]
    right = [kept.index(column) for column in table.numbers if column in kept]
    return paper.headed(rows, right=right, keys=table.keys)


def _causes(paper: Paper, step: PassResult) -> list[str]:
    table = [
        (f"{printable(step.name)}, {format_seconds(step.time_s)}", "exposed", "share", "busy", "held back by")
    ]
    for share in step.shares:
        part = percent(share.exposed_s / step.time_s)
        exposed, busy = format_seconds(share.exposed_s), format_seconds(share.busy_s)
        table.append((printable(share.cause), exposed, part, busy, printable(share.limit)))
    return paper.headed(table, right=(1, 2, 3))


def _links(paper: Paper, step: PassResult) -> list[str]:
    found = group_links(step.links)
    table = [("link", "moved", "busy", "full", "capacity")]
    for group in found[:_MAX_LINKS]:
        use = group.use
        times = (percent(use.busy_s / step.time_s), percent(use.saturated_s / step.time_s))
        table.append((alike(group.names), carried(use), *times, capacity(use)))
    more = [f"and {len(found) - _MAX_LINKS} more"] if len(found) > _MAX_LINKS else []
    return [*paper.headed(table, right=(1, 2, 3, 4)), *more]
