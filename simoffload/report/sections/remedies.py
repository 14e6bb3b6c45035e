"""The smallest changes with which what does not fit would fit."""

from __future__ import annotations

import shlex

from simoffload.report.document import Listing, Section
from simoffload.report.formatting import counted
from simoffload.results.capacity import Change, Remedies

__all__ = ["what_makes_it_fit"]


def what_makes_it_fit(remedies: Remedies) -> Section:
    """Each change, what is then free on the fullest tier, and how to make it; or what was tried."""
    if remedies.changes:
        listings = tuple(
            Listing(f"{change.words}: {_free(change)}", _options(change)) for change in remedies.changes
        )
        return Section("Changes", ("each makes it fit",), listings=listings)
    told = "nothing that was tried makes it fit, alone, in pairs or in threes"
    tried = f"; tried: {'; '.join(remedies.tried)}" if remedies.tried else ""
    return Section("Changes", (told + tried,))


def _free(change: Change) -> str:
    use = change.tightest
    return f"{counted(use.headroom, use)} of {use.tier} left {use.scope}"


def _options(change: Change) -> str:
    return " ".join(f"--set {shlex.quote(one)}" for one in change.assignments)
