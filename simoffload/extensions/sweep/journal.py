"""The journal of a sweep: what is done, in a file that survives the end of the process at any moment.

A SQLite database with a line that says of which sweep it is, and a row for each simulated point. Rows are
added a chunk at a time, each chunk in a transaction of its own; what the end of the process (or of the
machine) left unfinished SQLite takes back when the file is opened again, and its points are simulated again.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simoffload.errors import InputError, shortened
from simoffload.results import kinds_of_results
from simoffload.shipped import __version__

SCHEMA = "simoffload/sweep-journal/5"
_TABLES = (
    "CREATE TABLE sweep (schema TEXT, version TEXT, hash TEXT, points INTEGER)",
    "CREATE TABLE rows (point INTEGER PRIMARY KEY, data TEXT NOT NULL)",
)
_MOST_POINT = 2**63 - 1
"""The largest whole number that SQLite keeps."""


class SweepId(NamedTuple):
    """A SweepId identifies a sweep by the hash of what determines its results and the number of points."""

    sweep_hash: str
    points: int


class JournalRow(BaseModel):
    """A JournalRow is the stored row of a simulated point: its result, or its error."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    point: int = Field(ge=0, le=_MOST_POINT)
    metrics: dict[str, float | None] | None = None
    """Metrics of one kind of result by name."""
    intervals: dict[str, tuple[float, float]] | None = None
    """P10 and P90 of every predicted time and rate, by metric."""
    decode_bound: float | None = None
    bottleneck: str | None = None
    limit: str | None = None
    bound_fraction: float | None = None
    fits: bool | None = None
    extrapolates: bool | None = None
    advice: str | None = None
    warnings: str | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse what no point of a sweep comes to."""
        if not all(value.isprintable() for _, value in self if isinstance(value, str)):
            raise ValueError("text that cannot be printed")
        found = self.model_fields_set - {"point"}
        if self.error is not None:
            if found != {"error"}:
                raise ValueError("an error and a result")
            return self
        if found != type(self).model_fields.keys() - {"point", "error"} or self.metrics is None:
            raise ValueError("not all that a result says")
        names = self.metrics.keys()
        if self.fits is None or self.extrapolates is None or not any(map(_has(names), kinds_of_results())):
            raise ValueError("metrics that no result has")
        return self

    def plain(self) -> str:
        """Return the row as JSON."""
        return self.model_dump_json(exclude_unset=True)


def _has(names: Any) -> Any:
    """Return whether these are the metrics of a kind of result, none missing and none more."""
    return lambda kind: (
        {name for name, one in kind.declared.items() if not one.optional} <= names <= kind.declared.keys()
    )


def _kind(hint: Any) -> type:
    """Return the type of a field that may also be None."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    kind: type = options[0]
    return kind


AFTER = {
    name: _kind(hint)
    for name, hint in get_type_hints(JournalRow).items()
    if name in JournalRow.model_fields and name not in ("point", "metrics", "intervals")
}
"""Columns after the metrics of a row, with their types."""


def beside(path: Path) -> Path:
    """Return the file that SQLite keeps beside a journal while it is open."""
    return path.with_name(f"{path.name}-journal")


class Journal:
    """An open journal, which no other process can open at the same time."""

    def __init__(self, path: Path, database: sqlite3.Connection, done: set[int]) -> None:
        self.path = path
        self._database = database
        self._done = done

    @classmethod
    def created(cls, path: Path, sweep: SweepId) -> Self:
        """Begin a journal in place of what is there. Raises InputError if that is in use."""
        with suppress(_UnreadableError):
            _opened(path).close()
        _remove(path)
        return cls._begun(path, _opened(path), sweep)

    @classmethod
    def _begun(cls, path: Path, database: sqlite3.Connection, sweep: SweepId) -> Self:
        with _as_os_error(path), _transaction(database):
            for table in _TABLES:
                database.execute(table)
            database.execute("INSERT INTO sweep VALUES (?, ?, ?, ?)", (SCHEMA, __version__, *sweep))
        return cls(path, database, set())

    @classmethod
    def resumed(cls, path: Path, sweep: SweepId, *, expected: Container[int]) -> Self:
        """Open a journal to add to it, or begin one where there is none.

        Raises InputError for a journal of another sweep, one that is damaged, and one that is in use.
        """
        try:
            database = _opened(path)
            try:
                if not _names(database):
                    return cls._begun(path, database, sweep)
                _check_sweep(path, database, sweep)
                return cls(path, database, _read(path, database, expected))
            except BaseException:
                database.close()
                raise
        except _UnreadableError as error:
            raise _refusal(path, str(error)) from None

    @property
    def done(self) -> Container[int]:
        """Numbers of the points that the journal holds."""
        return self._done

    def __len__(self) -> int:
        return len(self._done)

    def append(self, rows: Iterable[JournalRow]) -> None:
        """Add the rows of a chunk; when this returns, they survive."""
        # A chunk that was given up as lost may come back after all.
        fresh = {row.point: row.plain() for row in rows if row.point not in self._done}
        with _as_os_error(self.path), _transaction(self._database):
            self._database.executemany("INSERT INTO rows VALUES (?, ?)", fresh.items())
        self._done |= fresh.keys()

    def row(self, point: int) -> JournalRow:
        """Return the row of a point. Raises KeyError if there is none."""
        if point not in self._done:
            raise KeyError(point)
        with _as_os_error(self.path):
            (text,) = self._database.execute("SELECT data FROM rows WHERE point = ?", (point,)).fetchone()
        return JournalRow.model_validate_json(text)

    def close(self) -> None:
        """Close the journal, so that others can open it; without a row it leaves no file."""
        self._database.close()
        if not self._done:
            _remove(self.path)


