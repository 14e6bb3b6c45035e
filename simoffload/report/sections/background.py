"""What an answer was computed from, and how to compute it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simoffload.exchange.scenario_file import pasteable, scenario_text
from simoffload.report.phrases import LIMITS, origins
from simoffload.report.sections.structure import Listing, Section, Table

__all__ = ["inputs", "limits", "scenario", "settings", "versions"]

_MOST_AT_ONCE = 12
"""Inputs that a page lists without folding them up."""


def inputs(numbers: Sequence[tuple[str, str, str, str, str, str]], counts: Mapping[str, int]) -> Section:
    """(profile, key, value, origin, source, date) of every number used, and how many of each origin."""
    head = ("profile", "key", "value", "origin", "source", "date")
    folded = f"All {len(numbers)} numbers" if len(numbers) > _MOST_AT_ONCE else ""
    table = Table("", head, tuple(numbers), (), keys=2, folded=folded)
    told = f"numbers from profiles: {origins(counts) or 'none'}"
    return Section("Inputs and their origin", "", (told,), (table,) if numbers else ())


def scenario(tree: Mapping[str, Any], command: str = "") -> Section:
    """The scenario as a file, and the command that was given."""
    listings = [Listing("Command", command)] if command else []
    return Section("Scenario", "", listings=(*listings, Listing("", scenario_text(tree))))


def settings(tree: Mapping[str, Any]) -> tuple[Section, ...]:
    """DeepSpeed's configuration as it was simulated, to be copied; nothing where there is none."""
    strategy = tree.get("strategy")
    config = strategy.get("ds_config") if isinstance(strategy, Mapping) else None
    if not config:
        return ()
    return (Section("Settings", "", listings=(Listing("ds_config.json", pasteable(config)),)),)


def versions(
    found: Iterable[tuple[str, str]], profiles: Iterable[tuple[str, str, str]], command: str = ""
) -> Section:
    """Programs and the files of profiles that were used."""
    table = Table("", ("kind", "profile", "sha256"), tuple(profiles), (), keys=2)
    told = ", ".join(f"{name} {version}" for name, version in found)
    listings = (Listing("Command", command),) if command else ()
    return Section("Versions and profiles", "", tables=(table,), notes=(told,), listings=listings)


def limits() -> Section:
    """What must not be concluded."""
    return Section("Limits", "", (LIMITS,))
