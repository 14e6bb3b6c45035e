"""Errors of pydantic, placed in the document and put in words for people."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, core_schema

from simoffload.documents.choices import either, listing, quoted, suggest
from simoffload.documents.model_fields import choices_at, field_names_at, split_labels
from simoffload.documents.tree import Location

__all__ = ["Finding", "find"]

_EXPECTED = {
    **dict.fromkeys(["int_type", "int_parsing", "int_parsing_size", "int_from_float"], "a whole number"),
    **dict.fromkeys(["float_type", "float_parsing"], "a number"),
    **dict.fromkeys(["bool_type", "bool_parsing"], "true or false"),
    **dict.fromkeys(["string_type", "path_type"], "text"),
    **dict.fromkeys(["list_type", "tuple_type", "set_type", "frozen_set_type"], "a list"),
    **dict.fromkeys(["dict_type", "mapping_type", "model_type", "model_attributes_type"], "a mapping"),
    **dict.fromkeys(["date_type", "date_parsing"], "a date such as 2026-11-20"),
    **dict.fromkeys(
        ["date_from_datetime_parsing", "date_from_datetime_inexact"], "a date such as 2026-11-20"
    ),
    "finite_number": "a finite number",
    "none_required": "null",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "string_pattern_mismatch": "text of the form {pattern}",
}
"""What ends the sentence "must be …", for the errors of pydantic that say what they expected."""
_BUILT_IN = frozenset(get_args(core_schema.ErrorType))


class Finding(NamedTuple):
    """Something wrong with one entry of a document."""

    location: Location
    value: Any
    expected: str = ""
    """What ends the sentence "must be …"."""
    hint: str = ""
    """What follows that sentence."""
    message: str = ""
    """What to say if nothing particular was expected."""
    at_key: bool = False
    unions: tuple[Location, ...] = ()
    """The unions around the entry, of which this concerns one member."""


def find(error: ErrorDetails, model: type[BaseModel], tree: Any) -> Finding:
    """Put an error that the model found in the tree in words."""
    kind = error["type"]
    location, unions = split_labels(model, tree, error["loc"], missing=kind == "missing")
    finding = Finding(location, error["input"], unions=unions)
    context = error.get("ctx", {})
    # A discriminator may be a function, which has no place in the document.
    has_key = context.get("discriminator", "").startswith("'")
    if kind == "missing":
        return finding._replace(message=_missing(model, tree, location))
    if kind == "extra_forbidden":
        names = field_names_at(model, tree, location[:-1])
        message = f"unknown field{suggest(str(location[-1]), names)} (known here: {listing(names)})"
        return finding._replace(message=message, at_key=True)
    if kind == "union_tag_not_found" and has_key:
        location = (*location, *_literals(context["discriminator"]))
        return finding._replace(location=location, message=_missing(model, tree, location))
    if kind == "union_tag_invalid" and has_key:
        (key,) = _literals(context["discriminator"])
        finding = finding._replace(location=(*location, key), value=error["input"][key])
        return _not_among(finding, _literals(context["expected_tags"]))
    if kind in {"literal_error", "enum"}:
        return _not_among(finding, _literals(context["expected"]))
    if kind in {"value_error", "assertion_error"}:
        return finding._replace(message=str(context["error"]) or "is not valid")
    if kind in _EXPECTED:
        numbers = {name: _plain(value) for name, value in context.items()}
        return finding._replace(expected=_EXPECTED[kind].format(**numbers))
    if kind in _BUILT_IN:
        return finding._replace(message=error["msg"][0].lower() + error["msg"][1:])
    return finding._replace(message=error["msg"])  # raised by a validator in its own words


def _missing(model: type[BaseModel], tree: Any, location: Location) -> str:
    if isinstance(location[-1], int):
        return "required entry is missing"
    choices = choices_at(model, tree, location)
    return f"required key is missing{f'; choose {either(_named(choices))}' if choices else ''}"


def _not_among(finding: Finding, choices: Sequence[Any]) -> Finding:
    texts = [choice for choice in choices if isinstance(choice, str)]
    hint = suggest(finding.value, texts) if isinstance(finding.value, str) else ""
    return finding._replace(expected=either(_named(choices)), hint=hint)


def _named(choices: Sequence[Any]) -> list[str]:
    return [quoted(choice) if isinstance(choice, str) else str(choice) for choice in choices]


def _literals(listed: str) -> list[Any]:
    """Read pydantic's list ``'a', 'b' or 'c'`` back; what is no plain value stays text."""
    try:
        return list(ast.literal_eval(f"[{listed.replace(' or ', ', ')}]"))
    except (SyntaxError, ValueError):
        return [listed]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
