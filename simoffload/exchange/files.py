"""Files that are written completely or not at all, as text or as CSV."""

from __future__ import annotations

import csv
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from simoffload.documents import exists, file_errors
from simoffload.errors import InputError


def check_target(path: Path) -> None:
    """Raise InputError unless ``path`` is in an existing folder, and nothing or a plain file is there."""
    there = exists(path)  # refuses names that are too long
    if path.is_symlink() or (there and not path.is_file()):
        raise _refusal(path, "is not a plain file; name another file")
    if not path.parent.is_dir():
        raise _refusal(path, "its folder does not exist; create it first")


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """Open a text file that replaces ``path`` when the block succeeds and is removed when it fails.

    Raises InputError if the file cannot be written.
    """
    target = Path(path)
    if exists(target) and target.is_dir():
        raise _refusal(target, "is a folder, not a file")
    if not target.parent.is_dir():
        raise _refusal(target, "its folder does not exist; create it first")
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        partial.replace(target)
    except OSError:
        with file_errors(target, what="cannot be written"):
            raise
    finally:
        partial.unlink(missing_ok=True)


def _refusal(path: Path, message: str) -> InputError:
    return InputError.at("", message, path=str(path))


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The beginnings of text that spreadsheets read as a formula (owasp.org, "CSV Injection")."""
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?(?: [^\W\d_]+(?:/s)?)?")
"""A number, or a quantity such as "-5 GB", which spreadsheets do not read as a formula."""


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a header and rows as CSV (RFC 4180, with line feeds). Raises InputError if that fails."""
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(value) for value in row])


def _cell(value: Any) -> Any:
    """Return booleans in lower case, and text that looks like a formula with an apostrophe in front."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
