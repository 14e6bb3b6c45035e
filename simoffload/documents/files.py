"""From a file or a text to a document: what can be refused before the syntax is looked at."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simoffload.documents.document import Document
from simoffload.documents.reader import parse_json, parse_yaml
from simoffload.errors import InputError, Problem, shortened

__all__ = [
    "SUFFIXES",
    "exists",
    "file_errors",
    "read_document",
    "read_text",
    "resolved",
]

SUFFIXES = (".yaml", ".yml", ".json")
"""Of the names of documents."""
_LARGEST = 1_000_000
"""[B] a scenario or a profile has a hundredth of it."""


@contextmanager
def file_errors(name: str | Path, *, option: str = "", what: str = "cannot be read") -> Iterator[None]:
    """Around everything that asks the system for a file whose name a user gave.

    Raises InputError for a name that the system refuses, such as one that is too long, and for a file that
    it does not let us use. The problem is about the file, or about ``option``, which named it.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        place, key = (option, shortened(str(name))) if option else (str(name), "")
        problem = Problem(place, None, None, key, f"{what}: {_reason(error)}")
        raise InputError([problem]) from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeEncodeError):
        return "its name holds half of a surrogate pair"
    return str(error)  # "embedded null byte"; "Symlink loop from", of pathlib before Python 3.13


def exists(name: str | Path) -> bool:
    """Whether there is a file or folder of that name. Raises InputError where the system cannot say."""
    with file_errors(name, what="cannot be used"):
        try:
            Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def resolved(path: str | Path) -> Path:
    """The path without links, whether or not it exists. Raises InputError for what can be no path."""
    with file_errors(path, what="cannot be used"):
        return Path(path).resolve()


def read_document(path: Path) -> Document:
    """Read a .yaml, .yml or .json file whose top is a mapping.

    Raises InputError for a file that cannot be read or holds anything but data.
    """
    if path.suffix not in SUFFIXES:
        wrong_name = "the name of a document ends in .yaml, .yml or .json"
        raise _refusal(path, wrong_name if exists(path) else "no such file")
    parse = parse_json if path.suffix == ".json" else parse_yaml
    return parse(read_text(path, most=_LARGEST), name=str(path), root=path.parent)


def read_text(name: str | Path, *, most: int, remedy: str = "") -> str:
    """The text of a file of at most ``most`` [B]. Refusals of what is in the file end with the remedy.

    Raises InputError.
    """
    path, after = Path(name), remedy and f"; {remedy}"
    with file_errors(name):
        try:
            status = path.stat()
        except FileNotFoundError:
            raise _refusal(name, "no such file") from None
        if stat.S_ISDIR(status.st_mode):
            raise _refusal(name, f"this is a folder, not a file{after}")
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(name, f"not a regular file{after}")
        if status.st_size > most:
            raise _refusal(name, f"larger than {most // 10**6} MB ({status.st_size} bytes){after}")
        with path.open("rb") as file:
            content = file.read(most + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not a text in UTF-8 (byte 0x{content[error.start]:02x}){after}"
        raise _refusal(name, message, line=content.count(b"\n", 0, error.start) + 1) from None


def _refusal(name: str | Path, message: str, *, line: int | None = None) -> InputError:
    return InputError([Problem(str(name), line, None, "", message)])
