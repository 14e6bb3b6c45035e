"""JSON with the position of every key and value.

The structure is walked here, because the standard library tells no positions; it reads the scalars.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simoffload.documents.scalars import parse_number
from simoffload.documents.tree import Document, Location, Position, SourceMark, TreeBuilder

__all__ = ["read_json"]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number; write a finite one")


_SCALARS = json.JSONDecoder(parse_int=parse_number, parse_float=parse_number, parse_constant=_refuse_constant)
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r"[^\s,\]}]*")


def read_json(text: str, *, name: str, root: Path | None = None) -> Document:
    """Read one JSON document with anything at its top; None if it is empty.

    Raises InputError.
    """
    reader = _JsonReader(text, name)
    try:
        return reader.finish(reader.read(), root)
    except json.JSONDecodeError as error:
        reason = error.msg[0].lower() + error.msg[1:]
        raise reader.refusal(reader.position(error.pos), f"not valid JSON: {reason}") from None


class _JsonReader(TreeBuilder):
    """Recursive descent; the depth limit bounds the recursion."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self._text = text
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._index = 0

    def position(self, index: int) -> Position:
        """The line and column of a character."""
        line = bisect_right(self._line_starts, index)
        return Position(line, index - self._line_starts[line - 1] + 1)

    def read(self) -> Any:
        """The tree of the document."""
        self._skip_space()
        if self._index == len(self._text):
            return None
        tree = self._value((), None)
        if self._index < len(self._text):
            raise json.JSONDecodeError("Extra data after the end", self._text, self._index)
        return tree

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._index)
        self._index = match.end() if match else self._index

    def _accepts(self, character: str) -> bool:
        """Step over a character and the space after it, if it comes next."""
        found = self._text.startswith(character, self._index)
        if found:
            self._index += 1
            self._skip_space()
        return found

    def _expect(self, character: str) -> None:
        if not self._accepts(character):
            raise json.JSONDecodeError(f'Expecting "{character}"', self._text, self._index)

    def _value(self, location: Location, key: Position | None) -> Any:
        position = self.position(self._index)
        if self._text.startswith(("{", "["), self._index):
            self.enter(location, SourceMark(position, key), nests=True)
            return self._list(location) if self._accepts("[") else self._mapping(location)
        start = self._index
        value = self._scalar(location)
        written = self._text[start : self._index].rstrip()
        self.enter(location, SourceMark(position, key, None if isinstance(value, str) else written))
        return value

    def _scalar(self, location: Location) -> Any:
        position = self.position(self._index)
        try:
            value, self._index = _SCALARS.raw_decode(self._text, self._index)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            self.complain(location, position, str(error))
            value = None
            self._index = next(_TOKEN.finditer(self._text, self._index)).end()
        if isinstance(value, str):
            self.check_text(value, location, position)
        self._skip_space()
        return value

    def _entries(self, end: str) -> Iterator[None]:
        """Step from entry to entry of a list or mapping, up to its end."""
        if self._accepts(end):
            return
        yield
        while not self._accepts(end):
            self._expect(",")
            yield

    def _list(self, location: Location) -> list[Any]:
        entries: list[Any] = []
        for _ in self._entries("]"):
            entries.append(self._value((*location, len(entries)), None))
        return entries

    def _mapping(self, location: Location) -> dict[str, Any]:
        self._expect("{")
        entries: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for _ in self._entries("}"):
            position = self.position(self._index)
            if not self._text.startswith('"', self._index):
                raise json.JSONDecodeError("Expecting a key in double quotes", self._text, self._index)
            key = self._scalar(location)
            self._expect(":")
            if key in lines:
                self.complain((*location, key), position, f"key given twice (first on line {lines[key]})")
            lines.setdefault(key, position.line)
            entries[key] = self._value((*location, key), position)
        return entries
