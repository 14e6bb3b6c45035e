"""The report document: everything that a report says about a result, built once and then rendered by
``terminal``, ``markdown`` and ``html``, as JSON, or as a CSV table of all numbers.

A terminal shows a selection: neither sections and tables that are ``page_only`` nor tables that a page folds,
no listings of those sections, and no charts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.errors import printable
from simoffload.report.formatting import counted, group_name, per_second, percent
from simoffload.results import TierUse
from simoffload.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SCHEMA = "simoffload/report/1"
COLUMNS = ("section", "table", "row", "column", "value", "unit")
"""Columns of the CSV table of all numbers."""


class Datum(NamedTuple):
    """A cell of a table that has a number or a longer name in addition to its text."""

    text: str
    value: float | None = None
    """The number in ``unit``, for sorting and computing."""
    unit: str = ""
    name: str = ""
    """The full name, or the name that programs use, where it is not the text."""


Entry = str | Datum


class ReportTable(NamedTuple):
    """A table with one head and any number of rows."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    numbers: tuple[int, ...]
    """Columns that are aligned at the right."""
    keys: int = 1
    """Number of columns at the left that identify a row."""
    refused: tuple[int, ...] = ()
    """Rows about something that does not fit."""
    folded: str = ""
    """What a page shows instead of the table until it is unfolded; empty = the table is shown at once."""
    page_columns: tuple[int, ...] = ()
    """Columns that a terminal has no room for."""
    page_only: bool = False
    """Whether a terminal leaves the table out."""
    grouped: bool = False
    """Whether rows with an equal first cell belong together; a terminal shows that cell once."""
    most: int | None = None
    """Number of rows that a terminal shows; None = all."""

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
        """The table without columns that are empty in every row; the first column always stays."""
        kept = [at for at in range(len(self.head)) if at == 0 or any(row[at] != "" for row in self.rows)]
        return self._replace(
            head=tuple(self.head[at] for at in kept),
            rows=tuple(tuple(row[at] for at in kept) for row in self.rows),
            numbers=tuple(new for new, old in enumerate(kept) if old in self.numbers),
            page_columns=tuple(new for new, old in enumerate(kept) if old in self.page_columns),
        )


class Listing(NamedTuple):
    """Lines to be copied unchanged, such as a command or a file."""

    caption: str
    text: str


class Chart(NamedTuple):
    """A figure that is drawn only where it is shown."""

    label: str
    """What the figure shows, for readers who cannot see it."""
    draw: Callable[[], Figure]
    caption: str = ""


class ReportSection(NamedTuple):
    """Everything that a report says about one subject, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    """Sentences without the capital letter and the full stop, which ``formatting.sentence`` adds."""
    tables: tuple[ReportTable, ...] = ()
    notes: tuple[str, ...] = ()
    """Explanations that are needed to read the tables."""
    listings: tuple[Listing, ...] = ()
    charts: tuple[Chart, ...] = ()
    """Figures, which a page shows before the tables."""
    page_only: bool = False
    """Whether a terminal leaves the section out."""
    notes_on_terminal: bool = False
    """Whether a terminal shows the notes, because the tables mean nothing without them."""

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
    """A complete report, in the order of reading."""

    title: tuple[str, ...]
    """Model, workload and platform, in a few words each."""
    fits: bool | None
    """Whether the result fits; None where the document is about several results."""
    verdicts: tuple[str, ...]
    """The answer, in a sentence for each model and kind of work."""
    warnings: tuple[str, ...]
    sections: tuple[ReportSection, ...]
    """The findings, in the order of reading."""
    background: tuple[ReportSection, ...] = ()
    """The inputs from which the findings were computed."""
    each: tuple[tuple[str, ReportDocument], ...] = ()
    """The documents of several results, each under its name."""

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


def write_long_table(document: ReportDocument, path: str | Path) -> None:
    """Write every number of the findings as a row of CSV [SI units]. Raises InputError if that fails."""
    from simoffload.exchange.files import write_csv

    write_csv(path, COLUMNS, _numbers(document))


def _numbers(document: ReportDocument) -> Iterator[tuple[str | float, ...]]:
    for section in document.sections:
        for table in section.tables:
            for row in table.rows:
                keys = (
                    cell if isinstance(cell, str) else cell.name or cell.text for cell in row[: table.keys]
                )
                name = ", ".join(keys)
                for head, cell in zip(table.head[table.keys :], row[table.keys :], strict=True):
                    if isinstance(cell, Datum) and cell.value is not None:
                        yield section.title, table.caption, name, head, cell.value, cell.unit


def _plain_cell(cell: Entry) -> str | dict[str, Any]:
    if isinstance(cell, str):
        return cell
    plain = cell._asdict()
    if cell.value is not None and not isfinite(cell.value):
        plain["value"] = None  # JSON has no infinity
    return {key: value for key, value in plain.items() if value not in ("", None)}


# -- cells ---------------------------------------------------------------------------------------


def shown(cell: Entry) -> str:
    """The text of a cell, safe to print."""
    return printable(cell if isinstance(cell, str) else cell.text)


def seconds(value: float | None) -> Entry:
    """A cell for a time [s]; empty for None."""
    return "" if value is None else Datum(format_seconds(value), value, "s")


def byte_count(size: float) -> Datum:
    """A cell for a size [B]."""
    return Datum(format_bytes(size), size, "B")


def held(size: int, use: TierUse) -> Datum:
    """A cell for a size [B] on a tier, in the unit that is usual there."""
    return Datum(counted(size, use), size, "B")


def byte_rate(rate: float) -> Datum:
    """A cell for a rate [B/s]."""
    return Datum(format_rate(rate), rate, "B/s")


def rate(value: float | None) -> Entry:
    """A cell for a rate [1/s]; empty for None."""
    return "" if value is None else Datum(per_second(value, ""), value, "1/s")


def fraction(value: float) -> Datum:
    """A cell for a fraction, written in per cent."""
    return Datum(percent(value), value)


def count(number: int) -> Datum:
    """A cell for a whole number."""
    return Datum(str(number), number)


def group_cell(names: tuple[str, ...]) -> Datum:
    """A cell for several names with equal values: the first, and how many more there are."""
    return Datum(group_name(names), name=", ".join(names))
