"""Values given on the command line in place of a document's own: ``tiers[1].capacity=40 GB``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simoffload.documents.choices import quoted
from simoffload.documents.scalars import is_text
from simoffload.documents.tree import DEEPEST, Document, Location, SourceMark, key_path
from simoffload.documents.yaml_reader import read_yaml
from simoffload.errors import InputError, Problem

__all__ = [
    "Edit",
    "edited",
    "inserted",
    "parse_path",
    "set_value",
    "split_assignment",
    "with_value",
    "without",
]


class Edit(NamedTuple):
    """One value of a document in place of its own."""

    path: Location
    value: Any

    @classmethod
    def at(cls, path: str, value: Any) -> Edit:
        """An edit at a path whose keys have no dots: ``workload.batch_size``."""
        return cls(tuple(path.split(".")), value)

    @property
    def assignment(self) -> str:
        """ "workload.batch_size=8", as ``--set`` takes it.

        It reads back as the same value, unless that is what no file can hold: an integer of more than 30
        digits, NUL or half of a surrogate pair. Raises TypeError for what is no plain value.
        """
        return f"{_written_path(self.path)}={_written(self.value)}"


def _written_path(path: Location) -> str:
    """A path as ``parse_path`` reads it, whatever its length."""
    parts = (f"[{one}]" if isinstance(one, int) else f".{_written_key(one)}" for one in path)
    return "".join(parts).removeprefix(".")


def _written_key(name: str) -> str:
    return name if re.fullmatch(r"[\w/-]+", name) else f'"{name}"'


def _written(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, str):
        return value if value.replace("_", "").isalnum() and is_text(value) else _in_quotes(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_entry(one) for one in value)}]"
    if isinstance(value, dict):
        entries = (f"{_in_quotes(key)}: {_entry(one)}" for key, one in value.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' * (value < 0)}.inf"
    return json.dumps(value)


def _entry(value: Any) -> str:
    """A value within a list or a mapping, where text is always in quotes."""
    return _in_quotes(value) if isinstance(value, str) else _written(value)


def _in_quotes(text: str) -> str:
    """Text in double quotes; what does not print is escaped as YAML has it."""
    return '"' + "".join(_escaped(one) for one in text) + '"'


def _escaped(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if one.isprintable() and (one.isascii() or one.isalnum()):
        return one
    if one in _ESCAPES:
        return _ESCAPES[one]
    return f"\\U{ord(one):08x}"


def edited(document: Document, edits: Iterable[Edit], *, in_place: bool = False) -> Document:
    """A copy of the document with values set; keys that are missing are created. Raises InputError.

    ``in_place``: a value stands for what is written there, as a ds_config for its path, and keeps its place
    in the file.
    """
    data, marks, origins = document.data, document.marks, document.origins
    for path, value in edits:
        data, _, changed = with_value(data, path, value)
        if not in_place:
            marks = {place: mark for place, mark in marks.items() if place[: len(changed)] != changed}
            origins = {place: file for place, file in origins.items() if place[: len(changed)] != changed}
    return replace(document, data=data, marks=marks, origins=origins)


def inserted(document: Document, section: str, other: Document) -> Document:
    """A copy of the document whose section is what another file holds, where problems with it are told.

    Raises InputError.
    """
    changed = edited(document, [Edit((section,), other.data)])
    marks = {(section, *place): mark for place, mark in other.marks.items()}
    return replace(
        changed,
        marks={**changed.marks, **marks},
        overrides=frozenset(place for place in changed.overrides if place[:1] != (section,)),
        origins={**changed.origins, (section,): other.path},
    )


def without(document: Document, section: str) -> Document:
    """A copy of the document without one of its sections."""
    data = {key: value for key, value in document.data.items() if key != section}
    return replace(document, data=data)


_ESCAPES = {"\n": "\\n", "\t": "\\t"}
_PART = re.compile(r'(?:^|\.)(?:"([^"]+)"|([^.\[\]"]+))|\[([0-9]{1,6})\]')


def set_value(document: Document, assignment: str) -> Document:
    """A copy of the document with one value set: ``a.b[0].c=value`` (``a.b.0.c`` means the same).

    The value is YAML, so that ``1e9`` is a number and ``[1, 2]`` a list; nothing means null. Missing keys
    are created; an entry of a list must exist. Raises InputError.
    """
    path, text = split_assignment(assignment)
    if text is None:
        raise _refusal((), f"{quoted(assignment)} has no value; write e.g. workload.batch_size=16")
    try:
        value = read_yaml(text, name="--set")
    except InputError as error:
        raise InputError(p._replace(line=None, column=None, key=path) for p in error.problems) from None
    data, location, changed = with_value(document.data, parse_path(path), value.data)
    marks = {place: mark for place, mark in document.marks.items() if place[: len(changed)] != changed}
    marks |= {(*location, *place): SourceMark(None, text=mark.text) for place, mark in value.marks.items()}
    return replace(document, data=data, marks=marks, overrides=document.overrides | {changed})


def split_assignment(assignment: str) -> tuple[str, str | None]:
    """The path and the value of ``a.b=value``, None without a value; a key in quotes may hold a ``=``."""
    in_quotes = re.match(r'(?:"[^"]*"|[^"=])*=', assignment)
    end = in_quotes.end() - 1 if in_quotes else assignment.find("=")
    return (assignment.strip(), None) if end < 0 else (assignment[:end].strip(), assignment[end + 1 :])


def parse_path(path: str) -> Location:
    """Split ``a.b[0]`` into keys and indices. Raises InputError."""
    parts: list[str | int] = []
    end = 0
    while match := _PART.match(path, end):
        in_quotes, name, index = match.groups()
        parts.append(int(index) if index else in_quotes or name)
        end = match.end()
    if not parts or end < len(path) or len(parts) > DEEPEST or re.search("[\0\ud800-\udfff]", path):
        raise _refusal((), f"{quoted(path)} is not the path of a key; write e.g. tiers[1].capacity=40 GB")
    return tuple(parts)


def with_value(tree: Any, parts: Location, value: Any) -> tuple[Any, Location, Location]:
    """The tree with the value in it, where the value lies, and the outermost entry that changed.

    Raises InputError where the parts lead nowhere.
    """
    location: list[str | int] = []
    changed: Location | None = None
    top = {"": tree}
    holder: Any = top
    slot: str | int = ""
    for written in parts:
        node = holder[slot]
        if node is None:
            changed = changed or tuple(location)
            node = {}
        part = _slot(node, written, location)
        # Only the path is copied: the rest of the tree is shared with the document it came from.
        copy = node.copy()
        holder[slot] = copy
        holder, slot = copy, part
        location.append(part)
        if isinstance(copy, dict) and part not in copy:
            changed = changed or tuple(location)
            copy[str(part)] = None
    holder[slot] = value
    return top[""], tuple(location), changed or tuple(location)


def _slot(node: Any, part: str | int, location: Sequence[str | int]) -> str | int:
    """Where in a node the part of a path leads: a key of a mapping, an index of a list."""
    if isinstance(node, dict):
        if isinstance(part, int):
            raise _refusal(location, f"this has keys and is not a list, so [{part}] leads nowhere")
        return part
    if not isinstance(node, list):
        raise _refusal(location, f"this is a single value, so {quoted(str(part))} leads nowhere")
    if isinstance(part, str) and not re.fullmatch("[0-9]{1,6}", part):
        raise _refusal(
            location, f"this is a list, so its entries have numbers and not names such as {quoted(part)}"
        )
    if int(part) >= len(node):
        raise _refusal(location, f"entry [{part}] does not exist; the list has {len(node)}, counted from 0")
    return int(part)


def _refusal(location: Sequence[str | int], message: str) -> InputError:
    return InputError([Problem("--set", None, None, key_path(tuple(location)), message)])
