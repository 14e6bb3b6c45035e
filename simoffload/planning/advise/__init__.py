"""Advice: single changes ranked by their gain, and a search through a catalogue."""

from __future__ import annotations

from simoffload.planning.advise.evaluate import (
    WORTH,
    Advice,
    Objective,
    Tried,
    advise,
    objective_of,
)
from simoffload.planning.advise.purchases import (
    Search,
    SimulatedPurchase,
    search_catalogue,
)

__all__ = [
    "WORTH",
    "Advice",
    "Objective",
    "Search",
    "SimulatedPurchase",
    "Tried",
    "advise",
    "objective_of",
    "search_catalogue",
]
