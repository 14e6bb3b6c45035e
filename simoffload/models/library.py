"""The released sizes of the known families, by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from simoffload.documents import Frozen, listing, parse_yaml, quoted, suggest
from simoffload.errors import shortened

__all__ = ["Size", "find_size", "is_model", "list_models"]


class Size(Frozen):
    """One row of ``sizes.yaml``."""

    family: str
    source: str
    """Where the configuration is published."""
    aliases: tuple[str, ...] = ()
    """Other names of the same shape, without their organisation."""
    config: dict[str, Any]
    """Hugging Face's keys; checked by the family."""


@cache
def _sizes() -> dict[str, Size]:
    text = files("simoffload.models").joinpath("sizes.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Size]).validate_python(parse_yaml(text, name="sizes.yaml").data)


@cache
def _canonical() -> dict[str, str]:
    """Every name and alias in small letters, and the name of its row."""
    return {alias.lower(): known for known, size in _sizes().items() for alias in (known, *size.aliases)}


def list_models() -> tuple[str, ...]:
    """Names that a scenario may use, in the order of ``sizes.yaml``."""
    return tuple(_sizes())


def is_model(name: str) -> bool:
    """Whether it is a name or an alias, without an organisation before it."""
    return name.lower() in _canonical()


def find_size(name: str) -> tuple[str, Size]:
    """Look a size up by name or alias, without regard to case or an organisation before the last "/".

    Returns the canonical name and the size. Raises ValueError, with the nearest names, for an unknown one.
    """
    sizes, canonical = _sizes(), _canonical()
    wanted = name.strip().rsplit("/", maxsplit=1)[-1].lower()
    if wanted in canonical:
        return canonical[wanted], sizes[canonical[wanted]]
    names = [alias for known, size in sizes.items() for alias in (known, *size.aliases)]
    hint = suggest(wanted, names) or f"; known: {listing(list(sizes))} (simoffload models list)"
    if wanted.endswith(".json"):
        hint = f"; for a file write {{config: {shortened(name)}}}"
    raise ValueError(f"unknown model {quoted(name)}{hint}")
