"""What to change: single changes ranked by what they gain, and a search through a catalogue."""

from __future__ import annotations

from simoffload.planning.advise.evaluate import WORTH, Advice, Impossible, Tried, advise
from simoffload.planning.advise.options import Option
from simoffload.planning.advise.purchases import (
    Method,
    Objective,
    Search,
    SimulatedPurchase,
    search_catalogue,
)
from simoffload.planning.advise.service import ServiceLevel, parse_service

__all__ = [
    "WORTH",
    "Advice",
    "Impossible",
    "Method",
    "Objective",
    "Option",
    "Search",
    "ServiceLevel",
    "SimulatedPurchase",
    "Tried",
    "advise",
    "parse_service",
    "search_catalogue",
]
