"""What a pydantic model would have accepted at some place of a document."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from simoffload.documents.document import Location

__all__ = ["Place", "accepted_values", "key_names", "place_of"]

Types = tuple[Any, ...]


class Place(NamedTuple):
    """A place of a document, and what may be there."""

    location: Location
    unions: tuple[Location, ...]
    """The unions around it, each of which an error may be about one member of."""
    types: Types
    around: Types
    """The types of what holds it."""


def place_of(model: type[BaseModel], tree: Any, labelled: Location, *, missing: bool) -> Place:
    """The place in the tree of an error that pydantic found.

    Pydantic puts labels for the members of unions into a location, which are taken out. The last key of a
    ``missing`` entry is no label, although the tree does not have it.
    """
    types, around = tuple(_members(model)), ()
    real: list[str | int] = []
    unions: list[Location] = []
    for index, part in enumerate(labelled):
        is_tag = (
            isinstance(tree, dict)
            and len(types) > 1
            and unions[-1:] != [tuple(real)]
            and any(part == value for member in _models(types) for value, _ in _tags(member, tree))
        )
        keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
        has_part = part in keys
        if is_tag or not (has_part or (missing and index == len(labelled) - 1)):
            unions.append(tuple(real))
            continue
        around = _fitting(types, tree)
        types, tree = _below(around, part), tree[part] if has_part else None
        real.append(part)
    return Place(tuple(real), tuple(unions), _fitting(types, tree), around)


def key_names(types: Types) -> list[str]:
    """The keys that a mapping of these types may have, in the order of their definition."""
    names = (field.alias or name for model in _models(types) for name, field in model.model_fields.items())
    return list(dict.fromkeys(names))


def accepted_values(types: Types, key: str) -> list[Any]:
    """The few values that are valid at a key of these types; empty if there are more than a few."""
    return list(dict.fromkeys(value for model in _models(types) for value in _few_values(model, key)))


def _members(annotation: Any) -> Iterator[Any]:
    """The types that a value may have: the members of unions, and the ``alternatives`` of a model."""
    origin: Any = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _members(member)
    elif isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _members(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and "alternatives" in vars(annotation):
        yield from annotation.alternatives()  # type: ignore[attr-defined]
    elif annotation is not type(None):
        yield annotation


def _is_literal(annotation: Any) -> bool:
    origin: Any = get_origin(annotation)
    return origin is Literal


def _models(types: Types) -> list[type[BaseModel]]:
    return [one for one in types if isinstance(one, type) and issubclass(one, BaseModel)]


def _few_values(model: type[BaseModel], name: str) -> list[Any]:
    """The values of a field that accepts only a few, such as a discriminator; else nothing."""
    field = model.model_fields.get(name)
    members = tuple(_members(field.annotation)) if field else ()
    return [value for one in members for value in get_args(one)] if all(map(_is_literal, members)) else []


def _tags(model: type[BaseModel], node: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The values in a node of fields that accept only a few, and whether the model accepts them."""
    few = ((node[name], _few_values(model, name)) for name in model.model_fields if name in node)
    return [(value, value in choices) for value, choices in few if choices]


def _fitting(types: Types, node: Any) -> Types:
    """Leave out the models whose discriminator says something else, unless that leaves none."""
    if not isinstance(node, dict):
        return types
    return tuple(one for one in _models(types) if all(fits for _, fits in _tags(one, node))) or types


def _below(types: Types, part: str | int) -> Types:
    """The types of an entry of values of these types."""
    found: list[Any] = []
    for model in _models(types):
        fields = model.model_fields.items()
        found += [field.annotation for name, field in fields if part in {name, field.alias}]
    for generic in types:
        arguments = get_args(generic)
        if arguments and not _is_literal(generic):
            is_mapping = len(arguments) == 2 and isinstance(part, str)
            found += [arguments[1]] if is_mapping else arguments
    return tuple(member for annotation in found for member in _members(annotation))
