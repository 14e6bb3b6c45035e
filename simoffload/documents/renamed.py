"""Renamed keys: a document with an old key is read as if it had the new one, with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simoffload.documents.document import Document, Location
from simoffload.documents.edits import Edit, edited
from simoffload.errors import Problem

__all__ = ["rename_keys", "renamed_key"]


def renamed_key(new: str) -> str:
    """Return the text of the warning about a key that is called ``new`` today."""
    return f"was renamed; write {new}, because the next release refuses the old key"


def rename_keys(document: Document, table: Mapping[str, str], problems: list[Problem]) -> Document:
    """Return the document with the keys of a table under their new paths, with a warning for each.

    The values keep their positions in the file. If both keys are given, that is added to ``problems`` and
    the new key stays.
    """
    for old, new in table.items():
        location, target = tuple(old.split(".")), tuple(new.split("."))
        if not _has(document.data, location):
            continue
        if _has(document.data, target):
            text = f"is the old name of {new}, which is given too; remove {old}"
            problems.append(document.problem(location, text, at_key=True))
            document = replace(document, data=_removed(document.data, location))
            continue
        warning = document.problem(location, renamed_key(new), at_key=True)
        value = _value(document.data, location)
        size = len(location)
        marks = {
            (*target, *place[size:]) if place[:size] == location else place: mark
            for place, mark in document.marks.items()
        }
        document = replace(document, data=_removed(document.data, location), marks=marks)
        document = edited(document, [Edit(target, value)], in_place=True)
        document = replace(document, warnings=(*document.warnings, warning))
    return document


def _value(node: Any, location: Location) -> Any:
    for key in location:
        node = node[key]
    return node


def _has(node: Any, location: Location) -> bool:
    for key in location:
        if not isinstance(node, dict) or key not in node:
            return False
        node = node[key]
    return True


def _removed(node: Any, location: Location) -> Any:
    """Return a copy of the mapping without the entry at a location, which exists."""
    first, *rest = location
    if rest:
        return {**node, first: _removed(node[first], tuple(rest))}
    return {key: value for key, value in node.items() if key != first}
