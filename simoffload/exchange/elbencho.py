"""Output of ``elbencho --csvfile``.

Format: breuner/elbencho, source/Statistics.cpp: a row per phase; columns "[first]" are the state when the
fastest thread ended, "[last]" the state when all threads had ended.
"""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from simoffload.exchange.benchmark_files import BenchmarkFile, StorageMeasurement, finite

_MIB = 1024**2
_NEEDED = ("operation", "MiB/s [last]", "block size", "threads")
_MIXED = "rwmix read MiB/s [last]"


class _Row(NamedTuple):
    """One phase of a benchmark, which is a row of the file."""

    file: BenchmarkFile
    line: int
    cells: dict[str, str]

    def positive_integer(self, name: str, default: int = 1) -> int:
        """Return a number above 0; ``default`` if the cell is empty or missing."""
        text = self.cells.get(name, "").strip()
        if not text:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 15 or not int(text):
            self.file.refuse(f"must be a whole number above 0, not {text[:40]!r}", line=self.line, key=name)
        return int(text)

    def number(self, name: str) -> float | None:
        """Return a finite number; None if the cell is empty or missing."""
        text = self.cells.get(name, "").strip()
        value = finite(text) if text else None
        if text and value is None:
            self.file.refuse(f"must be a finite number, not {text[:40]!r}", line=self.line, key=name)
        return value

    def flag(self, name: str) -> bool | None:
        """Return whether a cell is 1; None if it is empty or missing."""
        text = self.cells.get(name, "").strip()
        return text != "0" if text else None


def read_elbencho(path: str | Path) -> tuple[StorageMeasurement, ...]:
    """Read the phases READ and WRITE, and ignore the others.

    Raises InputError for a table of live statistics, for mixed reads and writes, and if there is no phase.
    """
    file = BenchmarkFile.read(path)
    rows = csv.reader(file.text.splitlines(), strict=True)
    measurements: list[StorageMeasurement] = []
    header: list[str] = []
    try:
        for row in rows:
            if not row or row == header:
                continue  # a later run may have repeated the header
            if not header:
                header = row
                _check_header(file, header)
            elif len(row) != len(header):
                file.refuse(
                    f"the row has {len(row)} cells for {len(header)} columns; was elbencho interrupted?",
                    line=rows.line_num,
                )
            else:
                measurements += _phase(_Row(file, rows.line_num, dict(zip(header, row, strict=True))))
    except csv.Error as error:
        file.refuse(f"not valid CSV: {error}", line=rows.line_num)
    if not measurements:
        file.refuse("contains no phase READ or WRITE; run elbencho with -r or -w and --csvfile")
    return tuple(measurements)


def _check_header(file: BenchmarkFile, header: list[str]) -> None:
    if {"Phase", "RuntimeMS"} <= set(header):
        file.refuse("this is the CSV of live statistics (--livecsv); give the one of --csvfile", line=1)
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        file.refuse(f"no column {', '.join(missing)}; give the CSV of elbencho --csvfile", line=1)


def _phase(row: _Row) -> list[StorageMeasurement]:
    name = row.cells["operation"]
    if name.startswith("RWMIX") or row.number(_MIXED):
        row.file.refuse(
            "the phase mixed reads and writes, so neither rate is usable; run two phases", line=row.line
        )
    if name not in {"READ", "WRITE"}:
        return []
    operation: Literal["read", "write"] = "read" if name == "READ" else "write"
    rate = row.number("MiB/s [last]")
    if not rate:
        row.file.refuse("must be above 0", line=row.line, key="MiB/s [last]")
    latency = row.number("IO lat us [avg]")
    measured = StorageMeasurement(
        operation=operation,
        block=_block(row),
        queue_depth=row.positive_integer("IO depth"),
        jobs=row.positive_integer("threads") * row.positive_integer("hosts"),
        rate=round(rate * _MIB),
        latency=latency * 1e-6 if latency else None,
        direct=row.flag("direct IO"),
        random=row.flag("random"),
        tool="elbencho",
        version=row.cells.get("version", "").strip(),
        file=row.file.name,
        date=_date(row),
    )
    return [measured]


def _block(row: _Row) -> int:
    block = row.positive_integer("block size", default=0)
    if not block:
        row.file.refuse(
            "missing; only runs with a block size can be imported", line=row.line, key="block size"
        )
    return block


def _date(row: _Row) -> datetime.date:
    text = row.cells.get("ISO date", "").strip()
    if not text:
        return row.file.date
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        row.file.refuse(f"{text[:40]!r} is not an ISO date", line=row.line, key="ISO date")
