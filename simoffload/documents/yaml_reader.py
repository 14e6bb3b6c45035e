"""YAML as data: a tree built from the parser's events, with the position of every key and value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from simoffload.documents.choices import quoted
from simoffload.documents.scalars import Scalar, is_text, parse_scalar
from simoffload.documents.tree import Document, Location, Position, SourceMark, TreeBuilder

__all__ = ["read_yaml"]

_NO_ENTRY = ("did not find expected key", "did not find expected '-'", "expected <block end>")
"""Beginnings of what the parsers, libyaml's and PyYAML's own, say of a line that is indented like none."""
# The C parser is ten times as fast; wheels of PyYAML have it, other builds may not.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str, *, name: str, root: Path | None = None) -> Document:
    """Read one YAML document with anything at its top; None if it is empty.

    Raises InputError.
    """
    reader = _YamlReader(text, name)
    try:
        return reader.finish(reader.read(), root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else None
        raise reader.refusal(position, f"not valid YAML: {_explain(error, text)}") from None


def _explain(error: yaml.MarkedYAMLError, text: str) -> str:
    """Say in one line what the parser met, with a remedy for the two usual slips."""
    problem = error.problem or "it ends too early"
    mark = error.problem_mark
    if "cannot start any token" in problem and mark:
        character = "".join(text.splitlines()[mark.line : mark.line + 1])[mark.column : mark.column + 1]
        if character == "\t":
            return "a tab cannot indent; use spaces"
        return f'a value cannot start with "{character}"; put it in quotes'
    if problem == "mapping values are not allowed in this context":
        return (mark and _misplaced(text, mark)) or 'a value that holds ": " needs quotes'
    if problem.endswith("<document start>") and mark and _begins_line(text, mark):
        return "wrong indentation: further left than what is above; indent all entries alike"
    start = error.context_mark
    if start and mark and problem.startswith(_NO_ENTRY) and _begins_line(text, mark):
        where = f"column {mark.column + 1}, like no entry of what begins on line {start.line + 1}"
        return f"wrong indentation: {where}; indent all entries of a mapping or list alike"
    if error.context and start and mark and start.line != mark.line:
        return f"{problem} {error.context} that begins on line {start.line + 1}"
    return f"{problem} {error.context or ''}".rstrip()


def _before(text: str, mark: yaml.Mark) -> str:
    """What stands on the line of a mark before it."""
    return text.splitlines()[mark.line][: mark.column]


def _begins_line(text: str, mark: yaml.Mark) -> bool:
    return mark.line < len(text.splitlines()) and not _before(text, mark).strip()


def _misplaced(text: str, mark: yaml.Mark) -> str:
    """What to say of a key, ended by the colon at the mark, that stands below a value; "" if it does not."""
    key = _before(text, mark)
    above = [number for number, line in enumerate(text.splitlines()[: mark.line]) if line.strip()]
    if not above or re.search(r":\s|[{\[\"']", key):
        return ""
    line = above[-1] + 1
    return f"wrong indentation: deeper than line {line}, which ends with a value; indent both alike"


def _position(event: yaml.Event) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)


class _YamlReader(TreeBuilder):
    """Recursive descent over the events; the depth limit bounds the recursion."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self._events = yaml.parse(text, Loader=_LOADER)

    def read(self) -> Any:
        """The tree of the only document."""
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        tree = self._node(next(self._events), ())
        next(self._events)  # the end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.refusal(_position(event), "a second document begins; a file holds one")
        return tree

    def _node(self, event: yaml.Event, location: Location, key: Position | None = None) -> Any:
        position = _position(event)
        if isinstance(event, yaml.ScalarEvent):
            self._refuse_extras(event, location)
            self.enter(location, SourceMark(position, key, event.value if event.implicit[0] else None))
            return self._scalar(event, location)
        if isinstance(event, yaml.CollectionStartEvent):
            self._refuse_extras(event, location)
            self.enter(location, SourceMark(position, key), nests=True)
            in_list = isinstance(event, yaml.SequenceStartEvent)
            return self._sequence(location) if in_list else self._mapping(location)
        self.complain(location, position, 'aliases ("*name") are not accepted; write the value out')
        return None

    def _refuse_extras(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, location: Location) -> None:
        if event.anchor is not None:
            self.complain(location, _position(event), 'anchors ("&name") are not accepted; remove it')
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.complain(location, _position(event), f"tags are not accepted, and {quoted(tag)} is one")

    def _scalar(self, event: yaml.ScalarEvent, location: Location) -> Scalar:
        self.check_text(event.value, location, _position(event))
        if not event.implicit[0]:
            return event.value
        try:
            return parse_scalar(event.value)
        except ValueError as error:
            self.complain(location, _position(event), str(error))
            return None

    def _sequence(self, location: Location) -> list[Any]:
        entries: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            entries.append(self._node(event, (*location, len(entries))))
        return entries

    def _mapping(self, location: Location) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            position = _position(event)
            key = self._key(event, location)
            if key is None:
                self._node(next(self._events), (*location, "?"))
                continue
            if key in lines:
                message = f"key given twice (first on line {lines[key]})"
                self.complain((*location, key), position, message)
            lines.setdefault(key, position.line)
            entries[key] = self._node(next(self._events), (*location, key), position)
        return entries

    def _key(self, event: yaml.Event, location: Location) -> str | None:
        """The text of a key; anything but a scalar is complained about and is None."""
        position = _position(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._node(event, (*location, "?"))
            self.complain(location, position, "a key must be text")
            return None
        self._refuse_extras(event, location)
        self.check_text(event.value, location, position)
        if event.implicit[0] and event.value == "<<":
            self.complain(location, position, 'merge keys ("<<") are not accepted; write the keys out')
        elif event.implicit[0] and not is_text(event.value):
            self.complain(location, position, f"key {quoted(event.value)} is not text unless it is in quotes")
        return event.value
