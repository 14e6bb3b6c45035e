"""A report document as text for a terminal: the verdict, the warnings, then the sections for a terminal.

Tables are drawn by rich in columns whose widths are set here. Text is wrapped, numbers never are; columns
that do not fit follow below in another part of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from textwrap import wrap
from typing import NamedTuple

from rich.console import Console, Group, JustifyMethod
from rich.table import Table as Grid
from rich.text import Text

from simoffload.errors import printable
from simoffload.report.document import ReportDocument, ReportSection, ReportTable

_GAP, _INDENT, _HANGING = 2, 2, 4
"""[characters] between columns, before the text of a section, before its continued lines."""
_NARROWEST = 60
"""Width [characters] of the narrowest terminal for which the layout is made."""
_UNBOUNDED = 100_000
"""Width [characters] of lines to be copied, so large that rich does not cut them."""
_LEAST = 12
"""[characters] that a column of text keeps, unless its text is shorter: our choice."""
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
        label = "" if verdict.startswith("Verdict on ") else "Verdict: "
        terminal.paragraph(f"{label}{verdict}", style=fits)
    for warning in document.warnings:
        terminal.paragraph(f"Warning: {warning}", style="yellow")
    for section in (*document.sections, *document.background):
        if not section.page_only:
            terminal.section(section)
    return str(terminal)


class _Terminal:
    """A _Terminal collects the lines of a document, with or without colours."""

    def __init__(self, *, color: bool, width: int) -> None:
        self._console = Console(
            file=StringIO(),
            width=_UNBOUNDED,
            color_system="standard" if color else None,
            force_terminal=color,
            force_jupyter=False,
            legacy_windows=False,
            _environ={},
        )
        self._width = width
        self._parts: list[Text | Grid] = []

    def paragraph(self, text: str, *, style: str = "", indent: int = 0, hanging: int = _INDENT) -> None:
        """Add a paragraph with its continued lines indented; an empty text adds nothing."""
        first, later = " " * indent, " " * hanging
        text = printable(text)
        lines = wrap(text, self._width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
        self._parts += (Text(line, style) for line in lines)

    def section(self, section: ReportSection) -> None:
        """Add the title and the content of a section that a terminal shows, if there is any."""
        tables = [table for table in section.tables if table.rows and not (table.page_only or table.folded)]
        if not (section.sentences or tables or section.listings):
            return
        self._parts.append(Text(""))
        self._parts.append(Text(printable(section.title), "bold"))
        for text in section.sentences:
            self.paragraph(text, indent=_INDENT, hanging=_HANGING)
        for table in tables:
            self._table(table)
        for text in section.notes if section.notes_on_terminal else ():
            self.paragraph(text, style="dim", indent=_INDENT)
        for listing in section.listings:
            self.paragraph(listing.caption, indent=_INDENT, hanging=_HANGING)
            for line in listing.text.rstrip("\n").split("\n"):
                self._parts.append(Text(" " * _HANGING + printable(line), "dim"))

    def _table(self, table: ReportTable) -> None:
        self.paragraph(table.caption, style="italic", indent=_INDENT)
        kept = [at for at in range(len(table.head)) if at not in table.page_columns]
        rows = [[_unbreakable(row[at]) for at in kept] for row in table.texts[: table.most]]
        if table.grouped:
            firsts = ["", *(row[0] for row in rows)]
            for before, row in zip(firsts, rows, strict=False):
                row[0] = "" if row[0] == before else row[0]
        cells = zip((printable(table.head[at]) for at in kept), *rows, strict=True)
        columns = [
            _Column(column, number=at in table.numbers)
            for at, column in zip(kept, cells, strict=True)
            if any(column)
        ]
        for part in _parts(columns, keys=table.keys, room=self._width - _INDENT):
            self._parts.append(self._drawn(part, table.refused))
        if table.most is not None and len(table.rows) > table.most:
            self.paragraph(f"and {len(table.rows) - table.most} more", indent=_INDENT)

    @staticmethod
    def _drawn(part: Sequence[_Sized], refused: Sequence[int]) -> Grid:
        grid = Grid(box=None, pad_edge=True, padding=(0, 0, 0, _GAP), header_style="dim")
        for column, width in part:
            head, *_ = column.cells
            justify: JustifyMethod = "right" if column.number else "left"
            wide = width >= column.widest
            grid.add_column(Text(head), justify=justify, width=width, no_wrap=wide)
        for number, row in enumerate(zip(*(column.cells[1:] for column, _ in part), strict=True)):
            grid.add_row(*map(Text, row), style="red" if number in refused else "")
        return grid

    def __str__(self) -> str:
        self._console.print(Group(*self._parts))
        file = self._console.file
        assert isinstance(file, StringIO)
        lines = file.getvalue().replace(_GLUE, " ").splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines)


def _unbreakable(text: str) -> str:
    """Join numbers with their units, so that no line breaks between them."""
    return _NUMBER.sub(lambda found: found[0].replace(" ", _GLUE), text)


class _Column:
    """A _Column has the cells of a column, the heading first, with the widths that it needs."""

    def __init__(self, cells: Sequence[str], *, number: bool) -> None:
        self.cells, self.number = cells, number
        pieces = [word for cell in cells for word in cell.split(" ")]
        self.widest = max(map(len, cells))
        self.word = max(map(len, pieces))
        """Width [characters] in which no word is broken."""
        kept = (len(word) for word in pieces if _GLUE in word or word[:1].isdigit())
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
