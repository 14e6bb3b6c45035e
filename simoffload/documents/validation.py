"""Validation: a document becomes a pydantic model, or a list of everything that is wrong with it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, core_schema

from simoffload.documents.document import (
    Document,
    Frozen,
    Location,
    either,
    input_error,
    listing,
    nearest,
    quoted,
    suggest,
)
from simoffload.errors import Problem
from simoffload.units import written_out

M = TypeVar("M", bound=BaseModel)

_LONGEST = 40
_EXPECTED = {
    kind: phrase
    for phrase, kinds in {
        "a whole number": "int_type int_parsing int_parsing_size int_from_float",
        "a number": "float_type float_parsing",
        "a finite number": "finite_number",
        "true or false": "bool_type bool_parsing",
        "text": "string_type path_type",
        "the name of a tier of the platform, such as hbm, dram or raid": "tier_type",
        "null": "none_required",
        "a list": "list_type tuple_type set_type frozen_set_type",
        "a mapping": "dict_type mapping_type model_type model_attributes_type",
        "a date such as 2026-11-20": "date_type date_parsing date_from_datetime_parsing"
        " date_from_datetime_inexact",
        "above {gt}": "greater_than",
        "at least {ge}": "greater_than_equal",
        "below {lt}": "less_than",
        "at most {le}": "less_than_equal",
        "a multiple of {multiple_of}": "multiple_of",
        "a list of at least {min_length}": "too_short",
        "a list of at most {max_length}": "too_long",
        "text of at least {min_length} characters": "string_too_short",
        "text of at most {max_length} characters": "string_too_long",
        "text of the form {pattern}": "string_pattern_mismatch",
    }.items()
    for kind in kinds.split()
}
"""The end of the sentence "must be …", for each pydantic error that has an expected value."""
_LIMITS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
_NO_NUMBERS = frozenset({"nan", "inf", "infinity"})
_BUILT_IN = frozenset(get_args(core_schema.ErrorType))


class _Finding(NamedTuple):
    """A fault of one entry of a document."""

    location: Location
    value: Any
    expected: str = ""
    """The end of the sentence "must be …"."""
    hint: str = ""
    """The text that follows that sentence."""
    message: str = ""
    """The complete message, if nothing particular was expected."""
    at_key: bool = False
    meant: tuple[Location, ...] = ()
    """Where the key would be that an unknown one resembles."""
    is_missing: bool = False
    unions: tuple[Location, ...] = ()
    """The unions around the entry; the fault concerns one member of each."""


def validate(
    document: Document, model: type[M], *, at: Location = (), checked: Mapping[str, Any] | None = None
) -> M:
    """Return the model of a document, or of the part of it at a location.

    ``checked`` has values of some of its keys that are valid already. Validators find all of the tree in
    their context. Raises InputError with every problem found, in the order of the file.
    """
    tree = document.data
    for part in at:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            raise input_error([document.problem(at, "required key is missing")]) from None
    if checked:
        tree = {**tree, **checked}
    # Infinite and undefined numbers are refused everywhere, whether or not the model checks them.
    findings = list(_not_finite(tree, ()))
    try:
        result = model.model_validate(tree, context=tree)
    except ValidationError as error:
        findings += [_finding(details, model, tree) for details in error.errors(include_url=False)]
    else:
        if not findings:
            return result
    raise input_error(_problems(document, at, findings))


def _not_finite(node: Any, location: Location) -> Iterator[_Finding]:
    if isinstance(node, float) and not math.isfinite(node):
        yield _Finding(location, node, expected="a finite number")
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for part, entry in entries:
        yield from _not_finite(entry, (*location, part))


def _finding(error: ErrorDetails, model: type[BaseModel], tree: Any) -> _Finding:
    """Describe an error that pydantic found in the tree."""
    kind, context = error["type"], error.get("ctx", {})
    place = place_of(model, tree, error["loc"], ends_in_key=kind in {"missing", "extra_forbidden"})
    location = place.location
    finding = _Finding(location, error["input"], unions=place.unions)
    # A discriminator may be a function, which has no place in the document.
    tag = _literals(context["discriminator"])[0] if context.get("discriminator", "").startswith("'") else None
    if kind == "missing":
        return finding._replace(message=_missing(place.around, location[-1]), is_missing=True)
    if kind == "extra_forbidden":
        names = key_names(place.around)
        word = str(location[-1])
        for one in _frozen(place.around):
            if advice := one.elsewhere.get(word):
                return finding._replace(message=f"unknown key: {advice}", at_key=True)
        hint = _deeper(word, names, place.around, _at(tree, location[:-1])) or suggest(word, names)
        message = f"unknown key{hint} (known here: {listing(names)})"
        meant = tuple((*location[:-1], name) for name in nearest(word, names))
        return finding._replace(message=message, at_key=True, meant=meant)
    if kind == "union_tag_not_found" and tag:
        return finding._replace(location=(*location, tag), message=_missing(place.types, tag))
    if kind == "union_tag_invalid" and tag:
        finding = finding._replace(location=(*location, tag), value=error["input"][tag])
        return _not_among(finding, _literals(context["expected_tags"]))
    if kind in {"literal_error", "enum"}:
        return _not_among(finding, _literals(context["expected"]))
    if kind in {"value_error", "assertion_error"}:
        return finding._replace(message=str(context["error"]) or "is not valid")
    if kind in _LIMITS and str(error["input"]).strip(" +-").lower() in _NO_NUMBERS:  # text in a file
        return finding._replace(expected="a finite number")
    if kind in _EXPECTED:
        numbers = {name: _plain(value) for name, value in context.items()}
        expected = _EXPECTED[kind].format(**numbers)
        if context.get("field_type") == "Dictionary":
            expected = f"{expected.replace('a list', 'a mapping')} key"
        forms = [one.written_as for one in _frozen(place.types)] if expected == "a mapping" else []
        hints = [f"; write {form.format(_unquoted(finding.value))}" for form in forms if form]
        value = finding.value
        if expected == "a whole number" and isinstance(value, float) and value.is_integer():
            hints.append(f"; write {int(value)}" if abs(value) < 2**63 else "")
        if expected == "a whole number" and isinstance(value, str):
            hints.append(written_out(value))
        return finding._replace(expected=expected, hint=next(iter(hints), ""))
    if kind in _BUILT_IN:
        return finding._replace(message=error["msg"][0].lower() + error["msg"][1:])
    return finding._replace(message=error["msg"])  # a message of our own validators


def _missing(types: tuple[Any, ...], key: str | int) -> str:
    if isinstance(key, int):
        return "required entry is missing"
    values = accepted_values(types, key)
    return f"required key is missing{f'; choose {either(_named(values))}' if values else ''}"


def _not_among(finding: _Finding, choices: Sequence[Any]) -> _Finding:
    texts = [choice for choice in choices if isinstance(choice, str)]
    hint = suggest(finding.value, texts) if isinstance(finding.value, str) else ""
    return finding._replace(expected=either(_named(choices)), hint=hint)


def _named(choices: Sequence[Any]) -> list[str]:
    return [quoted(choice) if isinstance(choice, str) else str(choice) for choice in choices]


def _literals(listed: str) -> list[Any]:
    """Parse pydantic's list ``'a', 'b' or 'c'``; anything else stays text."""
    try:
        return list(ast.literal_eval(f"[{listed.replace(' or ', ', ')}]"))
    except (SyntaxError, ValueError):
        return [listed]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _problems(document: Document, at: Location, found: list[_Finding]) -> Iterator[Problem]:
    """Return one problem for each entry that has faults."""
    by_location: dict[Location, list[_Finding]] = {}
    # Where text or a mapping is valid, a mapping in the file rules the text out.
    entered = {union for finding in found for union in finding.unions if finding.location != union}
    meant = {location for finding in found for location in finding.meant}
    for finding in found:
        if finding.is_missing and finding.location in meant:
            continue  # one message for one mistake
        if not (finding.location in finding.unions and finding.location in entered):
            by_location.setdefault(finding.location, []).append(finding)
    for location, findings in by_location.items():
        # A key that one member of a union does not know may be valid in another.
        telling = [finding for finding in findings if not finding.at_key] or findings
        place = (*at, *location)
        message = _sentence(telling, document.written(place))
        yield document.problem(place, message, at_key=telling[0].at_key)


