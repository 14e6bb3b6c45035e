"""A report document as text for a terminal: the verdict, the warnings, then the sections for a terminal.

Text is wrapped, numbers never are; columns of tables that do not fit follow below in another part of the
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat, zip_longest
from textwrap import wrap
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from simoffload.errors import printable
from simoffload.report.document import ReportDocument, ReportSection, ReportTable
from simoffload.report.first_screen import Line

_GAP, _INDENT, _HANGING = 2, 2, 4
"""[characters] between columns, before the text of a section, before its continued lines."""
_LABEL = 14
"""[characters] of the column of labels."""
_BRIEF = 2
"""Number of lines of a sentence that is read at a glance: our choice."""
_NARROWEST = 60
"""Width [characters] of the narrowest terminal for which the layout is made."""
_STYLES = {"bold": 1, "dim": 2, "italic": 3, "red": 31, "green": 32, "yellow": 33}
"""Codes of ANSI escape sequences (ECMA-48, SGR)."""
_LEAST = 12
"""[characters] that a column of text keeps, unless its text is shorter: our choice."""
_NAME = 20
"""[characters] of a name with a number in the first column up to which it is not broken: our choice."""
_NUMBER = re.compile(r"(?<!\S)[^\w\s]*\d\S*(?: (?:%|[A-Za-z])\S*)?|(?<!\S)[^\w\s] \d\S*")
"""Words that begin with a digit, with the unit after or the sign before them."""
_GLUE = "\ue000"
"""Character for a space at which lines must not break; ``printable`` removes it from the document's own
text."""


def terminal_text(document: ReportDocument, *, color: bool = False, width: int = 100) -> str:
    """Return the document as lines of ``width`` [characters], with or without ANSI colours."""
    terminal = _Terminal(color=color, width=max(_NARROWEST, width))
    terminal.paragraph(" · ".join(document.title), style="bold")
    fits = {True: "green", False: "red", None: "bold"}[document.fits]
    for verdict in document.verdicts:
        head = "" if verdict.startswith("Verdict on ") else "Verdict: "
        is_brief = partial(_is_brief, head, terminal.width)
        terminal.paragraph(head + verdict.within(is_brief), style=fits)
    if document.better:
        terminal.paragraph(f"Better: {document.better}")
    for warning in document.warnings:
        terminal.paragraph(f"Warning: {warning}", style="yellow")
    for section in (*document.sections, *document.background):
        if not section.page_only:
            terminal.section(section)
    return str(terminal)


def screen_text(lines: Sequence[Line], *, color: bool = False, width: int = 100) -> str:
    """Return the lines of a first screen, labels in a column of their own."""
    terminal = _Terminal(color=color, width=max(_NARROWEST, width))
    for at, one in enumerate(lines):
        if at == 0:
            terminal.paragraph(one.text, style=one.style)
        else:
            terminal.labelled(one.label, one.text, style=one.style)
    return str(terminal)


def _is_brief(head: str, width: int, text: str) -> bool:
    return len(_filled(head + text, width)) <= _BRIEF


def _filled(text: str, width: int, first: str = "", later: str = " " * _INDENT) -> list[str]:
    return wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


def table_text(table: ReportTable, *, below: Sequence[str] = (), color: bool = False, width: int = 80) -> str:
    """Return a table as lines of ``width`` [characters]; ``below`` has a text under each row.

    The cells that identify a row are names to be copied, which are never cut.
    """
    terminal = _Terminal(color=color, width=width, indent=0)
    terminal.table(table, below, uncut=True)
    return str(terminal)


class _Terminal:
    """A _Terminal collects the lines of a document, with or without colours."""

    def __init__(self, *, color: bool, width: int, indent: int = _INDENT) -> None:
        self._color, self.width, self._indent = color, width, indent
        self._lines: list[str] = []

    def paragraph(self, text: str, *, style: str = "", indent: int = 0, hanging: int = _INDENT) -> None:
        """Add a paragraph with its continued lines indented; an empty text adds nothing."""
        first, later = " " * indent, " " * hanging
        text = printable(text)
        self._lines += (self._styled(line, style) for line in _filled(text, self.width, first, later))

    def labelled(self, label: str, text: str, *, style: str = "") -> None:
        """Add a paragraph behind a label, in a column of its own."""
        hanging = " " * (_INDENT + _LABEL)
        first, *later = _filled(printable(text), self.width, hanging, hanging)
        self._lines.append(f"{' ' * _INDENT}{label:<{_LABEL}}{self._styled(first.strip(), style)}")
        self._lines += (self._styled(line, style) for line in later)

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and style and self._color else text

    def section(self, section: ReportSection) -> None:
        """Add the title and the content of a section that a terminal shows, if there is any."""
        tables = [table for table in section.tables if table.rows and not (table.page_only or table.folded)]
        if not (section.sentences or tables or section.listings):
            return
        self._lines += ["", self._styled(printable(section.title), "bold")]
        for text in section.sentences:
            self.paragraph(text, indent=_INDENT, hanging=_HANGING)
        for table in tables:
            self.table(table)
        for text in section.notes if section.notes_on_terminal else ():
            self.paragraph(text, style="dim", indent=_INDENT)
        for listing in section.listings:
            self.paragraph(listing.caption, indent=_INDENT, hanging=_HANGING)
            for line in listing.text.rstrip("\n").split("\n"):
                self._lines.append(self._styled(" " * _HANGING + printable(line), "dim"))

    def table(self, table: ReportTable, below: Sequence[str] = (), *, uncut: bool = False) -> None:
        """Add a table, in parts if it is too wide, with a text below each row of the first part; names of
        rows are never broken if they are ``uncut``."""
        self.paragraph(table.caption, style="italic", indent=_INDENT)
        kept = [at for at in range(len(table.head)) if at not in table.page_columns]
        rows = [[_unbreakable(row[at]) for at in kept] for row in table.texts[: table.most]]
        if table.grouped:
            firsts = ["", *(row[0] for row in rows)]
            for before, row in zip(firsts, rows, strict=False):
                row[0] = "" if row[0] == before else row[0]
        cells = zip((printable(table.head[at]) for at in kept), *rows, strict=True)
        columns = [
            _Column(column, number=at in table.numbers, names=at == 0)
            for at, column in zip(kept, cells, strict=True)
            if any(column)
        ]
        for column in columns[: table.keys] if uncut else ():
            column.least = column.word
        for part in _parts(columns, keys=table.keys, room=self.width - self._indent):
            self._draw(part, table.refused, below)
            below = ()
        if table.most is not None and len(table.rows) > table.most:
            self.paragraph(f"and {len(table.rows) - table.most} more", indent=_INDENT)

    def _draw(self, part: Sequence[_Sized], refused: Sequence[int], below: Sequence[str]) -> None:
        """Add the rows of a part of a table, the heading first."""
        for number, row in enumerate(zip(*(column.cells for column, _ in part), strict=True)):
            style = "dim" if number == 0 else "red" if number - 1 in refused else ""
            cells = [_wrapped(cell, width) for cell, (_, width) in zip(row, part, strict=True)]
            if number == 0:  # headings end on the same line
                height = max(map(len, cells))
                cells = [[""] * (height - len(cell)) + cell for cell in cells]
            for pieces in zip_longest(*cells, fillvalue=""):
                line = (" " * _GAP).join(map(self._padded, pieces, part, repeat(style)))
                self._lines.append(" " * self._indent + line)
            if below and number and below[number - 1]:
                self.paragraph(below[number - 1], style="dim", indent=_HANGING, hanging=_HANGING)

    def _padded(self, text: str, place: _Sized, style: str) -> str:
        """Return a piece of a cell with the space beside it."""
        space = " " * (place.width - _places(text))
        text = self._styled(text, style)
        return f"{space}{text}" if place.column.number else f"{text}{space}"

    def __str__(self) -> str:
        return "".join(f"{line.replace(_GLUE, ' ').rstrip()}\n" for line in self._lines)


def _wrapped(cell: str, width: int) -> list[str]:
    """Return the lines of a cell; a word that is too long is cut."""
    lines = wrap(cell, width, break_on_hyphens=False, break_long_words=False)
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _places(text: str) -> int:
    """Return how many places of a terminal a text takes: two for wide characters of East Asia."""
    if text.isascii():
        return len(text)
    return sum((1 + (east_asian_width(one) in "WF")) * (not combining(one)) for one in text)


def _unbreakable(text: str) -> str:
    """Join numbers with their units, so that no line breaks between them."""
    return _NUMBER.sub(lambda found: found[0].replace(" ", _GLUE), text)


class _Column:
    """A _Column has the cells of a column, the heading first, with the widths that it needs."""

    def __init__(self, cells: Sequence[str], *, number: bool, names: bool) -> None:
        self.cells, self.number = cells, number
        pieces = [word for cell in cells for word in cell.split(" ")]
        self.widest = max(map(len, cells))
        self.word = max(map(len, pieces))
        """Width [characters] in which no word is broken."""
        kept = [len(word) for word in pieces if _GLUE in word or word[:1].isdigit()]
        if names:  # which differ in their numbers
            kept += [len(word) for word in pieces if len(word) <= _NAME and re.search("[0-9]", word)]
        self.least = max(min(_LEAST, self.widest), *kept, 0)
        if number:
            self.word = self.least = max(self.word, *map(len, cells[1:]))


class _Sized(NamedTuple):
    column: _Column
    width: int
    """[characters]"""


def _parts(columns: Sequence[_Column], *, keys: int, room: int) -> Iterator[list[_Sized]]:
    """Split a table into parts that fit; each begins with the first ``keys`` columns."""
    parts = [list(columns[:keys])]
    for column in columns[keys:]:
        if len(parts[-1]) > keys and _total(one.least for one in (*parts[-1], column)) > room:
            parts.append(list(columns[:keys]))
        parts[-1].append(column)
    for part in parts:
        widths = [column.widest for column in part]
        while (
            _total(widths) > room
        ):  # narrow the headings of numbers first, then the widest column; break words last
            wide = [at for at, column in enumerate(part) if widths[at] > column.least]
            if not wide:
                break
            order = [(part[at].number, widths[at] > part[at].word, widths[at], at) for at in wide]
            widths[max(order)[-1]] -= 1
        yield [_Sized(column, width) for column, width in zip(part, widths, strict=True)]


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + _GAP * (len(found) - 1)
