"""What an object shows of itself in Python: its fields in a few lines, however much it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date
from pathlib import PurePath
from textwrap import wrap
from typing import Any

from simoffload.errors import shortened

MOST_LINES, WIDTH = 10, 100
"""Largest number of lines, and of characters of a line."""
_EMPTY: tuple[Any, ...] = (None, "", (), [], {})
_LONGEST, _FEW = 60, 3
"""Length of a value [characters], and number of values, that are shown."""


def brief(one: Any) -> str:
    """Return ``Name(field=value, …)`` for a dataclass or named tuple, of long values what and how many they
    are; a class takes it as its ``__repr__``."""
    names = [each.name for each in fields(one) if each.repr] if is_dataclass(one) else one._fields
    return named_values(one, {name: getattr(one, name) for name in names})


def named_values(one: object, values: Mapping[str, Any]) -> str:
    """Return ``Name(name=value, …)`` for an object with these values, without those that are missing or
    empty."""
    given = [f"{name}={_shown(value)}" for name, value in values.items() if value not in _EMPTY]
    return in_lines(f"{type(one).__name__}({', '.join(given)})")


class BriefTuple(tuple[Any, ...]):
    """A BriefTuple is a tuple that shows how many it has, and of many the first ones."""

    __slots__ = ()

    def __repr__(self) -> str:
        return in_lines(f"{len(self)} in all: {', '.join(map(str, self))}" if self else "none")


def in_lines(*paragraphs: str, most: int = MOST_LINES) -> str:
    """Return paragraphs as lines that are no longer than ``WIDTH``; the last of ``most`` lines ends in "…" if
    there are more."""
    lines = [
        line
        for text in paragraphs
        for line in wrap(text, WIDTH, subsequent_indent="  ", break_long_words=True, break_on_hyphens=False)
    ]
    return "\n".join(
        lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 2]} …"]
    )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, int):
        return repr(value)
    if isinstance(value, str):
        return repr(shortened(value))
    if isinstance(value, Mapping | Sequence | Set) and not hasattr(value, "_fields"):
        few = len(value) <= _FEW and all(isinstance(one, str | int | float | None) for one in value)
        text = repr(value) if few and not isinstance(value, Mapping) else ""
        return text if 0 < len(text) <= _LONGEST else f"<{len(value)} in all>"
    name = getattr(value, "id", None) or getattr(value, "name", None)
    called = f" {shortened(name)}" if isinstance(name, str) else ""
    return str(value) if isinstance(value, date | PurePath) else f"<{type(value).__name__}{called}>"
