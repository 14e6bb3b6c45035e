"""Costs of an answer: hardware, energy, tokens."""

from __future__ import annotations

from simoffload.planning.costs.bill import Bill, Draw, Energy, Item, bill, energy, present
from simoffload.planning.costs.economics import (
    COST_METRICS,
    BreakEven,
    Costed,
    CostVerdict,
    Economics,
    break_even_points,
    economics,
    verdicts,
)
from simoffload.planning.costs.price_list import CostList, load_costs

__all__ = [
    "COST_METRICS",
    "Bill",
    "BreakEven",
    "CostList",
    "CostVerdict",
    "Costed",
    "Draw",
    "Economics",
    "Energy",
    "Item",
    "bill",
    "break_even_points",
    "economics",
    "energy",
    "load_costs",
    "present",
    "verdicts",
]
