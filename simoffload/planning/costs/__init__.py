"""What an answer costs: hardware, energy, tokens."""

from __future__ import annotations

from simoffload.planning.costs.bill import Bill, Item, bill
from simoffload.planning.costs.break_even import BreakEven, Costed, CostVerdict, break_even_points, verdicts
from simoffload.planning.costs.economics import FORMULAS, Economics, economics
from simoffload.planning.costs.energy import Draw, Energy, energy
from simoffload.planning.costs.price_list import CostList, load_costs

__all__ = [
    "FORMULAS",
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
    "verdicts",
]
