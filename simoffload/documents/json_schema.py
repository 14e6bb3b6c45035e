"""JSON schemas of documents, for editors that complete keys and check values during typing.

Descriptions are the docstrings below the fields. They are read from the source when a schema is made:
pydantic would read them whenever a model is defined, which would delay every start of the program.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic's names of limits, which it does not translate behind custom validators."""


def json_schema(kind: Any, *, title: str) -> dict[str, Any]:
    """Return the schema of a model, or of a union of models."""
    schema = TypeAdapter(kind).json_schema(schema_generator=_Described)
    if reference := schema.pop("$ref", ""):  # to a model that refers to itself
        schema |= schema["$defs"][reference.rpartition("/")[2]]
    return {"$schema": DIALECT, "title": title, **_named(schema)}


class _Described(GenerateJsonSchema):
    """Pydantic's schema with docstrings as descriptions and defaults as a document would write them."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """Remove the entries that pydantic adds for programs, such as discriminators."""
        part = super().generate_inner(schema)
        part.pop("discriminator", None)
        if part.get("default", "") is None:
            del part["default"]
        for limit, keyword in _LIMITS.items():
            if limit in part:
                value = part.pop(limit)
                part |= {keyword: value} if part.get("type") in {"integer", "number"} else {}
        return part

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """Return False, because a title would only repeat the key."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        part = super().model_schema(schema)
        part.pop("title")
        if "description" in part:
            part["description"] = _plain(part["description"])
        model: type[BaseModel] = schema["cls"]
        texts, defaults = _texts(model), model.model_construct().model_dump(mode="json", warnings=False)
        for name, field in model.model_fields.items():
            one = part["properties"][field.alias or name]
            if name in texts:
                one["description"] = texts[name]
            one.pop("default", None)
            # The keys of a section have their own defaults.
            if (
                not field.is_required()
                and defaults[name] is not None
                and not isinstance(defaults[name], dict)
            ):
                one["default"] = defaults[name]
        return part


@cache
def _texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the fields of a model and of its base classes, by field."""
    texts: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel and "[" not in one.__name__:
            texts |= _texts_of(one.__module__)[one.__name__]
    return texts


@cache
def _texts_of(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of all classes of a module, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    aliases = dict(_documented(tree.body, {}))
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {node.name: dict(_documented(node.body, aliases)) for node in classes}


def _documented(body: Sequence[ast.stmt], aliases: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Return each assigned name with its own docstring and that of its type alias."""
    for number, node in enumerate(body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind)):
                of_type = aliases.get(kind, "")
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                of_type = ""
            case _:
                continue
        text = " ".join(filter(None, (_docstring(body[number + 1 : number + 2]), of_type)))
        if text:
            yield name, text


def _docstring(body: Sequence[ast.stmt]) -> str:
    match body:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return _plain(text)
    return ""


def _plain(text: str) -> str:
    """Return a docstring on one line, with code marked as in Markdown."""
    return " ".join(text.replace("``", "`").split())


def _named(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Rename the generic models of a schema after their values, numbered from the second one on."""
    text, counts = json.dumps(schema), Counter[str]()
    for name, part in schema.get("$defs", {}).items():
        generic, annotated, _ = name.partition("_Annotated_")
        if annotated:
            value = part["properties"]["value"]
            kind = str(value.get("title", value["type"])).title().replace(" ", "")
            new = f"{generic.rpartition('__')[2]}{kind}"
            counts[new] += 1
            new += str(counts[new]) if counts[new] > 1 else ""
            text = text.replace(f'/{name}"', f'/{new}"').replace(f'"{name}":', f'"{new}":')
    named: JsonSchemaValue = json.loads(text)
    return named
