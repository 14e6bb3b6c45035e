"""What an answer costs: hardware, energy, tokens."""

from __future__ import annotations

from simoffload.planning.costs.bill import Bill, Item, bill
from simoffload.planning.costs.break_even import Costed, CostVerdict, Flip, flips, verdicts
from simoffload.planning.costs.economics import FORMULAS, Economics, economics
from simoffload.planning.costs.energy import Draw, Energy, energy
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
