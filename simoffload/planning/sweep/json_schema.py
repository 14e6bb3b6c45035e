"""The section ``sweep`` of a scenario as a JSON schema; ``axes``, ``ranges`` and ``constraints`` read it."""

from __future__ import annotations

from typing import Any

__all__ = ["SWEEP_SCHEMA"]

_END = {"type": ["number", "string"]}
_RANGE: dict[str, Any] = {
    "type": "object",
    "description": "Values from min to max, numbers or quantities such as 10 GB/s; give either step or n.",
    "properties": {
        "min": {**_END, "description": "The first value."},
        "max": {**_END, "description": "No value is above it."},
        "step": {**_END, "description": "From one value to the next."},
        "n": {"type": "integer", "minimum": 1, "description": "How many values, both ends included."},
        "scale": {"enum": ["linear", "log"], "default": "linear", "description": "Where values lie with n."},
    },
    "required": ["min", "max"],
    "oneOf": [{"required": ["step"]}, {"required": ["n"]}],
    "additionalProperties": False,
}
_AXIS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "choices": {"type": "array", "minItems": 1, "description": "The values, one after the other."},
        "range": _RANGE,
        "name": {
            "type": "string",
            "pattern": r"^[^\W\d]\w*$",
            "description": "Name of the column and in constraints; by default the path.",
        },
    },
    "oneOf": [{"required": ["choices"]}, {"required": ["range"]}],
    "additionalProperties": False,
}
SWEEP_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What `simoffload sweep` varies; other commands leave it out.",
    "properties": {
        "axes": {
            "type": "object",
            "description": "Paths in the scenario, such as workload.batch_size, with the values they take.",
            "additionalProperties": _AXIS,
        },
        "constraints": {
            "type": "array",
            "items": {"type": "string"},
            "description": 'Points to keep, such as "workload.batch_size * strategy.ranks <= 256".',
        },
    },
    "additionalProperties": False,
}
