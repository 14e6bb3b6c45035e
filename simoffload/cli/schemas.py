"""``simoffload schema``: JSON schemas of files, for editors."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any

import simoffload.extending as extending
from simoffload.cli.console import Console, ExitCode

SCHEMAS = {
    "scenario": "a scenario",
    "profile": "a hardware profile of any kind",
    "platform": "a platform",
    "ds_config": "DeepSpeed's ds_config.json, as far as it is read",
}
"""Descriptions of the kinds of files that have a schema."""


def kinds() -> dict[str, str]:
    """Return what has a schema, with what it is: files, and the sections that extensions own."""
    return SCHEMAS | {key: f"the section {key} of a scenario" for key in extending.sections()}


def print_schema(arguments: Namespace, console: Console) -> ExitCode:
    """Print the schema of one kind of file."""
    schema = schema_of(arguments.kind)
    console.answer(json.dumps(schema, indent=2, ensure_ascii=False), schema)
    return ExitCode.OK


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of one of the ``kinds``."""
    from simoffload.documents.json_schema import json_schema

    title = f"simoffload: {kinds()[kind]}"
    if kind == "scenario":
        return _scenario(title)
    if section := extending.sections().get(kind):
        return json_schema(extending.at(section.model), title=title)
    if kind == "ds_config":
        from simoffload.strategies.ds_config import DeepSpeedConfig

        return json_schema(DeepSpeedConfig, title=title)
    from pydantic import Field

    from simoffload.hardware import KINDS

    profiles: Any = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]
    return _with_short_form(json_schema(KINDS["platform"] if kind == "platform" else profiles, title=title))


def _with_short_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that also takes files that write only what differs from another profile; the values
    of their other keys are not checked."""
    from simoffload.documents.json_schema import json_schema
    from simoffload.hardware import ShortForm

    short = json_schema(ShortForm, title="")
    keys = short["properties"]
    for key in ("gpus", "network"):
        keys[key] = {"anyOf": [keys[key], {"type": "array"}], "description": keys[key].pop("description")}
    form = {
        "description": short["description"],
        "type": "object",
        "properties": keys,
        "required": ["id"],
        "anyOf": [{"required": ["base"]}, {"required": ["gpu"]}],
    }
    head = {key: schema.pop(key) for key in ("$schema", "title")}
    known = {**schema.pop("$defs"), **short.get("$defs", {}), "ShortForm": form}
    complete = schema.pop("oneOf", None) or [schema]
    return {**head, "anyOf": [*complete, {"$ref": "#/$defs/ShortForm"}], "$defs": known}


def _scenario(title: str) -> dict[str, Any]:
    """Return the schema of the scenario model with what is resolved before: names and paths instead of their
    content, kinds that are left out, sections of extensions."""
    from simoffload.documents.json_schema import json_schema
    from simoffload.models import FAMILIES
    from simoffload.scenario import Scenario
    from simoffload.strategies import strategies

    schema = json_schema(Scenario, title=title)
    known, sections = schema["$defs"], schema["properties"]
    sections["model"] = {"anyOf": [{"type": "string"}, sections["model"]]}
    for name, section in extending.sections().items():
        own = json_schema(extending.at(section.model), title="")
        known |= own["$defs"]
        parts = ("type", "description", "properties", "additionalProperties")
        sections[name] = {part: own[part] for part in parts}
    sections["workload"]["anyOf"] = sections["workload"].pop("oneOf")  # without a kind several may fit
    for one in strategies():
        for key in one.traits.files:
            keys = known[one.__name__]["properties"]
            content = {"$ref": keys[key].pop("$ref")}
            keys[key] |= {"anyOf": [{"type": "string"}, content]}
    keys = known["ModelSpec"]["properties"]
    keys["draft_model"]["anyOf"].insert(0, {"type": "string"})
    keys["family"]["anyOf"][0]["enum"] = list(FAMILIES)
    keys |= _sizes()
    return schema


def _inlined(node: Any, known: Mapping[str, Any]) -> Any:
    """Return a part of a schema with what it refers to in its place."""
    if isinstance(node, list):
        return [_inlined(one, known) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**known[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    return {key: _inlined(one, known) for key, one in node.items()}


def _sizes() -> dict[str, Any]:
    """Return the Hugging Face keys of all families."""
    from simoffload.documents.json_schema import json_schema
    from simoffload.models import FAMILIES

    own = {name: json_schema(family, title=name) for name, family in FAMILIES.items()}
    sizes = {name: _inlined(one["properties"], one.get("$defs", {})) for name, one in own.items()}
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for keys in sizes.values() for key in keys):
        having = [name for name in sizes if key in sizes[name]]
        limits = {name: value for name, value in sizes[having[0]][key].items() if name != "default"}
        families = "every family" if len(having) == len(sizes) else ", ".join(having)
        found[key] = {**limits, "description": f"Key of a config.json of {families}."}
    return found
