"""The report document: the content of a report about a result, built once and rendered in several formats.

``terminal`` and ``html`` render it; it can also be written as JSON. The terminal shows a selection: no
sections and tables that are ``page_only`` with their listings, no tables that a page folds, and no charts.
``markdown`` has the same, and these listings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple, Self

from simoffload.errors import printable
from simoffload.report.formatting import counted, group_name
from simoffload.report.plotting import Properties
from simoffload.results import Metric, TierUse
from simoffload.units import format_bytes, format_rate, format_seconds, percent

# -- the sentence that answers, of parts of which a narrow place leaves out some -------------------


LONGEST = 225
"""Length of a sentence [characters] that is read at a glance: our choice."""


class VerdictPart(NamedTuple):
    """A VerdictPart of a sentence has its own separator before it."""

    text: str
    rank: int = 1
    """How early it is left out: the largest first, and 0 never."""
    tabled: bool = False
    """Whether tables of a terminal tell it, too."""


class Verdict(str):
    """A Verdict is a sentence as long as is read at a glance, which knows its parts."""

    parts: tuple[VerdictPart, ...]

    @classmethod
    def of(cls, first: str | VerdictPart, *more: VerdictPart) -> Self:
        """Return the sentence of parts, with a full stop, in the order of reading."""
        parts = (first if isinstance(first, VerdictPart) else VerdictPart(first, 0), *more)
        found = cls(_shortened(parts, lambda text: len(text) <= LONGEST))
        found.parts = parts
        return found

    @property
    def in_full(self) -> str:
        """The sentence with all its parts."""
        return _sentence(self.parts)

    def within(self, fits: Callable[[str], bool]) -> str:
        """Return the sentence without the parts for which there is no room: first what tables tell, then the
        least important parts, then the last words of the longest part."""
        text = str(self)
        if fits(text):
            return text
        return _shortened(tuple(part for part in self.parts if not part.tabled), fits)


def _sentence(parts: Sequence[VerdictPart]) -> str:
    return f"{''.join(part.text for part in parts)}."


def _shortened(parts: tuple[VerdictPart, ...], fits: Callable[[str], bool]) -> str:
    while not fits(_sentence(parts)) and any(part.rank for part in parts):
        _, last = max((part.rank, at) for at, part in enumerate(parts))
        parts = (*parts[:last], *parts[last + 1 :])
    at = max(range(len(parts)), key=lambda one: len(parts[one].text))
    while not fits(_sentence(parts)) and " " in (text := parts[at].text).strip():
        cut = parts[at]._replace(text=text.rpartition(" ")[0].rstrip(",;:…") + "…")
        parts = (*parts[:at], cut, *parts[at + 1 :])
    return _sentence(parts).replace("….", "…")


# -- the report document ---------------------------------------------------------------------------


_SCHEMA = "simoffload/report/1"


class Datum(NamedTuple):
    """A Datum is a cell of a table that has a number or a longer name in addition to its text."""

    text: str
    value: float | None = None
    """The number in ``unit``, for sorting and computing."""
    unit: str = ""
    name: str = ""
    """The full name, or the name for programs, if it differs from the text."""
    ends: tuple[float, ...] = ()
    """P10 and P90 in ``unit``, for the text of an 80 % interval."""


Entry = str | Datum
INTERVAL = "80 % interval"
"""Heading of a column, and caption of a table, of intervals of the values beside it, whose cells a page puts
them into."""


class ReportTable(NamedTuple):
    """A ReportTable has one heading and any number of rows."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    numbers: tuple[int, ...]
    """Columns that are aligned at the right."""
    keys: int = 1
    """Number of columns at the left that identify a row."""
    refused: tuple[int, ...] = ()
    """Rows about alternatives that do not fit."""
    folded: str = ""
    """Text that a page shows instead of the table until it is unfolded; "" = the table is shown at once."""
    page_columns: tuple[int, ...] = ()
    """Columns that are shown on a page only, because a terminal has no room for them."""
    page_only: bool = False
    """Whether a terminal does not show the table."""
    grouped: bool = False
    """Whether rows with an equal first cell belong together; a terminal shows that cell once."""
    most: int | None = None
    """Number of rows that a terminal and a printed page show; None = all."""

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as text that is safe to print."""
        return tuple(tuple(map(shown, row)) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values: text, and for cells with a number also the number in its unit."""
        return {
            "caption": self.caption,
            "columns": list(self.head),
            "rows": [[_plain_cell(cell) for cell in row] for row in self.rows],
        }

    def without_last_column(self) -> ReportTable:
        """Return the table without its last column."""
        last = len(self.head) - 1
        return self._replace(
            head=self.head[:last],
            rows=tuple(row[:last] for row in self.rows),
            numbers=tuple(one for one in self.numbers if one != last),
            page_columns=tuple(one for one in self.page_columns if one != last),
        )

    def without_empty_columns(self) -> ReportTable:
        """Return the table without columns that are empty in every row; the first column always stays."""
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
    """A Chart is a figure that is drawn only by formats that show it."""

    label: str
    """Description of the figure for readers who cannot see it."""
    draw: Callable[[], Properties]
    caption: str = ""


