"""The smallest changes with which what does not fit would fit."""

from __future__ import annotations

import shlex

from simoffload.report.document import Listing, ReportSection
from simoffload.report.formatting import counted
from simoffload.results.capacity import Change, Remedies

__all__ = ["remedies_section"]


def remedies_section(remedies: Remedies) -> ReportSection:
    """Each change, what is then free on the fullest tier, and how to make it; or what was tried."""
    if remedies.changes:
        listings = tuple(
            Listing(f"{change.description}: {_free(change)}", _options(change)) for change in remedies.changes
        )
        return ReportSection("Changes", ("each makes it fit",), listings=listings)
    text = "nothing that was tried makes it fit, alone, in pairs or in threes"
    tried = f"; tried: {'; '.join(remedies.tried)}" if remedies.tried else ""
    return ReportSection("Changes", (text + tried,))


def _free(change: Change) -> str:
    use = change.tightest
    return f"{counted(use.headroom, use)} of {use.tier} left {use.scope}"


def _options(change: Change) -> str:
    return " ".join(f"--set {shlex.quote(one)}" for one in change.assignments)
