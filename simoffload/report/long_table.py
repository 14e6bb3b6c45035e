"""All numbers of a report document, one a row, as CSV: for spreadsheets and programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from simoffload.exchange.files import write_csv
from simoffload.report.document import Datum, ReportDocument, ReportSection

__all__ = ["COLUMNS", "write_long_table"]

COLUMNS = ("section", "table", "row", "column", "value", "unit")


def write_long_table(document: ReportDocument, path: str | Path) -> None:
    """Write every number of the tables [SI units]. Raises InputError if the file cannot be written."""
    write_csv(path, COLUMNS, _rows(document.sections))


def _rows(sections: Sequence[ReportSection]) -> Iterator[tuple[str | float, ...]]:
    for section in sections:
        for table in section.tables:
            for row in table.rows:
                name = ", ".join(map(_name, row[: table.keys]))
                for head, cell in zip(table.head[table.keys :], row[table.keys :], strict=True):
                    if isinstance(cell, Datum) and cell.value is not None:
                        yield section.title, table.caption, name, head, cell.value, cell.unit


def _name(cell: str | Datum) -> str:
    return cell if isinstance(cell, str) else cell.name or cell.text
