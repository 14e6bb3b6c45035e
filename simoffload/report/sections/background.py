"""What an answer was computed from, and how to compute it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simoffload.exchange.scenario_file import pasteable, scenario_text
from simoffload.report.document import Listing, ReportSection, ReportTable
from simoffload.report.formatting import LIMITS, origins, plural
from simoffload.results.result import ResultProvenance
from simoffload.strategies.ds_config import LATEST

__all__ = ["inputs", "limits", "scenario", "settings", "versions"]

_MOST_AT_ONCE = 12
"""Inputs that a page lists without folding them up."""
_MOUNTED = (
    "paths below /mnt stand for the folders where tiers are mounted; simoffload reads a tier from the name "
    "of a folder in the path"
)


def inputs(
    numbers: Sequence[tuple[str, str, str, str, str, str]], counts: Mapping[str, int]
) -> ReportSection:
    """(profile, key, value, origin, source, date) of every number used, and how many of each origin."""
    head = ("profile", "key", "value", "origin", "source", "date")
    folded = f"All {len(numbers)} numbers" if len(numbers) > _MOST_AT_ONCE else ""
    table = ReportTable("", head, tuple(numbers), (), keys=2, folded=folded, page_only=True)
    texts = f"numbers from profiles: {origins(counts) or 'none'}"
    return ReportSection("Inputs and their origin", (texts,), (table,) if numbers else ())


def scenario(tree: Mapping[str, Any], command: str = "") -> ReportSection:
    """The scenario as a file, and the command that was given."""
    listings = [Listing("Command", command)] if command else []
    return ReportSection("Scenario", listings=(*listings, Listing("", scenario_text(tree))), page_only=True)


def settings(origins: ResultProvenance, *texts: str, title: str = "Settings") -> tuple[ReportSection, ...]:
    """Configuration files as they were simulated, to be copied; nothing where there are none."""
    listings = tuple(Listing(name, pasteable(content)) for name, content in origins.exports.items())
    if not listings:
        return ()
    notes = (_MOUNTED,) if any('"nvme_path": "/mnt/' in listing.text for listing in listings) else ()
    sentences = (*texts, _settings_outside(origins.scenario))
    return (ReportSection(title, sentences, notes=notes, listings=listings, page_only=True),)


def _settings_outside(tree: Mapping[str, Any]) -> str:
    """What a configuration file does not say of a strategy."""
    strategy = tree["strategy"]
    version, threads = strategy.get("deepspeed_version", LATEST), strategy.get("cpu_threads")
    parts = [f"DeepSpeed {version}", plural(strategy.get("ranks", 1), "rank")]
    return f"for {', '.join([*parts, *([f'OMP_NUM_THREADS={threads}'] if threads else [])])}"


def versions(
    found: Iterable[tuple[str, str]], profiles: Iterable[tuple[str, str, str]], command: str = ""
) -> ReportSection:
    """Programs and the files of profiles that were used."""
    table = ReportTable("", ("kind", "profile", "sha256"), tuple(profiles), (), keys=2)
    texts = ", ".join(f"{name} {version}" for name, version in found)
    listings = (Listing("Command", command),) if command else ()
    return ReportSection(
        "Versions and profiles", tables=(table,), notes=(texts,), listings=listings, page_only=True
    )


def limits() -> ReportSection:
    """What must not be concluded."""
    return ReportSection("Limits", (LIMITS,), page_only=True)
