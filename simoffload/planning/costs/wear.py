"""Drives that wear out before they are written off have to be bought again."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.planning.costs.bill import Bill
from simoffload.results.result import SimulationResult

__all__ = ["Replacement", "replacements"]

_HOURS_A_DAY = 24


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
    lasting = {one.tier: one.wear.days for one in getattr(result, "wear", ()) if one.wear.days is not None}
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
