"""What a pydantic model would have accepted at some place of a document."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from simoffload.documents.tree import Location

__all__ = ["choices_at", "field_names_at", "split_labels"]

Types = tuple[Any, ...]


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
    return [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]


def _choices(model: type[BaseModel], name: str) -> list[Any]:
    """The values of a field that accepts only a few, such as a discriminator; else nothing."""
    field = model.model_fields.get(name)
    members = tuple(_members(field.annotation)) if field else ()
    if not all(_is_literal(member) for member in members):
        return []
    return [choice for member in members for choice in get_args(member)]


def _tags(model: type[BaseModel], node: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The values in a node of fields that accept only a few, and whether the model accepts them."""
    few = ((node[name], _choices(model, name)) for name in model.model_fields if name in node)
    return [(value, value in choices) for value, choices in few if choices]


def _fitting(types: Types, node: Any) -> Types:
    """Leave out the models whose discriminator says something else, unless that leaves none."""
    if not isinstance(node, dict):
        return types
    models = _models(types)
    fitting = tuple(model for model in models if all(accepted for _, accepted in _tags(model, node)))
    return fitting or types


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


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, dict):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and 0 <= part < len(node)


def _types_at(model: type[BaseModel], tree: Any, location: Location) -> Types:
    """The types that may stand at a location of the tree."""
    types: Types = tuple(_members(model))
    for part in location:
        types = _below(_fitting(types, tree), part)
        tree = tree[part] if _has(tree, part) else None
    return _fitting(types, tree)


def field_names_at(model: type[BaseModel], tree: Any, location: Location) -> list[str]:
    """The keys that a mapping at the location may have, in the order of their definition."""
    models = _models(_types_at(model, tree, location))
    names = (field.alias or name for member in models for name, field in member.model_fields.items())
    return list(dict.fromkeys(names))


def choices_at(model: type[BaseModel], tree: Any, location: Location) -> list[Any]:
    """The few values that are valid at the location; empty if there are more than a few."""
    *above, name = location
    models = _models(_types_at(model, tree, tuple(above)))
    return list(dict.fromkeys(choice for member in models for choice in _choices(member, str(name))))


def split_labels(
    model: type[BaseModel], tree: Any, location: Location, *, missing: bool
) -> tuple[Location, tuple[Location, ...]]:
    """Take the labels that pydantic puts in for the members of unions out of a location.

    Gives the location in the tree and those of the unions. The last key of a ``missing`` entry is no label,
    although the tree does not have it.
    """
    types: Types = tuple(_members(model))
    real: list[str | int] = []
    unions: list[Location] = []
    for index, part in enumerate(location):
        is_tag = (
            isinstance(tree, dict)
            and len(types) > 1
            and unions[-1:] != [tuple(real)]
            and any(part == value for member in _models(types) for value, _ in _tags(member, tree))
        )
        absent = not _has(tree, part) and not (missing and index == len(location) - 1)
        if is_tag or absent:
            unions.append(tuple(real))
            continue
        types = _below(_fitting(types, tree), part)
        tree = tree[part] if _has(tree, part) else None
        real.append(part)
    return tuple(real), tuple(unions)
