"""A report document as one HTML file, which loads nothing from a network and is readable without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.report.comparison import Published
from simoffload.report.document import Chart, ReportDocument, ReportTable, shown
from simoffload.report.formatting import sentence
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.results import SimulationResult


def write_report(result: SimulationResult, path: str | Path, *, command: str = "") -> None:
    """Write a page about one result. Raises InputError if the file cannot be written.

    ``command`` is the command line that reproduces the result.
    """
    write_html(result_document(result, command=command), path)


def write_comparison(
    results: Sequence[SimulationResult],
    path: str | Path,
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    notes: Sequence[str] = (),
    command: str = "",
) -> None:
    """Write a page that compares results; ``comparison.groups`` explains ``published`` and ``baseline``.

    ``notes`` are sentences to begin with, such as those of a comparison (``Comparison.notes``).

    Raises ValueError if there are no results or ``baseline`` names none of them, InputError if the file
    cannot be written.
    """
    document = comparison_document(
        results, published=published, baseline=baseline, notes=notes, command=command
    )
    write_html(document, path)


def write_html(document: ReportDocument, path: str | Path) -> None:
    """Write a document as a page. Raises InputError if the file cannot be written."""
    figures = _Figures()
    environment = _environment()
    environment.filters["drawn"] = figures.add
    # The script of the figures comes last; jinja's tojson escapes <, >, & and ' for use inside of it.
    template = environment.get_template("page.html")
    text = template.render(document=document, figures=figures.drawn, plotly=Markup(get_plotlyjs()))
    with replacing(path) as file:
        file.write(text)


class _Drawn(NamedTuple):
    """A _Drawn is the number and the height [px] of a figure, for which a template reserves space."""

    number: int
    height: float


class _Figures:
    """_Figures are the figures of a page, numbered in the order in which they are drawn."""

    def __init__(self) -> None:
        self.drawn: list[dict[str, Any]] = []

    def add(self, chart: Chart) -> _Drawn:
        """Draw a chart; return its number and height."""
        figure = chart.draw().to_plotly_json()
        self.drawn.append(figure)
        return _Drawn(len(self.drawn) - 1, figure["layout"]["height"])


def _printed(value: object) -> object:
    """Escape what a template prints, unless it is markup."""
    return printable(value) if type(value) is str else value


def _lines(text: str) -> Markup:
    """Return a text of several lines, each safe to show."""
    return Markup("\n").join(printable(line) for line in text.rstrip("\n").split("\n"))


def _by_fold(tables: Sequence[ReportTable]) -> list[tuple[str, list[ReportTable]]]:
    """Group tables that a page folds together."""
    return [
        (folded, list(tables_of_group))
        for folded, tables_of_group in groupby(tables, key=lambda table: table.folded)
    ]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simoffload.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"by_fold": _by_fold, "lines": _lines, "sentence": sentence, "shown": shown}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment
