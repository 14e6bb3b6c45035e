"""What has to be bought for an answer, the machine and the storage in use, and drives bought again."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.documents import without
from simoffload.hardware.machine import MEMORY, DeviceGroup
from simoffload.hardware.targets import LOCAL_KINDS, STORAGE_KINDS
from simoffload.planning.costs.price_list import CostList, Figure
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.units import format_bytes

__all__ = ["Bill", "Item", "Replacement", "bill", "replacements", "used_parts"]

_SHARED = set(STORAGE_KINDS) - set(LOCAL_KINDS)
"""Kinds of storage that no machine comes with."""
_HOURS_A_DAY = 24


class Item(NamedTuple):
    """One line of a bill."""

    key: str
    """``kind/id`` of the profile, or "memory"."""
    description: str
    number: int
    price: Figure | None
    """None where the list has none."""
    units: float = 1.0
    """How many times the price is paid for one: the GB of memory, the TB of a drive."""
    covered: bool = False
    """It comes with the whole machine, which is another line."""
    tier: str = ""
    """The storage tier to which it belongs; "" for the rest of the machine."""

    @property
    def kind(self) -> str:
        """Of its profile: "drive", "host", …; "memory"."""
        return self.key.partition("/")[0]

    @property
    def total(self) -> float | None:
        """Of all of them; None without a price."""
        if self.covered:
            return 0.0
        return self.number * self.units * self.price.value if self.price else None


class Bill(NamedTuple):
    """All that has to be bought."""

    items: tuple[Item, ...]

    @property
    def total(self) -> float | None:
        """Of everything that has a price; None if nothing has."""
        known = [item.total for item in self.items if item.total is not None]
        return sum(known) if known else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys of what has no price."""
        return tuple(item.key for item in self.items if item.total is None)

    @property
    def by_key(self) -> dict[str, float]:
        """Sums of what has a price."""
        found: dict[str, float] = {}
        for item in self.items:
            found[item.key] = found.get(item.key, 0.0) + (item.total or 0.0)
        return found

    @property
    def prices(self) -> tuple[Figure, ...]:
        """All that went in."""
        found = (item.price for item in self.items if item.price and not item.covered)
        return tuple(dict.fromkeys(found))

    def paid(self, price: str) -> float:
        """How many times a price (``Figure.what``) is paid."""
        mine = (one for one in self.items if one.price and one.price.what == price and not one.covered)
        return sum(item.number * item.units for item in mine)


def used_parts(scenario: LoadedScenario, result: SimulationResult) -> tuple[DeviceGroup, ...]:
    """The parts of the machine, and of its storage those tiers that must hold something."""
    tiers = {"", *(use.tier for use in result.capacity)}
    return tuple(part for part in scenario.machine.parts if part.tier in tiers)


def bill(scenario: LoadedScenario, result: SimulationResult, costs: CostList) -> Bill:
    """What the machine and the storage in use cost.

    Machines are bought whole, with all their GPUs. Where the list has a price of the platform, that covers
    host, GPUs, memory, adapters and local drives as the platform's file has them, and what the scenario
    adds is paid for on top.
    """
    wanted = used_parts(scenario, result)
    complete = costs.machine_price(scenario.machine.platform)
    if complete is None:
        return Bill(tuple(_item(part, costs, part.number) for part in wanted if part.number))
    nodes = scenario.machine.nodes
    included = _included(scenario, nodes)
    items = [Item(complete.what, "whole machine", nodes, complete)]
    for part in wanted:
        inside, added = _split(part, included.get((part.key, part.tier), part._replace(number=0)))
        items += [_item(one, costs, one.number)._replace(covered=True) for one in inside if one.number]
        items += [_item(one, costs, one.number) for one in added if one.number]
    return Bill(tuple(items))


def _split(part: DeviceGroup, has: DeviceGroup) -> tuple[tuple[DeviceGroup, ...], tuple[DeviceGroup, ...]]:
    """What of a part a machine has, and what is added; more memory is added to what is there."""
    covered = min(part.number, has.number)
    inside, added = part._replace(number=covered), part._replace(number=part.number - covered)
    if part.key != MEMORY or part.size <= has.size:
        return (inside,), (added,)
    more = part._replace(number=covered, size=part.size - has.size)
    return (inside._replace(size=has.size),), (more, added)


def _included(scenario: LoadedScenario, nodes: int) -> dict[tuple[str, str], DeviceGroup]:
    """By key and tier what comes with a platform as its file has it, without what the scenario changes."""
    plain = without(scenario.document, "equipment")
    shipped = scenario.cache.platform(plain, changed=False).machine(nodes=nodes).parts
    return {(part.key, part.tier): part for part in shipped if part.kind not in _SHARED}


def _item(part: DeviceGroup, costs: CostList, count: int) -> Item:
    description = part.key.partition("/")[2] or part.key
    if part.key == MEMORY:
        description = f"host memory, {format_bytes(part.size, binary=True)}"
    price, units = costs.price(part) or (None, 1.0)
    return Item(part.key, description, count, price, units, tier=part.tier)


class Replacement(NamedTuple):
    """Drives of a tier that last less long than the purchase is written off."""

    tier: str
    price: str
    """``Figure.what`` of what each of them costs."""
    paid_per_h: float
    """How many times that price is paid in an hour of work, beyond the purchase."""
    value: float
    """The price, in the list's currency."""

    @property
    def per_h(self) -> float:
        """Cost in an hour of work, in the list's currency."""
        return self.paid_per_h * self.value


def replacements(result: SimulationResult, bill: Bill, *, hours: float) -> tuple[Replacement, ...]:
    """For drives whose rating is used up within ``hours`` of work: price x (1 / hours they last - 1 / hours).

    Those that come with a machine have the price of their kind.
    """
    lasting = {
        one.tier: one.drive_lifetime.days
        for one in getattr(result, "drive_lifetime", ())
        if one.drive_lifetime.days is not None
    }
    found = []
    for item in bill.items:
        days = lasting.get(item.tier)
        if days is None or item.price is None or item.kind != "drive":
            continue
        rate = 1 / (days * _HOURS_A_DAY) - 1 / hours
        if rate > 0:
            paid = item.number * item.units * rate
            found.append(Replacement(item.tier, item.price.what, paid, item.price.value))
    return tuple(found)
