"""Advice: single changes ranked by their gain, and a search through a catalogue."""

from __future__ import annotations

from simoffload.planning.advise.evaluate import WORTH, Advice, Tried, advise
from simoffload.planning.advise.purchases import (
    Method,
    Objective,
    Search,
    ServiceLevel,
    SimulatedPurchase,
    parse_service,
    search_catalogue,
)

__all__ = [
    "WORTH",
    "Advice",
    "Change",
    "Method",
    "Objective",
    "Search",
    "ServiceLevel",
    "SimulatedPurchase",
    "Tried",
    "advise",
    "parse_service",
    "search_catalogue",
]
