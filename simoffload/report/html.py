"""A report document as one HTML file, which loads nothing from a network and needs no script.

Its only script sorts tables; a Content-Security-Policy forbids any other.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.report.comparison import Published
from simoffload.report.document import (
    INTERVAL,
    Chart,
    Datum,
    Entry,
    ReportDocument,
    ReportSection,
    ReportTable,
    shown,
)
from simoffload.report.formatting import sentence
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.report.svg import drawn, hatches, stylesheet
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

    Raises InputError if there are no results, if ``baseline`` names none of them, and if the file
    cannot be written.
    """
    document = comparison_document(
        results, published=published, baseline=baseline, notes=notes, command=command
    )
    write_html(document, path)


def write_html(document: ReportDocument, path: str | Path) -> None:
    """Write a document as a page. Raises InputError if the file cannot be written."""
    with replacing(path) as file:
        file.write(html_text(document))


def html_text(document: ReportDocument) -> str:
    """Return a document as the text of a page."""
    sorter, look = _source("tables.js"), style()
    return str(
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            hatches=hatches(),
            policy=f"default-src 'none'; script-src {_digest(sorter)}; style-src {_digest(look)}",
            script=sorter,
            style=look,
        )
    )


def style() -> Markup:
    """Return the style sheet of pages."""
    return stylesheet() + _source("style.css")


def with_numbers(section: ReportSection) -> str:
    """Return the elements of a section with its numbers folded, for a page that has ``style`` and
    ``svg.hatches``; all text in it is escaped."""
    macros: Any = _environment().get_template("parts.html").module
    return str(macros.with_numbers(section))


def _source(name: str) -> Markup:
    """Return one of our own scripts or style sheets."""
    environment = _environment()
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _digest(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script or style sheet."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _figure(chart: Chart) -> Markup:
    return drawn(chart.draw(), chart.label)


def _printed(value: object) -> object:
    """Escape what a template prints, unless it is markup."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_LONG_PAGE = 5
"""Number of sections from which a page has contents."""


def contents(document: ReportDocument) -> list[str]:
    """Return the titles of the sections of a long page, in the order of the page."""
    leading = [one.title for one in document.sections if one.leads]
    others = [one.title for one in document.sections if not one.leads]
    each = ["Each result"] if document.each else []
    found = [*leading, *others, *each, *(one.title for one in document.background)]
    return list(dict.fromkeys(found)) if len(found) > _LONG_PAGE else []


def anchor(title: str) -> str:
    """Return the name by which links find a section."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _lines(text: str) -> Markup:
    """Return a text of several lines, each safe to show."""
    return Markup("\n").join(printable(line) for line in text.rstrip("\n").split("\n"))


_UNBROKEN = re.compile(r"(\S*\d (?:%|(?:[mun]?s|[kMGTP]i?B|USD|k?W)\b)\S*|\S*-\S*)")
"""A number with its unit, and a word with hyphens."""


def unbroken(text: str) -> Markup:
    """Return a text as elements in which lines end neither between a number and its unit nor, where there is
    room, at the hyphens of names and options."""
    piece = Markup('<span class="word">{}</span>')
    parts = enumerate(map(printable, _UNBROKEN.split(text)))
    return Markup("").join(piece.format(one) if at % 2 else one for at, one in parts)


_LONG = re.compile(r"(\w{20,})")


def breakable(text: str) -> Markup:
    """Return the text of a cell of a table, in which lines may end before an interval and in long names, but
    not before a "%"."""
    parts = enumerate(map(printable, _LONG.split(text)))
    wide = (escape(one).replace("_", Markup("_<wbr>")) if at % 2 else escape(one) for at, one in parts)
    return Markup("").join(wide).replace(" [", Markup(" <wbr>[")).replace(" %", "\u00a0%")


def with_intervals(tables: Sequence[ReportTable]) -> list[ReportTable]:
    """Return tables whose intervals are in the cells of their values: those of a column of their own, and of
    the same columns of a table that follows."""
    found: list[ReportTable] = []
    for table in tables:
        if table.caption == INTERVAL and found and set(table.head) <= set(found[-1].head):
            found[-1] = _joined(found[-1], table)
        else:
            found.append(_of_one_column(table))
    return found


def _joined(table: ReportTable, intervals: ReportTable) -> ReportTable:
    """Return a table with the intervals of another one, whose rows have the same keys."""
    ends = {row[: table.keys]: dict(zip(intervals.head, row, strict=True)) for row in intervals.rows}
    rows = []
    for row in table.rows:
        mine = ends.get(row[: table.keys], {})
        own = dict(enumerate(row[: table.keys]))
        pairs = enumerate(zip(table.head, row, strict=True))
        rows.append(tuple(own.get(at, _between(cell, mine.get(head, ""))) for at, (head, cell) in pairs))
    return table._replace(rows=tuple(rows))


def _of_one_column(table: ReportTable) -> ReportTable:
    """Return a table without columns of intervals, which are in the cells before them."""
    at = [number for number, head in enumerate(table.head) if number and head == INTERVAL]
    for number in reversed(at):
        rows = (
            (*row[: number - 1], _between(row[number - 1], row[number]), *row[number + 1 :])
            for row in table.rows
        )
        left = tuple(one - (one > number) for one in table.numbers if one != number)
        head = (*table.head[:number], *table.head[number + 1 :])
        table = table._replace(head=head, rows=tuple(rows), numbers=left)
    return table


def _between(cell: Entry, interval: Entry) -> Entry:
    """Return the cell of a value with its interval: "21.3 s [15.8 to 28.7]"."""
    value, text = shown(cell), shown(interval)
    if not value or not text:
        return cell
    _, _, unit = value.partition(" ")
    text = text.removesuffix(f" {unit}") if unit and text.count(unit) == 1 else text
    joined = f"{value} [{text}]"
    return cell._replace(text=joined) if isinstance(cell, Datum) else joined


def _by_fold(tables: Sequence[ReportTable]) -> list[tuple[str, list[ReportTable]]]:
    """Group tables that a page folds together."""
    return [
        (folded, list(tables_of_group))
        for folded, tables_of_group in groupby(with_intervals(tables), key=lambda table: table.folded)
    ]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simoffload.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "anchor": anchor,
        "breakable": breakable,
        "by_fold": _by_fold,
        "contents": contents,
        "drawn": _figure,
        "lines": _lines,
        "sentence": sentence,
        "shown": shown,
        "unbroken": unbroken,
    }
    return environment