class ReportSection(NamedTuple):
    """A ReportSection is the part of a report about one subject; its fields are in the order of reading."""

    title: str
    sentences: tuple[str, ...] = ()
    """Sentences without the capital letter and the full stop, which ``formatting.sentence`` adds."""
    tables: tuple[ReportTable, ...] = ()
    notes: tuple[str, ...] = ()
    """Explanations that are needed to read the tables."""
    listings: tuple[Listing, ...] = ()
    charts: tuple[Chart, ...] = ()
    """Figures, which a page shows above the tables."""
    page_only: bool = False
    """Whether a terminal does not show the section."""
    notes_on_terminal: bool = False
    """Whether a terminal also shows the notes, because the tables cannot be understood without them."""
    leads: bool = False
    """Whether a page shows the section above all others, with its tables above its sentences: so the answer
    and its numbers are on the first printed sheet."""

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
    """Whether the result fits; None if the document is about several results."""
    verdicts: tuple[Verdict, ...]
    """The main result, in a sentence for each model and kind of work."""
    warnings: tuple[str, ...]
    sections: tuple[ReportSection, ...]
    """The findings, in the order of reading."""
    background: tuple[ReportSection, ...] = ()
    """The inputs from which the findings were computed."""
    each: tuple[tuple[str, ReportDocument], ...] = ()
    """The documents of several results, each under its name."""
    name: str = ""
    """Name of the scenario or of what is compared, with which the report is headed; "" = the title."""
    summary: tuple[Verdict, ...] = ()
    """The answer in a sentence to repeat, for each model and kind of work."""
    facts: tuple[str, ...] = ()
    """What the sentence assumes, in a few words each."""
    better: str = ""
    """What would be better, in a line below the sentence; empty where nothing is known to be."""

    @property
    def small_print(self) -> tuple[str, ...]:
        """What stands in small type below the sentence: the title, unless it is the heading, and facts."""
        return (*(self.title if self.name else ()), *self.facts)

    @property
    def heading(self) -> str:
        """Heading of the report and title of its page."""
        return self.name or ", ".join(self.title)

    def to_dict(self) -> dict[str, Any]:
        """The document as plain values; charts are left out, since their numbers are in the tables."""
        return {
            "schema": _SCHEMA,
            "name": self.heading,
            "summary": list(self.summary),
            "facts": list(self.facts),
            **({"better": self.better} if self.better else {}),
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
        plain["value"] = None  # JSON has no infinity
    return {key: value for key, value in plain.items() if value not in ("", None, ())}


# -- cells ---------------------------------------------------------------------------------------


def shown(cell: Entry) -> str:
    """The text of a cell, safe to print."""
    return printable(cell if isinstance(cell, str) else cell.text)


def seconds(value: float | None) -> Entry:
    """Return a cell for a time [s]; empty for None."""
    return "" if value is None else Datum(format_seconds(value), value, "s")


def byte_count(size: float) -> Datum:
    """Return a cell for a size [B]."""
    return Datum(format_bytes(size), size, "B")


def held(size: int, use: TierUse) -> Datum:
    """Return a cell for a size [B] on a tier, in the unit that is usual for this tier."""
    return Datum(counted(size, use), size, "B")


def byte_rate(rate: float) -> Datum:
    """Return a cell for a rate [B/s]."""
    return Datum(format_rate(rate), rate, "B/s")


def number(metric: Metric, value: float | None) -> Entry:
    """Return a cell for a metric below its column; empty for None."""
    return "" if value is None else Datum(metric.short(value), value, metric.unit.name)


def fraction(value: float) -> Datum:
    """Return a cell for a fraction, shown in per cent."""
    return Datum(percent(value), value)


def count(number: int) -> Datum:
    """Return a cell for a whole number."""
    return Datum(str(number), number)


def group_cell(names: tuple[str, ...]) -> Datum:
    """Return a cell for several names with equal values: the first name, and the number of others."""
    return Datum(group_name(names), name=", ".join(names))
