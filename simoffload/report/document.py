"""The report document: what is told of a result, built once, then rendered by ``terminal``, ``markdown``,
``html`` and ``long_table``.

A terminal shows a selection of it: neither sections and tables that are ``page_only`` nor tables that a page
folds up, no listings of sections but those it is asked to copy from, and charts nowhere but on a page.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.errors import printable
from simoffload.report.formatting import counted, group_name, per_second, percent
from simoffload.results.capacity import TierUse
from simoffload.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = [
    "Chart",
    "Datum",
    "Entry",
    "Listing",
    "ReportDocument",
    "ReportSection",
    "ReportTable",
    "byte_count",
    "byte_rate",
    "count",
    "fraction",
    "group_cell",
    "held",
    "rate",
    "seconds",
    "shown",
]

_SCHEMA = "simoffload/report/1"


class Datum(NamedTuple):
    """A cell of a table whose text is not all that there is to it."""

    text: str
    value: float | None = None
    """In ``unit``, for whoever sorts or computes."""
    unit: str = ""
    name: str = ""
    """What it is called in full, or by programs, where that is not the text."""


Entry = str | Datum


class ReportTable(NamedTuple):
    """Rows under a head."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    numbers: tuple[int, ...]
    """Columns that are aligned at the right."""
    keys: int = 1
    """Columns at the left that say what a row is about."""
    refused: tuple[int, ...] = ()
    """Rows about something that does not fit."""
    folded: str = ""
    """What a page says in place of the table until it is unfolded; empty = it is shown at once."""
    page_columns: tuple[int, ...] = ()
    """Columns that a terminal has no room for."""
    page_only: bool = False
    """A terminal does not show the table."""
    grouped: bool = False
    """Rows with the same first cell belong together; a terminal shows that cell once."""
    most: int | None = None
    """Rows that a terminal shows; None = all."""

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as text that is safe to print."""
        return tuple(tuple(map(shown, row)) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values: text, and a number in its unit where a cell has one."""
        return {
            "caption": self.caption,
            "columns": list(self.head),
            "rows": [[_plain_cell(cell) for cell in row] for row in self.rows],
        }

    def without_empty_columns(self) -> ReportTable:
        """The table without columns in which no row has anything; the first one always stays."""
        kept = [at for at in range(len(self.head)) if at == 0 or any(row[at] != "" for row in self.rows)]
        return self._replace(
            head=tuple(self.head[at] for at in kept),
            rows=tuple(tuple(row[at] for at in kept) for row in self.rows),
            numbers=tuple(new for new, old in enumerate(kept) if old in self.numbers),
            page_columns=tuple(new for new, old in enumerate(kept) if old in self.page_columns),
        )


class Listing(NamedTuple):
    """Lines to be copied as they are."""

    caption: str
    text: str


class Chart(NamedTuple):
    """A figure that is drawn only where it is shown."""

    label: str
    """What it shows, for those who cannot see it."""
    draw: Callable[[], Figure]
    caption: str = ""


class ReportSection(NamedTuple):
    """What is told about one subject, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    """Without the capital letter and the full stop."""
    tables: tuple[ReportTable, ...] = ()
    notes: tuple[str, ...] = ()
    """What must be known to read the tables."""
    listings: tuple[Listing, ...] = ()
    charts: tuple[Chart, ...] = ()
    """A page shows them before the tables."""
    page_only: bool = False
    """A terminal does not show the section."""
    notes_on_terminal: bool = False
    """A terminal shows the notes, too, as the tables mean nothing without them."""

    def to_dict(self) -> dict[str, Any]:
        """The section as plain values, without its charts."""
        return {
            "title": self.title,
            "sentences": list(self.sentences),
            "tables": [table.to_dict() for table in self.tables],
            "notes": list(self.notes),
            "listings": [one._asdict() for one in self.listings],
        }


class ReportDocument(NamedTuple):
    """Everything that is told, in the order of reading."""

    title: tuple[str, ...]
    """What it is about, in a few words each."""
    fits: bool | None
    """None where the document is about several results."""
    verdicts: tuple[str, ...]
    """The answer, in a sentence for each model and kind of work."""
    warnings: tuple[str, ...]
    sections: tuple[ReportSection, ...]
    """The findings."""
    background: tuple[ReportSection, ...] = ()
    """What the findings were computed from."""
    each: tuple[tuple[str, ReportDocument], ...] = ()
    """Of several results, each under its name."""

    def to_dict(self) -> dict[str, Any]:
        """The document as plain values; charts are left out, since their numbers are in the tables."""
        return {
            "schema": _SCHEMA,
            "title": list(self.title),
            "fits": self.fits,
            "verdicts": list(self.verdicts),
            "warnings": list(self.warnings),
            "sections": [one.to_dict() for one in (*self.sections, *self.background)],
            "each": [{"label": label, **one.to_dict()} for label, one in self.each],
        }


def _plain_cell(cell: Entry) -> str | dict[str, Any]:
    if isinstance(cell, str):
        return cell
    plain = cell._asdict()
    if cell.value is not None and not isfinite(cell.value):
        plain["value"] = None  # JSON has no word for it
    return {key: value for key, value in plain.items() if value not in ("", None)}


def shown(cell: Entry) -> str:
    """The text of a cell, safe to print."""
    return printable(cell if isinstance(cell, str) else cell.text)


def seconds(value: float | None) -> Entry:
    """A time [s]; empty for None."""
    return "" if value is None else Datum(format_seconds(value), value, "s")


def byte_count(size: float) -> Datum:
    """A size [B]."""
    return Datum(format_bytes(size), size, "B")


def held(size: int, use: TierUse) -> Datum:
    """A size [B] on a tier, in the unit that is usual there."""
    return Datum(counted(size, use), size, "B")


def byte_rate(rate: float) -> Datum:
    """A rate [B/s]."""
    return Datum(format_rate(rate), rate, "B/s")


def rate(value: float | None) -> Entry:
    """How many each second; empty for None."""
    return "" if value is None else Datum(per_second(value, ""), value, "1/s")


def fraction(value: float) -> Datum:
    """A fraction of one."""
    return Datum(percent(value), value)


def count(number: int) -> Datum:
    """How many."""
    return Datum(str(number), number)


def group_cell(names: tuple[str, ...]) -> Datum:
    """The first of several names that are alike, and how many there are."""
    return Datum(group_name(names), name=", ".join(names))
