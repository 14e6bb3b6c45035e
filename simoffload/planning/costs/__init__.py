"""What an answer costs: hardware, energy, tokens."""

from __future__ import annotations

from simoffload.planning.costs.bill import Bill, Item, bill
from simoffload.planning.costs.economics import FORMULAS, Economics, economics
from simoffload.planning.costs.energy import Draw, Energy, energy
from simoffload.planning.costs.flips import Flip, flips
from simoffload.planning.costs.lists import CostList, load_costs
from simoffload.planning.costs.verdict import Costed, CostVerdict, verdicts

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
