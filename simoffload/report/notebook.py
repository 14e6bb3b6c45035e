"""What a report shows of itself in Python: its sentence as text, and in a notebook with its chart."""

from __future__ import annotations

import re

from markupsafe import Markup

from simoffload.brief import in_lines
from simoffload.report.document import ReportDocument, ReportSection
from simoffload.report.first_screen import opening_lines
from simoffload.report.html import html_text
from simoffload.results import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.units import plural

_AROUND, _LINE = 240, 33
"""[px] of a frame without its chart and its sentences, and of a line of a sentence."""
_LETTERS = 45
"""Letters of a line of a sentence in a narrow notebook."""
_OF_COMMANDS = re.compile(r" \(--[^()]*\)")
"""What an opening says of options in parentheses."""
_HEIGHT = re.compile(r'<svg role="img"[^>]* height="(\d+)')


def opening(document: ReportDocument) -> str:
    """Return how a report begins, in at most ten lines: what it is about, its sentences, how many warnings it
    has."""
    warned = plural(len(document.warnings), "warning") if document.warnings else ""
    return in_lines(*filter(None, (document.heading, *(document.verdicts or document.summary), warned)))


def result_opening(scenario: LoadedScenario, result: SimulationResult) -> str:
    """Return what the terminal says first of a result, without options of commands."""
    lines = (
        f"{one.label}: {one.text}".removeprefix(": ") for one in opening_lines(scenario, result) if one.text
    )
    return in_lines(*(_OF_COMMANDS.sub("", line) for line in lines))


def frame(document: ReportDocument) -> str:
    """Return the beginning of a page as an element of a notebook: heading, sentences and the first chart.

    It is a frame, so that the styles of the page and of the notebook do not meet.
    """
    drawn = next((one for one in document.sections if one.charts), None)
    shown = () if drawn is None else (ReportSection(drawn.title, charts=drawn.charts[:1]),)
    text = html_text(document._replace(sections=shown, background=(), each=(), warnings=()))
    lines = sum(1 + len(one) // _LETTERS for one in document.verdicts or document.summary)
    height = _AROUND + _LINE * lines + sum(map(int, _HEIGHT.findall(text)))
    frame = Markup('<iframe height="{}" style="width:100%;border:0" sandbox title="{}" srcdoc="{}"></iframe>')
    return str(frame.format(height, document.heading, text))
