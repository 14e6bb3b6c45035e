"""Sections about the inputs of a result, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simoffload.documents import ds_config_text, yaml_text
from simoffload.report.document import Listing, ReportSection, ReportTable
from simoffload.report.formatting import origins
from simoffload.results import ResultProvenance
from simoffload.units import plural

_LIMITS = (
    "Profiles contain data-sheet values, published values and timings of single operations; nothing here has "
    "been calibrated against runs on the machine itself. Ratios between targets are more reliable than "
    "absolute times."
)
_MOST_AT_ONCE = 12
"""Number of inputs up to which a page lists them unfolded."""
_MOUNTED = (
    "paths below /mnt are placeholders for the mount points of the tiers; simoffload takes the tier from the "
    "name of a folder in the path"
)


def inputs(
    numbers: Sequence[tuple[str, str, str, str, str, str, str]], counts: Mapping[str, int]
) -> ReportSection:
    """List (profile, key, value, origin, source, date, spread) of all inputs, and count their origins."""
    head = ("profile", "key", "value", "origin", "source", "date", "spread")
    folded = f"All {len(numbers)} inputs" if len(numbers) > _MOST_AT_ONCE else ""
    table = ReportTable("", head, tuple(numbers), (), keys=2, folded=folded, page_only=True)
    text = f"numbers from profiles: {origins(counts) or 'none'}"
    return ReportSection("Inputs and their origin", (text,), (table,) if numbers else ())


def scenario(tree: Mapping[str, Any], command: str = "") -> ReportSection:
    """Show the scenario as a file, and the command that was given."""
    listings = [Listing("Command", command)] if command else []
    return ReportSection("Scenario", listings=(*listings, Listing("", yaml_text(tree))), page_only=True)


COMMAND = "What to type"


def settings(origins: ResultProvenance, *texts: str, title: str = "Settings") -> tuple[ReportSection, ...]:
    """Return the configuration files that were simulated, to be copied; nothing if there are none."""
    listings = tuple(Listing(name, ds_config_text(content)) for name, content in origins.exports.items())
    if not listings:
        return ()
    notes = (_MOUNTED,) if any('"nvme_path": "/mnt/' in listing.text for listing in listings) else ()
    strategy = origins.scenario["strategy"]
    parts = [origins.program] if origins.program else []
    if not all(isinstance(content, str) for content in origins.exports.values()):  # commands state it
        parts.append(plural(strategy.get("ranks", 1), "rank"))
    if threads := strategy.get("cpu_threads"):
        parts.append(f"OMP_NUM_THREADS={threads}")
    sentences = (*texts, f"for {', '.join(parts)}")
    return (ReportSection(title, sentences, notes=notes, listings=listings, page_only=True),)


def commands(origins: ResultProvenance, *texts: str, title: str = COMMAND) -> tuple[ReportSection, ...]:
    """Return what to type or to copy, also for the terminal; nothing if there is nothing."""
    return tuple(one._replace(page_only=False) for one in settings(origins, *texts, title=title))


def versions(
    found: Iterable[tuple[str, str]], profiles: Iterable[tuple[str, str, str]], command: str = ""
) -> ReportSection:
    """List the programs and the files of profiles that were used."""
    head = ("kind", "profile", "sha256")
    table = ReportTable("", head, tuple(profiles), (), keys=2, folded="Files of profiles")
    text = ", ".join(f"{name} {version}" for name, version in found)
    listings = (Listing("Command", command),) if command else ()
    return ReportSection(
        "Versions and profiles", tables=(table,), notes=(text,), listings=listings, page_only=True
    )


def limits() -> ReportSection:
    """Return a section about what the prediction does not cover."""
    return ReportSection("Limits", (_LIMITS,), page_only=True)
