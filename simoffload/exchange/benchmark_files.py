"""Output files of benchmark tools: bounded text, JSON with finite numbers, and the measurements in SI
units."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from simoffload.documents import file_errors, read_text
from simoffload.errors import InputError, Problem

_LARGEST = 20_000_000
"""[B] The largest file; fio's json+ with all its bins is smaller."""


class BenchmarkFile(NamedTuple):
    """The text of a file that a benchmark tool wrote."""

    path: str
    """The path as the user gave it."""
    text: str
    date: datetime.date
    """The day of its last modification, in UTC."""

    @classmethod
    def read(cls, path: str | Path) -> BenchmarkFile:
        """Read a file. Raises InputError if it is not readable text, or larger than 20 MB."""
        text = read_text(path, most=_LARGEST, remedy="import the files that the tool wrote, run by run")
        with file_errors(path):
            modified = datetime.datetime.fromtimestamp(Path(path).stat().st_mtime, tz=datetime.UTC)
        return cls(str(path), text, modified.date())

    @property
    def name(self) -> str:
        """The name of the file without its folder."""
        return Path(self.path).name

    def refuse(self, message: str, *, line: int | None = None, key: str = "") -> NoReturn:
        """Raise an InputError about this file."""
        raise InputError((Problem(self.path, line, None, key, message),))

    def json_object(self, tool: str) -> Fields:
        """Return the JSON object whose ``{`` begins a line; other text is ignored.

        Raises InputError if there is none, or if it contains NaN or Infinity.
        """
        start = 0 if self.text.startswith("{") else self.text.find("\n{") + 1
        line = self.text.count("\n", 0, start)
        if not self.text.startswith("{", start):
            self.refuse(
                f'contains no JSON object (no line begins with "{{"); is it the JSON output of {tool}?'
            )
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        try:
            data, _ = decoder.raw_decode(self.text[start:])
        except json.JSONDecodeError as error:
            message = f"not valid JSON ({error.msg}); was {tool} interrupted? Run it again"
            raise InputError((Problem(self.path, line + error.lineno, error.colno, "", message),)) from None
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            self.refuse(f"unusable JSON ({reason}); run {tool} again", line=line + 1)
        return Fields(self, "", data)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def finite(text: str) -> float | None:
    """Return a finite, non-negative number; None if the text is not such a number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 and "_" not in text else None


class Fields(NamedTuple):
    """An object within JSON, with its key path."""

    file: BenchmarkFile
    key: str
    data: dict[str, Any]

    def place(self, name: str) -> str:
        """Return the key path of an entry, e.g. ``jobs[0].error``."""
        return f"{self.key}.{name}" if self.key else name

    def refuse(self, name: str, message: str) -> NoReturn:
        """Raise an InputError about an entry."""
        self.file.refuse(message, key=self.place(name))

    def object(self, name: str) -> Fields:
        """Return an entry that is an object; empty if it is missing.

        Raises InputError if it is anything else.
        """
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            self.refuse(name, "must be an object; was the file edited?")
        return Fields(self.file, self.place(name), value)

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Return an entry that is a non-empty list of objects.

        Raises InputError if it is not.
        """
        value = self.data.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
            self.refuse(name, "must be a non-empty list of objects; is this another tool's output?")
        return tuple(Fields(self.file, f"{self.place(name)}[{i}]", one) for i, one in enumerate(value))

    def number(self, name: str) -> float:
        """Return an entry that is a finite, non-negative number; 0 if it is missing.

        Raises InputError if it is not.
        """
        value = self.data.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or finite(str(value)) is None:
            self.refuse(name, f"must be a finite number of at least 0, not {str(value)[:40]!r}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return an entry as text; ``default`` if it is missing."""
        return str(self.data.get(name, default))


class StorageMeasurement(NamedTuple):
    """One measured run of reads or writes on a drive, array or file system."""

    operation: Literal["read", "write"]
    block: int
    """[B] Size of one request."""
    queue_depth: int
    """The number of requests that one job has in flight."""
    jobs: int
    """The number of concurrent threads or processes."""
    rate: int
    """[B/s] Total rate of all jobs."""
    latency: float | None
    """[s] Mean latency of a request under this load."""
    direct: bool | None
    """Whether I/O bypassed the page cache; None if the file does not tell."""
    random: bool | None
    """Whether offsets were random; None if the file does not tell."""
    tool: str
    version: str
    """Empty if the file does not say."""
    file: str
    """Name of the file, without its folder."""
    date: datetime.date
    """The day of the run if the file tells it, else that of the file."""

    @property
    def outstanding(self) -> int:
        """[B] The amount in flight."""
        return self.block * self.queue_depth * self.jobs


class CopyMeasurement(NamedTuple):
    """Measured copies between pinned host memory and one GPU by the copy engine."""

    direction: Literal["host_to_device", "device_to_host"]
    both_ways: bool
    """Whether copies in the other direction ran at the same time; ``rate`` is that of this direction."""
    gpu: int
    size: int
    """[B] Size of one copy."""
    rate: int
    """[B/s] Rate of the copies."""
    tool: str
    version: str
    """Empty if the file does not say."""
    file: str
    """Name of the file, without its folder."""
    date: datetime.date
    """The day of the file, which does not tell that of the measurement."""
