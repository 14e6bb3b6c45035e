"""Tiers, and where ``compare --on`` puts a scenario, as people name them and as a machine does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simoffload.documents import quoted, suggest
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.strategies.base import TierChoice
from simoffload.strategies.placement import Placement

__all__ = ["READ_TIER", "RESIDENT", "placement_of", "storage_name", "tier_name"]

_ALIASES = {"gpu": "hbm", "cpu": "dram", "ram": "dram"}
RESIDENT = "resident"
"""Not a tier: a whole copy in each GPU."""


def tier_name(name: str, machine: Machine, key: str) -> str:
    """The machine's name for a tier; "gpu", "cpu" and "ram" are understood. InputError if there is none."""
    known = _ALIASES.get(name.lower(), name)
    if known in machine.tiers:
        return known
    raise _no_tier("tier", name, machine, tuple(machine.tiers), key)


def storage_name(name: str, machine: Machine, key: str) -> str:
    """The same for what must be on storage. Raises InputError."""
    storage = tuple(tier.name for tier in machine.tiers.values() if tier.kind not in {"hbm", "dram"})
    if name in storage:
        return name
    raise _no_tier("storage tier", name, machine, storage, key)


def _no_tier(what: str, name: str, machine: Machine, tiers: tuple[str, ...], key: str) -> InputError:
    has = ", ".join(tiers) or "none"
    message = f'no {what} {quoted(name)} on platform "{machine.platform}" (has: {has}){suggest(name, tiers)}'
    return InputError.at(key, message)


READ_TIER: Mapping[TierChoice, Callable[[str, Machine, str], str]] = {
    "any": tier_name,
    "storage": storage_name,
}
"""What reads the name of a tier, by which tiers may be named."""


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
