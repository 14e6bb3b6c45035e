"""How concurrent flows share links: weighted max-min fairness. There is no clock here.

Find rates x[f] of flows f over links l such that

    sum over f of  coefficient[f, l] * x[f]  <=  capacity[l]      for every link l,
    0  <=  x[f]  <=  cap[f]                                       for every flow f,

and no x[f] / weight[f] can grow without shrinking another that is no larger. This solution exists and
is unique; it is the one in which every flow is at its cap, or crosses a saturated link on which no
other flow has a larger x / weight. Progressive filling finds it: raise all x[f] = weight[f] * level
together, hold a flow when it reaches its cap and the flows of a link when the link is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import gcd, lcm
from typing import NamedTuple


class Demand(NamedTuple):
    """The demand of one flow on the links."""

    hops: tuple[tuple[int, int], ...]
    """Pairs (link, coefficient), one for each link that the flow crosses."""
    cap: int
    """Highest rate [B/s] that the flow can use."""
    weight: int = 1


def fair_rates(demands: Sequence[Demand], capacities: Sequence[int]) -> list[int]:
    """Return the max-min fair rate [B/s] of every demand, rounded down.

    Everything before that rounding is exact, so that the order of the demands does not matter and equal
    demands get equal rates. ``capacities`` are in [B/s x coefficient].
    """
    filling = _Filling(demands, capacities)
    common = lcm(*{demand.weight for demand in demands})
    by_cap = sorted(range(len(demands)), key=[d.cap * (common // d.weight) for d in demands].__getitem__)
    growing = deque(by_cap)  # the flow whose cap is reached at the lowest level comes first
    while growing:
        first, level, steepness = filling.first_to_fill()
        capped = False
        while growing and demands[growing[0]].cap * steepness <= level * demands[growing[0]].weight:
            flow = growing.popleft()
            if filling.rates[flow] is None:
                filling.hold(flow, demands[flow].cap, 1)
                capped = True
        # Flows held at their caps leave more for the others: the next link to fill has to be found again.
        if not capped and first is not None:
            filling.fill(first, level, steepness)
    return [rate or 0 for rate in filling.rates]


class _Filling:
    """The rates that are fixed, and the capacity that remains, while the common level rises."""

    def __init__(self, demands: Sequence[Demand], capacities: Sequence[int]) -> None:
        self.rates: list[int | None] = [None] * len(demands)  # None: still growing
        self._demands = demands
        self._flows: dict[int, list[int]] = {}
        for flow, demand in enumerate(demands):
            for link, _ in demand.hops:
                self._flows.setdefault(link, []).append(flow)
        # By how much a link fills when the level rises by one.
        self._pull = loads(demands, [demand.weight for demand in demands])
        # What remains of a link, as a fraction in lowest terms, while flows on it grow. A link that could
        # carry all its flows at their caps never fills.
        self._left = {
            link: (capacities[link], 1)
            for link, most in loads(demands, [demand.cap for demand in demands]).items()
            if most > capacities[link]
        }

    def first_to_fill(self) -> tuple[int | None, int, int]:
        """Return the link that is full at the lowest level, and that level as numerator, denominator.

        If no link fills, return None and an infinite level. Fractions are compared by cross-multiplication.
        """
        first, level, steepness = None, 1, 0
        for link, (left, unit) in self._left.items():
            if left * steepness < level * self._pull[link] * unit:
                first, level, steepness = link, left, self._pull[link] * unit
        return first, level, steepness

    def fill(self, link: int, level: int, steepness: int) -> None:
        """Fix the rates of the flows that still grow on ``link``, which is full at ``level / steepness``."""
        del self._left[link]
        for flow in self._flows[link]:
            if self.rates[flow] is None:
                self.hold(flow, level * self._demands[flow].weight, steepness)

    def hold(self, flow: int, rate: int, unit: int) -> None:
        """Fix the rate of ``flow`` at ``rate / unit``."""
        self.rates[flow] = rate // unit
        demand = self._demands[flow]
        for link, coefficient in demand.hops:
            if link in self._left:
                self._pull[link] -= coefficient * demand.weight
                if not self._pull[link]:
                    del self._left[link]
                    continue
                left, own_unit = self._left[link]
                left = left * unit - coefficient * rate * own_unit
                own_unit *= unit
                shared = gcd(left, own_unit)
                self._left[link] = (left // shared, own_unit // shared)


def loads(demands: Iterable[Demand], rates: Iterable[int]) -> dict[int, int]:
    """Return the load [B/s x coefficient] that flows at ``rates`` [B/s] put on each link they cross."""
    load: dict[int, int] = {}
    for demand, rate in zip(demands, rates, strict=True):
        for link, coefficient in demand.hops:
            load[link] = load.get(link, 0) + coefficient * rate
    return load