class _UnreadableError(Exception):
    """An _UnreadableError is raised for a file that is not a journal's database."""


_NO_JOURNAL = "is not the journal of a sweep that this version knows"
_DAMAGED = "the journal is damaged: {}; start again with --overwrite"


def _opened(path: Path) -> sqlite3.Connection:
    """Open a database that nobody else can open until it is closed.

    Raises InputError if it is in use or cannot be written, _UnreadableError if it is none.
    """
    database = None
    try:
        database = sqlite3.connect(path, isolation_level=None, timeout=0)
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA synchronous = EXTRA")  # the file's name survives, too
        with _transaction(database):
            pass
    except sqlite3.Error as error:
        if database is not None:
            database.close()
        match error.sqlite_errorcode:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                raise _refusal(path, "another sweep is writing to it") from None
            case sqlite3.SQLITE_NOTADB:
                raise _UnreadableError(_NO_JOURNAL) from None
            case sqlite3.SQLITE_CORRUPT:
                raise _UnreadableError(_DAMAGED.format(error)) from None
        raise _refusal(path, f"cannot be written: {error}") from None
    return database


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    beside(path).unlink(missing_ok=True)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN EXCLUSIVE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the disk into those of the operating system."""
    try:
        yield
    except sqlite3.Error as error:
        number = errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else errno.EIO
        raise OSError(number, str(error), str(path)) from None


def _names(database: sqlite3.Connection) -> list[str]:
    """Return the names of the tables of a database."""
    try:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except sqlite3.DatabaseError as error:
        database.close()
        raise _UnreadableError(_DAMAGED.format(error)) from None
    return [name for (name,) in found]


def _check_sweep(path: Path, database: sqlite3.Connection, sweep: SweepId) -> None:
    try:
        ((schema, version, *known),) = database.execute("SELECT * FROM sweep").fetchall()
    except (sqlite3.DatabaseError, ValueError):
        raise _UnreadableError(_NO_JOURNAL) from None
    if schema != SCHEMA:
        raise _UnreadableError(_NO_JOURNAL)
    anew = "start again with --overwrite, or name another output file"
    if version != __version__:
        other = shortened(str(version))
        raise _refusal(path, f"was written by simoffload {other}, and this is {__version__}; {anew}")
    if tuple(known) != sweep:
        text = f"belongs to another sweep (the scenario, an axis, a constraint or a profile differs); {anew}"
        raise _refusal(path, text)


def _read(path: Path, database: sqlite3.Connection, expected: Container[int]) -> set[int]:
    """Return the points that a journal holds. Raises InputError for a file that does not hold what was
    written."""
    try:
        ((found, *_),) = database.execute("PRAGMA integrity_check(1)").fetchall()
        if found != "ok":
            raise _refusal(path, _DAMAGED.format(shortened(str(found))))
        done = set()
        for point, text in database.execute("SELECT point, data FROM rows"):
            why = _row_fault(point, text, expected)
            if why:
                which = shortened(str(point))
                raise _refusal(path, _DAMAGED.format(f"the row of point {which} {why}"))
            done.add(point)
    except sqlite3.DatabaseError as error:
        raise _refusal(path, _DAMAGED.format(error)) from None
    return done


def _row_fault(point: Any, text: Any, expected: Container[int]) -> str:
    """Return why a row cannot have been written here; empty if it can."""
    try:
        row = JournalRow.model_validate_json(text)
    except ValidationError as error:
        return f"is not a result ({error.errors()[0]['msg']})"
    return "" if row.point == point and point in expected else "belongs to no point of this sweep"


def _refusal(path: Path, message: str) -> InputError:
    return InputError.at("", message, path=str(path))
