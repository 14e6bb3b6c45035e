"""A report document as Markdown, for issues and wikis (https://github.github.com/gfm/).

All values from files are escaped, so that they cannot make links, pictures, tags or tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.report.document import Listing, ReportDocument, ReportSection, ReportTable
from simoffload.report.formatting import sentence

_TAGS = {"&": "&amp;", "<": "&lt;"}
# An underscore within a word, as in the names of metrics, does not mean emphasis.
_SPECIAL = re.compile(r"[\\`*\[\]|~$&<]|(?<!\w)_|_(?!\w)")
# At the beginning of a line these characters would begin a list, a heading or a quotation.
_BLOCK = re.compile(r"^(\d*)([>#+=:.)-])")


def write_markdown(document: ReportDocument, path: str | Path) -> None:
    """Write a report document to a Markdown file. Raises InputError if the file cannot be written."""
    with replacing(path) as file:
        file.write(markdown(document))


def markdown(document: ReportDocument) -> str:
    """The document without its charts."""
    return "\n\n".join((f"# {_text(document.heading)}", *_document(document, level=1))) + "\n"


def _document(document: ReportDocument, *, level: int) -> Iterator[str]:
    yield from (f"**{_text(answer)}**" for answer in document.summary)
    if document.better:
        yield f"**Better:** {_text(document.better)}"
    if document.small_print:
        yield _text(" · ".join(document.small_print))
    yield from (_text(verdict) for verdict in document.verdicts if verdict not in document.summary)
    yield from (f"> **Warning:** {_text(warning)}" for warning in document.warnings)
    yield from _sections(sorted(document.sections, key=lambda one: not one.leads), level + 1)
    if document.each:
        yield f"{'#' * (level + 1)} Each result"
    for label, one in document.each:
        yield f"{'#' * (level + 2)} {_text(label)}"
        yield from _document(one, level=level + 2)
    yield from _sections(document.background, level + 1)


def _sections(sections: Sequence[ReportSection], level: int) -> Iterator[str]:
    for section in sections:
        if not (section.sentences or section.tables or section.listings):
            continue  # a chart of what is in other tables
        yield f"{'#' * level} {_text(section.title)}"
        if section.sentences:
            yield _paragraph(" ".join(map(sentence, section.sentences)))
        for table in section.tables:
            yield from _table(table)
        yield from map(_paragraph, section.notes)
        for listing in section.listings:
            yield from _listing(listing)


def _table(table: ReportTable) -> Iterator[str]:
    if table.caption:
        yield f"**{_text(table.caption)}**"
    rules = ("---:" if column in table.numbers else "---" for column in range(len(table.head)))
    rows = (table.head, *table.texts)
    head, *lines = (f"| {' | '.join(map(_text, row))} |" for row in rows)
    yield "\n".join((head, f"|{'|'.join(rules)}|", *lines))


def _listing(listing: Listing) -> Iterator[str]:
    if listing.caption:
        yield f"{_text(listing.caption)}:"
    longest = max(map(len, re.findall("`+", listing.text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = (printable(line) for line in listing.text.rstrip("\n").split("\n"))
    yield "\n".join((fence, *lines, fence))


def _paragraph(text: str) -> str:
    return _BLOCK.sub(r"\1\\\2", _text(text.strip()))


def _text(text: str) -> str:
    """Escape text that stays within a line."""
    return _SPECIAL.sub(lambda found: _TAGS.get(found[0], f"\\{found[0]}"), printable(text))
