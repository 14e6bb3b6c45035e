"""Edits of a document: ``Edit(path, value)``, in Python or as ``--set tiers[1].capacity=40 GB``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simoffload.documents.document import Document, Location, Mark, key_path, quoted
from simoffload.documents.reader import DEEPEST, is_text, parse_yaml
from simoffload.errors import InputError, Problem

_PART = re.compile(r'(?:^|\.)(?:"([^"]+)"|([^.\[\]"]+))|\[([0-9]{1,6})\]')
_JSON_ONLY = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity')
_NOT_FINITE = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}


class Edit(NamedTuple):
    """A new value for one entry of a document."""

    path: Location
    value: Any

    @classmethod
    def at(cls, path: str, value: Any) -> Edit:
        """Return an edit at a path whose keys have no dots: ``workload.batch_size``."""
        return cls(tuple(path.split(".")), value)

    @property
    def assignment(self) -> str:
        """The edit as ``--set`` takes it: "workload.batch_size=8".

        It reads back as the same value, except for values that no file can hold: an integer of more than 30
        digits, NUL, or half of a surrogate pair. Raises TypeError for a value that is not plain data.
        """
        keys = (
            one if isinstance(one, int) or re.fullmatch(r"[\w/-]+", one) else f'"{one}"' for one in self.path
        )
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
        return f"{path.removeprefix('.')}={_written(self.value)}"


def _written(value: Any) -> str:
    """Return a value as YAML on one line: JSON with text and numbers changed to what YAML reads."""
    if isinstance(value, str) and value.replace("_", "").isalnum() and is_text(value):
        return value
    return _JSON_ONLY.sub(
        lambda match: _NOT_FINITE.get(match[0]) or "".join(map(_printable, match[0])),
        json.dumps(value, ensure_ascii=False),
    )


def _printable(character: str) -> str:
    """Return the character, escaped for YAML if a terminal or a shell might not show or keep it."""
    if character.isprintable() and (character.isascii() or character.isalnum()):
        return character
    return f"\\U{ord(character):08x}"


def edited(
    document: Document, edits: Iterable[Edit], *, in_place: bool = False, option: str = ""
) -> Document:
    """Return a copy of the document with values set; missing keys are created. Raises InputError.

    ``in_place``: a value replaces an equivalent one, as a ds_config replaces its path, and keeps its position
    in the file. ``option`` is the option of the command line that gave the values, which problems then name.
    """
    data, changed = document.data, list[Location]()
    for path, value in edits:
        data, _, outermost = _with_value(data, path, value)
        changed.append(outermost)
    marks = document.marks if in_place or not changed else _outside(document.marks, changed)
    if option:
        marks = {**marks, **{place: Mark(None, file=option) for place in changed}}
    return replace(document, data=data, marks=marks)


def _outside(marks: Mapping[Location, Mark], changed: Sequence[Location]) -> dict[Location, Mark]:
    """Return the marks of the entries that are in none of those that changed."""
    inside, sizes = set(changed), {len(place) for place in changed}
    return {place: mark for place, mark in marks.items() if not any(place[:size] in inside for size in sizes)}


def overlaid(base: Document, own: Document, data: Any, *, at: Location = ()) -> Document:
    """Return a document whose ``data`` is that of a base with changes of one's ``own``.

    What the own document writes, at a location or in all of it, is located there, anything else in the base.
    """
    written = {place[len(at) :]: mark for place, mark in own.marks.items() if place[: len(at)] == at}
    around = {place[:-1] for place in written}
    inherited = {
        place: mark._replace(file=mark.file or base.path, root=mark.root or base.root)
        for place, mark in _outside(base.marks, [place for place in written if place not in around]).items()
    }
    return replace(own, data=data, marks={**inherited, **written})


def without(document: Document, section: str) -> Document:
    """Return a copy of the document without one of its sections."""
    return replace(document, data=_removed(document.data, (section,)))


def _removed(node: Any, path: Location) -> Any:
    """Return a copy of the mapping without the entry at a path, which must not lead through a list."""
    first, *rest = path
    if rest:
        return {**node, first: _removed(node[first], tuple(rest))}
    return {key: value for key, value in node.items() if key != first}


_MISSING = object()


def rename_keys(document: Document, table: Mapping[str, str], problems: list[Problem]) -> Document:
    """Return the document with the keys of a table (old path, new path) renamed, and a warning for each.

    The values keep their positions in the file. If the old and the new key are given, this is added to
    ``problems``, and the value of the new one stays.
    """
    for old, new in table.items():
        path, target = tuple(old.split(".")), tuple(new.split("."))
        value = _value_at(document.data, path)
        if value is _MISSING:
            continue
        data = _removed(document.data, path)
        if _value_at(data, target) is not _MISSING:
            text = f"is the old name of {new}, which is given too; remove {old}"
            problems.append(document.problem(path, text, at_key=True))
            document = replace(document, data=data)
            continue
        warnings = (*document.warnings, document.problem(path, renamed_key(new), at_key=True))
        marks = {
            (*target, *place[len(path) :]) if place[: len(path)] == path else place: mark
            for place, mark in document.marks.items()
        }
        data, _, _ = _with_value(data, target, value)
        document = replace(document, data=data, marks=marks, warnings=warnings)
    return document


def renamed_key(new: str) -> str:
    """Return the warning about an old key whose new path is ``new``."""
    return f"was renamed; write {new}, because the next release refuses the old key"


def _value_at(node: Any, path: Location) -> Any:
    """Return the value at a path of mappings; ``_MISSING`` if there is none."""
    for key in path:
        if not isinstance(node, dict) or key not in node:
            return _MISSING
        node = node[key]
    return node


def set_value(document: Document, assignment: str) -> Document:
    """Return a copy of the document with one value set: ``a.b[0].c=value`` (``a.b.0.c`` is the same path).

    The value is YAML, so ``1e9`` is a number and ``[1, 2]`` a list; an empty value is null. Missing keys
    are created; an entry of a list must exist. Raises InputError.
    """
    path, text = split_assignment(assignment)
    if text is None:
        raise _refusal((), f"{quoted(assignment)} has no value; write e.g. workload.batch_size=16")
    value = read_option(text, option="--set", key=path)
    data, location, outermost = _with_value(document.data, parse_path(path), value.data)
    kept = _outside(document.marks, [outermost])
    marks = {(*location, *place): mark._replace(file="--set") for place, mark in value.marks.items()}
    return replace(document, data=data, marks={**kept, outermost: Mark(None, file="--set"), **marks})


def read_option(text: str, *, option: str, key: str) -> Document:
    """Read the YAML that an option of the command line gives for a key, as a document without positions.

    Raises InputError.
    """
    try:
        value = parse_yaml(text, name=option, any_value=True)
    except InputError as error:
        raise InputError(one._replace(line=None, column=None, key=key) for one in error.problems) from None
    return replace(value, marks={place: Mark(None, text=mark.text) for place, mark in value.marks.items()})


def split_assignment(assignment: str) -> tuple[str, str | None]:
    """Split ``a.b=value`` into path and value, None without a value; a quoted key may contain ``=``."""
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


def _with_value(node: Any, path: Location, value: Any, at: Location = ()) -> tuple[Any, Location, Location]:
    """Return the changed node, the location of the value, and the outermost entry that changed.

    Only nodes on the path are copied. Raises InputError for a path that does not exist.
    """
    if not path:
        return value, at, at
    slot = _slot({} if node is None else node, path[0], at)
    copy: Any = {} if node is None else node.copy()
    is_new = isinstance(copy, dict) and slot not in copy
    copy[slot], location, outermost = _with_value(
        None if is_new else copy[slot], path[1:], value, (*at, slot)
    )
    if node is None:
        return copy, location, at
    return copy, location, (*at, slot) if is_new else outermost


def _slot(node: Any, part: str | int, location: Location) -> str | int:
    """Return the entry of a node that a part of a path names: a key of a mapping, an index of a list."""
    if isinstance(node, dict):
        if isinstance(part, int):
            raise _refusal(location, f"this is a mapping and not a list, so it has no entry [{part}]")
        return part
    if not isinstance(node, list):
        raise _refusal(location, f"this is a single value, so it has no entry {quoted(str(part))}")
    if isinstance(part, str) and not re.fullmatch("[0-9]{1,6}", part):
        raise _refusal(
            location, f"this is a list, so its entries have numbers, not names such as {quoted(part)}"
        )
    if int(part) >= len(node):
        raise _refusal(
            location, f"entry [{part}] does not exist; the list has {len(node)} entries, counted from 0"
        )
    return int(part)


def _refusal(location: Location, message: str) -> InputError:
    return InputError([Problem("--set", None, None, key_path(location), message)])
