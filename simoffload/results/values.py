"""Conversion of results to plain values for JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any


def plain(value: Any) -> Any:
    """Convert a value to numbers, texts, lists and dictionaries.

    An object with a method ``to_dict`` is converted by it; of any other dataclass or named tuple all fields
    are converted. Raises TypeError for other types.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, list | tuple | Set):
        return [plain(inner) for inner in value]
    raise TypeError(f"{type(value).__name__} has no plain value")


def by_name(one: object, names: str) -> dict[str, Any]:
    """Return attributes of an object by name, as plain values.

    ``names`` are separated by spaces, in the order of the output; ``key=attribute`` renames an attribute, as
    in ``bytes=size``.
    """
    pairs = (name.partition("=") for name in names.split())
    return {key: plain(getattr(one, attribute or key)) for key, _, attribute in pairs}


def interval_columns(metric: str) -> tuple[str, str, str]:
    """Return the names of the columns of a metric and of both ends of its interval."""
    return metric, f"{metric}_p10", f"{metric}_p90"


def with_intervals(
    metrics: Mapping[str, float | None], intervals: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    """Return metrics by the names of their columns, each followed by both ends of its interval, if it has
    one."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        found |= dict(zip(interval_columns(name), (value, *intervals.get(name, ())), strict=False))
    return found
