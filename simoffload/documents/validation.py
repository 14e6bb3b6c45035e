"""From a document to a pydantic model, or to everything that is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simoffload.documents.choices import either
from simoffload.documents.findings import Finding, find
from simoffload.documents.tree import Document, Location, input_error
from simoffload.errors import Problem

__all__ = ["validate"]

M = TypeVar("M", bound=BaseModel)

_LONGEST = 40


def validate(document: Document, model: type[M], *, at: Location = ()) -> M:
    """Turn a document, or the part of it at a location, into a model.

    Raises InputError with every problem found, in the order of the file.
    """
    tree = document.data
    for part in at:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            raise input_error([document.problem(at, "required key is missing")]) from None
    # No quantity here is infinite or undefined, whether or not the model thinks of it.
    found = list(_not_finite(tree, ()))
    try:
        result = model.model_validate(tree)
    except ValidationError as error:
        found += [find(details, model, tree) for details in error.errors(include_url=False)]
    else:
        if not found:
            return result
    raise input_error(_problems(document, at, found))


def _not_finite(node: Any, location: Location) -> Iterator[Finding]:
    if isinstance(node, float) and not math.isfinite(node):
        yield Finding(location, node, expected="a finite number")
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for part, entry in entries:
        yield from _not_finite(entry, (*location, part))


def _problems(document: Document, at: Location, found: list[Finding]) -> Iterator[Problem]:
    """One problem for each entry about which something was found."""
    by_location: dict[Location, list[Finding]] = {}
    # Someone who writes a mapping where text or a mapping may stand did not mean the text.
    entered = {union for finding in found for union in finding.unions if finding.location != union}
    for finding in found:
        if not (finding.location in finding.unions and finding.location in entered):
            by_location.setdefault(finding.location, []).append(finding)
    for location, findings in by_location.items():
        # A key that one member of a union does not know, another may.
        telling = [finding for finding in findings if not finding.at_key] or findings
        place = (*at, *location)
        message = _sentence(telling, document.written(place))
        yield document.problem(place, message, at_key=telling[0].at_key)


def _sentence(findings: list[Finding], written: str | None) -> str:
    """What is wrong with one entry; several findings are the members of a union, none of which fits."""
    value = findings[0].value
    shown = _shown(value, written)
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, got {shown}"
    sentences = [finding.message for finding in findings if finding.message]
    if isinstance(value, (int, float)):
        # A validator saw 1000000000.0 where the file has 1e9.
        sentences = [sentence.replace(f'"{value}', f'"{shown}') for sentence in sentences]
    expected = list(dict.fromkeys(finding.expected for finding in findings if finding.expected))
    if expected and not (sentences and isinstance(value, dict)):
        hints = "".join(dict.fromkeys(finding.hint for finding in findings))
        sentences.append(f"must be {either(expected)}, got {shown}{hints}")
    return "; or ".join(dict.fromkeys(sentences))


def _shown(value: Any, written: str | None) -> str:
    """A value as people wrote it, shortened."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        shown = json.dumps(value[:_LONGEST], ensure_ascii=False)
        return shown if len(value) <= _LONGEST else f'{shown[:-1]}…"'
    return written or ("nothing" if value is None else str(value))
