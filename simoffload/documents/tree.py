"""A document: the plain tree of a file, and where in the file each part of it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.documents.choices import quoted
from simoffload.errors import InputError, Problem

__all__ = [
    "DEEPEST",
    "Document",
    "Location",
    "Position",
    "SourceMark",
    "TreeBuilder",
    "input_error",
    "key_path",
]

Location = tuple[str | int, ...]
"""Keys and list indices from the top of a document."""

DEEPEST = 32
_MOST_NODES = 50_000
_MOST_PROBLEMS = 50
_LONGEST = 1_000_000
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML refuses (https://yaml.org/spec/1.2.2/#51-character-set)."""


class Position(NamedTuple):
    """Where something begins; both count from 1, columns in characters."""

    line: int
    column: int


class SourceMark(NamedTuple):
    """Where an entry of a document stands; without positions if it did not come from the file."""

    value: Position | None
    key: Position | None = None
    text: str | None = None
    """An unquoted scalar as it was written."""


def key_path(location: Location) -> str:
    """Write a location as people do: ``tiers[1].capacity``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w/-]{1,40}", part) else quoted(part)
            path += f".{name}" if path else name
    return path


def input_error(problems: Iterable[Problem]) -> InputError:
    """Join problems in the order of the file, each once, and no more than people read."""
    ordered = sorted(
        dict.fromkeys(problems),
        key=lambda problem: (problem.line is None, problem.line or 0, problem.column or 0),
    )
    left = len(ordered) - _MOST_PROBLEMS
    if left > 0:
        ordered = [
            *ordered[:_MOST_PROBLEMS],
            Problem(ordered[0].path, None, None, "", f"and {left} more problems"),
        ]
    return InputError(ordered)


@dataclass(frozen=True, eq=False)
class Document:
    """What a file says, with its positions."""

    path: str
    """The file as the user named it."""
    data: Any
    """Dictionaries with text keys, lists, text, numbers, booleans and None."""
    root: Path | None = None
    """The folder from which relative paths in the document start."""
    marks: Mapping[Location, SourceMark] = field(default_factory=dict, repr=False)
    overrides: frozenset[Location] = frozenset()
    """What ``set_value`` has put in place of the file's own entries."""
    origins: Mapping[Location, str] = field(default_factory=dict)
    """Entries from other files, as ``strategy``, and those files; their ``marks`` are places there."""

    def position(self, location: Location) -> Position | None:
        """Where a value begins, or else the nearest entry around it; None if nothing is known."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.overrides:
                return None
            mark = self.marks.get(location[:end])
            if mark is not None:
                return mark.value
        return None

    def key_position(self, location: Location) -> Position | None:
        """Where the key of an entry begins; for an entry of a list, where its value does."""
        mark = self.marks.get(location)
        return mark.key if mark is not None and mark.key is not None else self.position(location)

    def written(self, location: Location) -> str | None:
        """An unquoted scalar as it was written: ``1e9``, where the tree has 1000000000.0."""
        mark = self.marks.get(location)
        return mark.text if mark else None

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> Problem:
        """A problem with a value of this document (with its key if ``at_key``)."""
        position = self.key_position(location) if at_key else self.position(location)
        line, column = position or (None, None)
        overridden = any(location[:end] in self.overrides for end in range(len(location) + 1))
        if overridden:
            return Problem("--set", line, column, key_path(location), message)
        for place, path in self.origins.items():
            if location[: len(place)] == place:
                return Problem(path, line, column, key_path(location[len(place) :]), message)
        return Problem(self.path, line, column, key_path(location), message)


class TreeBuilder:
    """What readers of every format share: the limits, the marks, the problems met on the way.

    Raises InputError if the text is too long or holds what only binary files do.
    """

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.marks: dict[Location, SourceMark] = {}
        self.problems: list[Problem] = []
        self._nodes = 0
        if len(text) > _LONGEST:
            raise self.refusal(None, "larger than 1 MB")
        control = _CONTROL.search(text)
        if control:
            line = text.count("\n", 0, control.start()) + 1
            position = Position(line, control.start() - text.rfind("\n", 0, control.start()))
            raise self.refusal(position, f"not a text: it holds the character U+{ord(control.group()):04X}")

    def enter(self, location: Location, mark: SourceMark, *, nests: bool = False) -> None:
        """Note an entry, of which ``nests`` says that it can hold others.

        Raises InputError if the document is too deep or too large to go on.
        """
        self._nodes += 1
        position = mark.value or Position(1, 1)
        if nests and len(location) >= DEEPEST:
            raise self.refusal(position, f"nested deeper than {DEEPEST} levels", location[:3])
        if self._nodes > _MOST_NODES:
            raise self.refusal(position, f"more than {_MOST_NODES} entries")
        self.marks[location] = mark

    def check_text(self, text: str, location: Location, position: Position) -> None:
        """Complain about characters that an escape sequence can write and no file or path can hold."""
        if re.search("[\0\ud800-\udfff]", text):
            self.complain(location, position, "text may not hold a NUL character or half of a surrogate pair")

    def complain(self, location: Location, position: Position, message: str) -> None:
        """Note a problem and go on.

        Raises InputError when there are as many as people read.
        """
        self.problems.append(Problem(self.path, *position, key_path(location), message))
        if len(self.problems) >= _MOST_PROBLEMS:
            raise input_error(self.problems)

    def refusal(self, position: Position | None, message: str, location: Location = ()) -> InputError:
        """The error with which to stop, after the problems met so far."""
        line, column = position or (None, None)
        return input_error([*self.problems, Problem(self.path, line, column, key_path(location), message)])

    def finish(self, data: Any, root: Path | None) -> Document:
        """Hand over the document.

        Raises InputError if there were problems.
        """
        if self.problems:
            raise input_error(self.problems)
        return Document(self.path, data, root, self.marks)
