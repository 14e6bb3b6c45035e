"""From a file or a text to a document: what can be refused before the syntax is looked at."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simoffload.documents.json_reader import read_json
from simoffload.documents.tree import Document
from simoffload.documents.yaml_reader import read_yaml
from simoffload.errors import InputError, Problem, shortened

__all__ = ["SUFFIXES", "exists", "file_errors", "parse_json", "parse_yaml", "read_document", "resolved"]

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
    if path.suffix not in SUFFIXES and not exists(path):
        raise _refusal(str(path), "no such file")
    if path.suffix not in SUFFIXES:
        raise _refusal(str(path), "the name of a document ends in .yaml, .yml or .json")
    parse = parse_json if path.suffix == ".json" else parse_yaml
    return parse(_read_text(path), name=str(path), root=path.parent)


def parse_yaml(text: str, *, name: str, root: Path | None = None) -> Document:
    """Read YAML text whose top is a mapping; ``name`` stands for the file in messages.

    Raises InputError.
    """
    return _with_mapping(read_yaml(text, name=name, root=root))


def parse_json(text: str, *, name: str, root: Path | None = None) -> Document:
    """Read JSON text whose top is a mapping; ``name`` stands for the file in messages.

    Raises InputError.
    """
    return _with_mapping(read_json(text, name=name, root=root))


def _read_text(path: Path) -> str:
    with file_errors(path):
        try:
            status = path.stat()
        except FileNotFoundError:
            raise _refusal(str(path), "no such file") from None
        if stat.S_ISDIR(status.st_mode):
            raise _refusal(str(path), "this is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(str(path), "not a regular file")
        if status.st_size > _LARGEST:
            raise _refusal(str(path), f"larger than 1 MB ({status.st_size} bytes)")
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"not a text in UTF-8 (byte 0x{content[error.start]:02x})"
        raise InputError([Problem(str(path), line, None, "", message)]) from None


def _with_mapping(document: Document) -> Document:
    if document.data is None:
        raise _refusal(document.path, "the document is empty")
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        problem = document.problem((), f"must hold keys and values at its top, not {kind}")
        raise InputError([problem])
    return document


def _refusal(name: str, message: str) -> InputError:
    return InputError([Problem(name, None, None, "", message)])
