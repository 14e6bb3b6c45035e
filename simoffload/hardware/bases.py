"""Profiles that are based on others: only what differs is written, and what is inherited is marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simoffload.documents import Document, Location, candidates, overlaid, suggest
from simoffload.errors import InputError, Problem

_LONGEST = 2000
"""[characters] The longest text of a source."""
BASE = "base"
"""The key that names the profile on which another one is based."""


def restated(node: Mapping[str, Any], change: Any, source: str) -> dict[str, Any]:
    """Return a number of a profile with another value: an estimate unless the change states another origin.

    ``source`` has {} in the place of the value before.
    """
    if not isinstance(change, Mapping):
        change = {"points" if isinstance(change, list) and "points" in node else "value": change}
    old = node.get("value", "a curve")
    return {"origin": "estimate", "source": source.format(old), "date": node.get("date"), **change}


def inherited(node: Any, owner: str, *, source: str = "{}") -> Any:
    """Return numbers of the profile ``owner`` as another device has them: what was measured on that one is
    an estimate for this one, which says where it was measured; data sheets and estimates stay as they are.

    ``source`` has {} in the place of the source before.
    """
    if isinstance(node, list):
        return [inherited(one, owner, source=source) for one in node]
    if not isinstance(node, dict):
        return node
    if "origin" not in node:
        return {key: inherited(value, owner, source=source) for key, value in node.items()}
    found = {**node, "source": source.format(node["source"])[:_LONGEST]} if "source" in node else node
    if node["origin"] == "measured":
        return {**found, "origin": "estimate", "measured_on": node.get("measured_on", owner)}
    return found


def based(base: Document, own: Document, *, owner: str, at: Location = ()) -> Document:
    """Return the document of a profile that has everything of the profile ``owner``, whose document is
    ``base``, except what ``own`` writes at a location.

    Mappings are merged; an empty one, a number and a list replace what was there, and null removes a key.
    Raises InputError for null in the place of what the base does not have.
    """
    problems: list[Problem] = []
    change = own.data
    for key in at:
        change = change[key]
    if not isinstance(change, Mapping):
        raise InputError([own.problem(at, "must be a mapping of what differs")])
    data = _merged(inherited(base.data, owner), change, own, at, owner, problems)
    if problems:
        raise InputError(problems)
    return overlaid(base, own, data, at=at)


def _merged(node: Any, change: Any, own: Document, at: Location, owner: str, problems: list[Problem]) -> Any:
    if not isinstance(node, dict):
        return change
    if "origin" in node:
        return restated(node, change, f"stated for this machine; {owner} has {{}}")
    if not isinstance(change, Mapping) or not change:
        return change
    found = dict(node)
    for key, value in change.items():
        if value is not None:
            found[key] = _merged(node.get(key), value, own, (*at, key), owner, problems)
        elif found.pop(key, None) is None:
            hint = candidates(key, node) or suggest(key, node) or f" (has: {', '.join(map(str, node))})"
            text = f"is empty, which leaves a key of {owner} out, but it has none of that name{hint}"
            problems.append(own.problem((*at, key), text, at_key=True))
    return found
