"""What a document may hold as a JSON schema, for editors that complete and check while one types.

Descriptions are the docstrings below the fields. They are read from the source when a schema is asked for:
pydantic would do it whenever a model is defined, and every start of the program would wait for it.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

__all__ = ["DIALECT", "json_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic's names of limits behind a validator of our own, where it does not translate them."""


def json_schema(kind: Any, *, title: str) -> dict[str, Any]:
    """The schema of a model, or of a union of models."""
    schema = TypeAdapter(kind).json_schema(schema_generator=_Described)
    named = {name: _name(name, part) for name, part in schema.get("$defs", {}).items()}
    found: dict[str, Any] = _tidied(schema, _unique(named))
    return {"$schema": DIALECT, "title": title, **found}


class _Described(GenerateJsonSchema):
    """Pydantic's schema with the docstrings of the fields, and defaults as a document would write them."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        told = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        texts, defaults = _texts(model), model.model_construct().model_dump(mode="json", warnings=False)
        for name, field in model.model_fields.items():
            key = field.alias or name
            one = told["properties"][key]
            if name in texts:
                one["description"] = texts[name]
            if isinstance(defaults.get(name), dict):
                one.pop("default", None)  # the keys of the section have their own
            elif not field.is_required():
                one["default"] = defaults[name]
        return told


@cache
def _texts(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings say about the fields of a model and of those it is derived from."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel and "[" not in one.__name__:
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
            (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
            found |= dict(_documented(body, _aliases(one.__module__)))
    return found


@cache
def _aliases(module: str) -> dict[str, str]:
    """The docstrings of the types that a module names."""
    return dict(_documented(ast.parse(inspect.getsource(sys.modules[module])).body, {}))


def _documented(body: Sequence[ast.stmt], aliases: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Names that are assigned, with what is said below them and about their type."""
    for number, node in enumerate(body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind)):
                of_type = aliases.get(kind, "")
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                of_type = ""
            case _:
                continue
        told = " ".join(filter(None, (_docstring(body[number + 1 : number + 2]), of_type)))
        if told:
            yield name, told


def _docstring(body: Sequence[ast.stmt]) -> str:
    match body:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return _plain(text)
    return ""


def _plain(text: str) -> str:
    """A docstring in one line, code as Markdown has it."""
    return " ".join(text.replace("``", "`").split())


def _name(name: str, part: dict[str, Any]) -> str:
    """What to call a model; one with a parameter after what its value is."""
    generic, annotated, _ = name.partition("_Annotated_")
    if not annotated:
        return name
    value = part["properties"]["value"]
    kind = value["type"] if _is_noise(value) else value["title"]
    return f"{generic.rpartition('__')[2]}{kind.title().replace(' ', '')}"


def _unique(names: dict[str, str]) -> dict[str, str]:
    """The names, numbered where several are equal."""
    seen: dict[str, int] = {}
    for name, chosen in names.items():
        seen[chosen] = seen.get(chosen, 0) + 1
        names[name] = chosen if seen[chosen] == 1 else f"{chosen}{seen[chosen]}"
    return names


def _tidied(node: Any, names: dict[str, str]) -> Any:
    """A schema without what says nothing to a person, its models under their names."""
    if isinstance(node, list):
        return [_tidied(one, names) for one in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "$defs":
            found[key] = {names[name]: _tidied(part, names) for name, part in value.items()}
        elif key == "$ref":
            found[key] = f"#/$defs/{names[value.removeprefix('#/$defs/')]}"
        elif key == "description":
            found[key] = _plain(value) if isinstance(value, str) else _tidied(value, names)
        elif key in _LIMITS:
            found |= {_LIMITS[key]: value} if node.get("type") in {"integer", "number"} else {}
        elif key == "title" and isinstance(value, str):
            found |= {} if _is_noise(node) else {key: value}
        elif key != "discriminator" and not (key == "default" and value is None):
            found[key] = _tidied(value, names)
    return found


def _is_noise(node: dict[str, Any]) -> bool:
    """Whether the title of a node is one that pydantic made of a name."""
    return "properties" in node or node["title"].istitle()