def _sentence(findings: list[_Finding], written: str | None) -> str:
    """Describe the faults of one entry; several findings are the members of a union, none of which fits."""
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
    """Return a value exactly as written, shortened."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        shown = json.dumps(value[:_LONGEST], ensure_ascii=False)
        return shown if len(value) <= _LONGEST else f'{shown[:-1]}…"'
    return written or ("nothing" if value is None else str(value))


def _unquoted(value: Any) -> str:
    """Return a short scalar as a file has it; an ellipsis for anything else."""
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else "…"
    return text if len(text) <= _LONGEST else "…"


Types = tuple[Any, ...]


class Place(NamedTuple):
    """A place of a document, and the types that are valid there."""

    location: Location
    unions: tuple[Location, ...]
    """The unions around it; an error may concern only one member of each."""
    types: Types
    around: Types
    """The types of the mapping or list that contains it."""


def place_of(model: type[BaseModel], tree: Any, labelled: Location, *, ends_in_key: bool) -> Place:
    """Return the place in the tree of an error that pydantic found.

    Pydantic puts labels for the members of unions into a location; these are removed. The last part is a key
    and no label where the error is about a key: one that is missing in the tree, or one that is unknown and
    may be called like a label.
    """
    types, around = tuple(_members(model)), ()
    real: list[str | int] = []
    unions: list[Location] = []
    for index, part in enumerate(labelled):
        is_key = ends_in_key and index == len(labelled) - 1
        is_tag = (
            not is_key
            and isinstance(tree, dict)
            and len(types) > 1
            and unions[-1:] != [tuple(real)]
            and any(part == value for member in _models(types) for value, _ in _tags(member, tree))
        )
        keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
        has_part = part in keys
        if is_tag or not (has_part or is_key):
            unions.append(tuple(real))
            continue
        around = _fitting(types, tree)
        types, tree = _below(around, part, tree), tree[part] if has_part else None
        real.append(part)
    return Place(tuple(real), tuple(unions), _fitting(types, tree), around)


def _at(tree: Any, location: Location) -> Any:
    for part in location:
        tree = tree[part]
    return tree


def _deeper(word: str, names: Sequence[str], around: Types, tree: Any) -> str:
    """Return ``; did you mean "workload.batch_size"?`` for a key that sections below have, or ""."""
    below = ((one, _fitting(_below(around, one, tree), tree.get(one))) for one in names)
    found = [quoted(f"{one}.{word}") for one, types in below if word in key_names(types)]
    return f"; did you mean {either(found)}?" if found else ""


def key_names(types: Types) -> list[str]:
    """Return the keys that a mapping of these types may have, in the order of their definition."""
    names = (field.alias or name for model in _models(types) for name, field in model.model_fields.items())
    return list(dict.fromkeys(names))


def accepted_values(types: Types, key: str) -> list[Any]:
    """Return the valid values of a key of these types; empty if they are not a short list."""
    return list(dict.fromkeys(value for model in _models(types) for value in _few_values(model, key)))


def _members(annotation: Any, within: Any = None) -> Iterator[Any]:
    """Return the types that a value may have: members of unions, and the ``alternatives`` of a model in the
    mapping ``within`` which the value is."""
    origin: Any = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0], within)
    elif origin in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _members(member, within)
    elif (
        isinstance(annotation, type)
        and issubclass(annotation, BaseModel)
        and annotation.__pydantic_root_model__
    ):
        yield from _members(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and "alternatives" in vars(annotation):
        yield from annotation.alternatives(within if isinstance(within, dict) else {})  # type: ignore[attr-defined]
    elif annotation is not type(None):
        yield annotation


def _is_literal(annotation: Any) -> bool:
    origin: Any = get_origin(annotation)
    return origin is Literal


def _models(types: Types) -> list[type[BaseModel]]:
    return [one for one in types if isinstance(one, type) and issubclass(one, BaseModel)]


def _frozen(types: Types) -> list[type[Frozen]]:
    """Return the sections of files among the types, which declare hints for messages."""
    return [one for one in types if isinstance(one, type) and issubclass(one, Frozen)]


def _few_values(model: type[BaseModel], name: str) -> list[Any]:
    """Return the values of a field that accepts only a short list, such as a discriminator."""
    field = model.model_fields.get(name)
    members = tuple(_members(field.annotation)) if field else ()
    return [value for one in members for value in get_args(one)] if all(map(_is_literal, members)) else []


def _tags(model: type[BaseModel], node: dict[str, Any]) -> list[tuple[Any, bool]]:
    """Return the values of such fields in a node, each with whether the model accepts it."""
    few = ((node[name], _few_values(model, name)) for name in model.model_fields if name in node)
    return [(value, value in choices) for value, choices in few if choices]


def _fitting(types: Types, node: Any) -> Types:
    """Remove the models whose discriminator has another value, unless none remains."""
    if not isinstance(node, dict):
        return types
    return tuple(one for one in _models(types) if all(fits for _, fits in _tags(one, node))) or types


def _below(types: Types, part: str | int, tree: Any) -> Types:
    """Return the types of an entry of a value of these types, which is ``tree``."""
    annotations: list[Any] = []
    for model in _models(types):
        fields = model.model_fields.items()
        annotations += [field.annotation for name, field in fields if part in {name, field.alias}]
    for generic in types:
        arguments = get_args(generic)
        if arguments and not _is_literal(generic):
            is_mapping = len(arguments) == 2 and isinstance(part, str)
            annotations += [arguments[1]] if is_mapping else arguments
    return tuple(member for annotation in annotations for member in _members(annotation, tree))
