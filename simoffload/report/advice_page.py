"""What to change about a scenario, for terminal, page and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from simoffload.errors import printable
from simoffload.planning.advise import Advice, Search
from simoffload.planning.bandwidth import StorageCurve
from simoffload.report.advice_figures import front, gains
from simoffload.report.chart import Figure
from simoffload.report.explanation_figures import bandwidth
from simoffload.report.paper import Paper
from simoffload.report.sections import Section, findings
from simoffload.report.sections.advice import FRONT, GAINS, advice_verdict, purchase_verdict
from simoffload.report.sections.costs import costs
from simoffload.report.sections.explanation import STORAGE
from simoffload.report.story import Story, story_of
from simoffload.report.text import told

__all__ = ["advice_figures", "advice_story", "advice_text"]

_MOST_BARS = 15


def advice_story(
    advice: Advice, found: Sequence[Section], *, search: Search | None = None, command: str
) -> Story:
    """The advice first, then the scenario as it is; ``found`` is what the advice consists of."""
    base = story_of(advice.result, command=command)
    after = (*findings(advice.result), *costs(advice.result, advice.economics))
    bought = (f"To buy: {purchase_verdict(search)}.",) if search is not None else ()
    return base._replace(verdicts=(*bought, advice_verdict(advice)), findings=(*found, *after))


def advice_text(story: Story, *, color: bool, width: int) -> str:
    """The sections that a terminal shows."""
    paper = Paper(color=color, width=width)
    paper.lines += [paper.ink(line, "bold") for line in wrap(" · ".join(story.headline), paper.width)]
    for verdict in story.verdicts:
        paper.paragraph("Advice", printable(verdict), "green")
    for one in story.findings:
        if one.short:
            paper.section(one.short, told(paper, one))
    for warning in story.warnings:
        paper.paragraph("Warning", printable(warning), "yellow")
    return str(paper)


def advice_figures(
    advice: Advice, curve: StorageCurve | None, search: Search | None
) -> Mapping[str, tuple[Figure, str]]:
    """Charts and what they show, by the title of the section that they belong to."""
    found: dict[str, tuple[Figure, str]] = {}
    timed = [one for one in advice.helping if one.gain is not None]
    if timed:
        found[GAINS] = gains(timed[:_MOST_BARS]), "gain of each change"
    if curve is not None:
        found[STORAGE] = bandwidth(curve), "throughput over the rate of the storage"
    if search is not None and search.front:
        found[FRONT] = front(search), "throughput over purchase"
    return found
