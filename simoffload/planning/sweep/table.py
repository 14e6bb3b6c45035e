"""The rows of a finished sweep as a file: CSV, JSON or Parquet.

What is written depends on the rows alone: not on when, where or in which order they were computed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from simoffload.errors import InputError, Problem
from simoffload.exchange.files import replacing, write_csv
from simoffload.planning.sweep.definition import Sweep
from simoffload.planning.sweep.journal import AFTER, Journal
from simoffload.planning.sweep.points import Points

__all__ = ["FORMATS", "SweepTable", "check_format", "write_table"]

SCHEMA = "simoffload/sweep-result/1"
FORMATS = (".csv", ".json", ".parquet")
_BATCH = 20_000


@dataclass(frozen=True)
class SweepTable:
    """A finished sweep, row by row."""

    sweep: Sweep
    points: Points
    journal: Journal
    metrics: tuple[str, ...]
    """Names of all metrics, in the order in which rows have them."""
    failed: int
    """Points with an error."""
    too_large: int
    """Points that do not fit."""

    @classmethod
    def of(cls, sweep: Sweep, points: Points, journal: Journal) -> Self:
        """The table of a journal in which every point is."""
        metrics: dict[str, None] = {}
        times = Counter(points.first)
        failed = too_large = 0
        for point in points.unique:
            row = journal.row(point)
            metrics |= dict.fromkeys(row.metrics or ())
            failed += times[point] * (row.error is not None)
            too_large += times[point] * (row.fits is False)
        return cls(sweep, points, journal, tuple(metrics), failed, too_large)

    def columns(self) -> list[str]:
        """Names of all columns."""
        return ["index", *(axis.name for axis in self.sweep.grid.axes), *self.metrics, *AFTER]

    def rows(self, plain: Sequence[bool]) -> Iterator[list[Any]]:
        """All rows in order; of each axis the values, if that is ``plain``, or else as they were written."""
        axes = [
            axis.values if as_value else axis.texts
            for axis, as_value in zip(self.sweep.grid.axes, plain, strict=True)
        ]
        for point, first in enumerate(self.points.first):
            row = self.journal.row(first)
            choice = self.sweep.grid.choice(self.points.combination[point])
            found = row.metrics or {}
            chosen = (values[i] for values, i in zip(axes, choice, strict=True))
            yield [point, *chosen, *map(found.get, self.metrics), *(getattr(row, name) for name in AFTER)]

    def all_axes(self, value: bool) -> list[bool]:
        """``value`` for every axis."""
        return [value] * len(self.sweep.grid.axes)


def check_format(path: Path) -> None:
    """Raise InputError unless ``path`` can be written in the format that it names."""
    if path.suffix not in FORMATS:
        raise _refusal(path, f"the name of a result must end in {', '.join(FORMATS)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            text = "Parquet needs pyarrow; install it with: pip install 'simoffload[parquet]'"
            raise _refusal(path, text) from None


def write_table(table: SweepTable, path: Path) -> None:
    """Write a file in the format of its suffix, whole or not at all."""
    _WRITERS[path.suffix](table, path)


def _write_csv(table: SweepTable, path: Path) -> None:
    write_csv(path, table.columns(), table.rows(table.all_axes(False)))


def _write_json(table: SweepTable, path: Path) -> None:
    profiles = [dict(zip(("kind", "id", "sha256"), one, strict=True)) for one in table.sweep.cache.profiles()]
    head = {
        "schema": SCHEMA,
        "sweep": table.points.sweep_hash,
        **table.sweep.description(),
        "profiles": profiles,
    }
    columns = table.columns()
    with replacing(path) as file:
        file.write(json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False)[:-2])
        file.write(',\n "rows": [')
        for number, row in enumerate(table.rows(table.all_axes(True))):
            text = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, allow_nan=False)
            file.write(f"{',' if number else ''}\n  {text}")
        file.write("\n ]\n}\n")


def _write_parquet(table: SweepTable, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = table.columns()
    kinds = [_axis_type(axis.values) for axis in table.sweep.grid.axes]
    metrics = [pa.float64()] * (len(columns) - 1 - len(kinds) - len(AFTER))
    types_of = {float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    after = [types_of[kind] for kind in AFTER.values()]
    types = [pa.int64(), *kinds, *metrics, *after]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    # An axis is a column of numbers, or of texts as they were written.
    rows_of = table.rows([kind != pa.string() for kind in kinds])
    with replacing(path) as file, pq.ParquetWriter(file.buffer, schema) as writer:
        for rows in _batches(rows_of):
            by_column = zip(zip(*rows, strict=True), types, strict=True)
            arrays = [pa.array(values, kind) for values, kind in by_column]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _batches(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _axis_type(values: tuple[Any, ...]) -> Any:
    import pyarrow as pa

    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(abs(value) < 2**63 for value in values):
        return pa.int64()
    return pa.float64() if kinds <= {int, float} else pa.string()


def _refusal(path: Path, message: str) -> InputError:
    return InputError((Problem(str(path), None, None, "", message),))


_WRITERS: dict[str, Callable[[SweepTable, Path], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}
