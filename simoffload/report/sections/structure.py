"""What a subject is told in, wherever it is shown: sentences, tables, text to copy."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.errors import printable
from simoffload.report.phrases import alike, counted, percent
from simoffload.results.capacity import TierUse
from simoffload.units import format_bytes, format_rate, format_seconds

__all__ = [
    "Datum",
    "Entry",
    "Listing",
    "Section",
    "Table",
    "byte_count",
    "byte_rate",
    "count",
    "fraction",
    "held",
    "named_alike",
    "seconds",
    "shown",
]


class Datum(NamedTuple):
    """A cell of a table whose text is not all that there is to it."""

    text: str
    value: float | None = None
    """In ``unit``, for whoever sorts or computes."""
    unit: str = ""
    name: str = ""
    """What it is called in full, or by programs, where that is not the text."""


Entry = str | Datum


class Table(NamedTuple):
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
    aside: tuple[int, ...] = ()
    """Columns that a terminal has no room for."""

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as text that is safe to print."""
        return tuple(tuple(map(shown, row)) for row in self.rows)


class Listing(NamedTuple):
    """Lines to be copied as they are."""

    caption: str
    text: str


class Section(NamedTuple):
    """What is told about one subject."""

    title: str
    """On a page."""
    short: str
    """At the left of a terminal; empty where ``text`` has words of its own for it, or says nothing."""
    sentences: tuple[str, ...] = ()
    """Without the capital letter and the full stop."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """What must be known to read the tables; not in a terminal."""
    listings: tuple[Listing, ...] = ()
    """Not in a terminal."""


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


def fraction(value: float) -> Datum:
    """A fraction of one."""
    return Datum(percent(value), value)


def count(number: int) -> Datum:
    """How many."""
    return Datum(str(number), number)


def named_alike(names: tuple[str, ...]) -> Datum:
    """The first of several names that are alike, and how many there are."""
    return Datum(alike(names), name=", ".join(names))
