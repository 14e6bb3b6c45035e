"""What an answer costs: hardware, energy, tokens."""

from __future__ import annotations

from simoffload.planning.costs.bill import Bill, Draw, Energy, Item, bill, energy
from simoffload.planning.costs.economics import (
    FORMULAS,
    Costed,
    CostVerdict,
    Economics,
    Flip,
    economics,
    flips,
    verdicts,
)
from simoffload.planning.costs.lists import CostList, load_costs

__all__ = [
    "FORMULAS",
    "Bill",
    "CostList",
    "CostVerdict",
    "Costed",
    "Draw",
    "Economics",
    "Energy",
    "Flip",
    "Item",
    "bill",
    "economics",
    "energy",
    "flips",
    "load_costs",
    "verdicts",
]
