"""What a report shows of itself in Python: its sentence as text, and in a notebook with its chart."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from simoffload.brief import in_lines
from simoffload.planning.answers import Answer
from simoffload.report.document import Datum, ReportDocument, ReportSection, shown
from simoffload.report.first_screen import opening_lines
from simoffload.report.from_result import brief_document
from simoffload.report.html import html_text
from simoffload.scenario import LoadedScenario
from simoffload.units import plural

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

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


def result_opening(scenario: LoadedScenario, result: Answer) -> str:
    """Return what the terminal says first of a result, without options of commands."""
    lines = (
        f"{one.label}: {one.text}".removeprefix(": ") for one in opening_lines(scenario, result) if one.text
    )
    return in_lines(*(_OF_COMMANDS.sub("", line) for line in lines))


def result_frame(result: Answer) -> str:
    """Return the beginning of a result's page, without what takes further simulations."""
    known = result.step is not None
    return frame(brief_document(replace(result, explains=False, scenario=result.scenario if known else None)))


def first_chart(document: ReportDocument) -> Figure | None:
    """Return the first chart of a report as a figure, if it has one."""
    from plotly.graph_objects import Figure

    charts = [chart for one in document.sections for chart in one.charts]
    return Figure(charts[0].draw()) if charts else None


def first_table(document: ReportDocument) -> pd.DataFrame:
    """Return the first table of a report: numbers, in the unit that the name of a column has, and texts."""
    import pandas as pd

    found = [table for one in document.sections for table in one.tables if table.rows]
    columns = {}
    for at, head in enumerate(found[0].head) if found else ():
        cells = [row[at] for row in found[0].rows]
        units = {one.unit for one in cells if isinstance(one, Datum) and one.value is not None}
        unit = f" [{units.pop()}]" if len(units) == 1 and "" not in units else ""
        columns[f"{head}{unit}" or "note"] = [
            one.value if isinstance(one, Datum) and one.value is not None else shown(one) for one in cells
        ]
    return pd.DataFrame(columns)


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
