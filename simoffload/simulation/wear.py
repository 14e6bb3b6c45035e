"""Which drives a run writes to, and how fast they wear out."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.hardware import Machine
from simoffload.results.wear import TierWear, wear

__all__ = ["tier_wear", "wear_warnings"]


def tier_wear(
    machine: Machine, tier: str, by_host: Sequence[float], *, time_s: float, unit: str
) -> TierWear | None:
    """Wear of the drives of a tier to which each host writes ``by_host`` [B] every ``time_s`` [s].

    None where the drives are not known (a file server, a parallel filesystem) or nothing is written.
    """
    target, written = machine.wiring.targets[tier], sum(by_host)
    if target.drive is None or not written:
        return None
    hosts, uneven = 1, 1.0
    if target.drives:  # every host has its own
        hosts = len(by_host)
        uneven = max(by_host) * hosts / written
    worn = wear(written, time_s, target.drive, array=target.array, hosts=hosts, uneven=uneven)
    return TierWear(tier, unit, worn)


def wear_warnings(found: Sequence[TierWear]) -> tuple[str, ...]:
    """What does not last as long as its warranty, or a year without one."""
    short = ("within_a_year", "before_warranty_ends")
    return tuple(f"drives wear out: {one.sentence}" for one in found if one.wear.verdict in short)
