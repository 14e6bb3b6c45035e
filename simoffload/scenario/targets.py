"""Where ``compare --on`` puts a scenario."""

from __future__ import annotations

from simoffload.hardware import Machine
from simoffload.scenario.tiers import tier_name
from simoffload.strategies.placement import Placement

__all__ = ["RESIDENT", "placement_of"]

RESIDENT = "resident"
"""Not a tier: a whole copy in each GPU."""


def placement_of(target: str, machine: Machine) -> Placement:
    """The tiers of ``weights`` or ``weights+optimizer``, in the machine's names.

    Raises InputError if the machine has no such tier.
    """
    if target == RESIDENT:
        return Placement(RESIDENT, "hbm")
    weights, plus, optimizer = target.partition("+")
    return Placement(
        tier_name(weights, machine, "strategy.weights"),
        tier_name(optimizer, machine, "strategy.optimizer") if plus else None,
    )
