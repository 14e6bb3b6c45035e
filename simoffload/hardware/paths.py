"""Shared capacities, the cables that connect them, and the paths of bytes over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

from simoffload.hardware.quantities import Curve


class Resource(NamedTuple):
    """A capacity that concurrent transfers share."""

    name: str
    capacity: int
    """Capacity of the resource [B/s]."""
    kind: str
    """Kind of the resource: pcie, duplex (both directions of a cable), dram, drive, nic, server or nvlink."""
    by_size: Curve | None = None
    """Capacity [B/s] for copies by their size, where small ones reach less than ``capacity``."""

    def share(self, size: int | None) -> Fraction:
        """Return what a byte of copies of ``size`` [B] takes of the capacity; None: large ones."""
        if self.by_size is None or size is None:
            return Fraction(1)
        return Fraction(self.capacity, self.by_size.rate(size)).limit_denominator(_FINE)


_FINE = 10_000
"""Largest denominator of a share, which keeps the loads of links small integers."""


@dataclass(frozen=True)
class Path:
    """The route of bytes from one place to another, with its latency and rate."""

    name: str
    hops: tuple[tuple[int, Fraction], ...]
    """Pairs (index into ``Machine.resources``, bytes on it per byte of payload), by rising index."""
    latency: float
    """Latency [s] of each transfer; of storage that of one request on an idle target."""
    curve: Curve
    """Rate [B/s] of one transfer alone, by its size [B]."""
    request_rate: int = 0
    """Rate [B/s] at which one request streams (storage)."""
    chunk: int = 0
    """Size [B] after which a request continues on the next device of an array; 0 = never (storage)."""
    width: int = 1
    """Number of devices from which one request can stream (storage)."""
    by_outstanding: Curve | None = None
    """Measured rate [B/s] by the bytes in flight, where the drive's profile states it."""

    def outstanding_rate(self, outstanding: int, *, block: int) -> int:
        """Return the highest rate [B/s] that ``outstanding`` [B] in flight in requests of ``block`` [B]
        reach.

        This is the measured curve where there is one, otherwise Little's law: outstanding bytes over the time
        of one request. It applies to storage only.
        """
        if self.by_outstanding is not None:
            return self.by_outstanding.rate(outstanding)
        block = max(1, block)
        devices = min(self.width, -(-block // self.chunk)) if self.chunk else 1
        per_request = self.latency + block / (self.request_rate * devices)
        return max(1, int(outstanding / per_request))

    def file_rate(self, size: int, *, outstanding: int, block: int) -> int:
        """Return the rate [B/s] of a transfer of ``size`` [B] alone, at most that of ``outstanding_rate``."""
        return min(self.curve.rate(size), self.outstanding_rate(outstanding, block=block))


Hops = tuple[tuple[int, Fraction], ...]

_FULL_SHARE = Fraction(1)


class Load:
    """The sum of bytes on each resource per byte of payload."""

    def __init__(self) -> None:
        self._on: dict[int, Fraction] = {}

    def put(self, resources: Iterable[int], share: Fraction | int = _FULL_SHARE) -> None:
        """Add ``share`` bytes to each of ``resources``."""
        share = share if isinstance(share, Fraction) else Fraction(share)
        for index in resources:
            before = self._on.get(index)
            self._on[index] = share if before is None else before + share

    def hops(self) -> Hops:
        """Return pairs (resource, bytes per byte of payload), by rising index."""
        return tuple(sorted(self._on.items()))


class Graph:
    """An undirected graph whose cables use different resources in each direction."""

    def __init__(self) -> None:
        self._cables: dict[str, dict[str, tuple[int, ...]]] = {}
        self._known_routes: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def connect(self, a: str, b: str, *, there: tuple[int, ...], back: tuple[int, ...]) -> None:
        """Connect two vertices by a cable: ``there`` are the resources crossed from ``a`` to ``b``, ``back``
        the other way."""
        self._known_routes.clear()
        self._cables.setdefault(a, {})[b] = there
        self._cables.setdefault(b, {})[a] = back

    def route(self, start: str, end: str) -> tuple[int, ...]:
        """Return the resources crossed from ``start`` to ``end`` over the fewest cables; of equal routes, the
        first connected.

        Raises KeyError if ``end`` cannot be reached.
        """
        return tuple(index for a, b in self._way(start, end) for index in self._cables[a][b])

    def passes(self, vertex: str, *, start: str, end: str) -> bool:
        """Return whether the route crosses ``vertex`` between its ends."""
        return any(b == vertex for _, b in self._way(start, end)[:-1])

    def _way(self, start: str, end: str) -> list[tuple[str, str]]:
        if (start, end) not in self._known_routes:
            self._known_routes[start, end] = self._search(start, end)
        return self._known_routes[start, end]

    def _search(self, start: str, end: str) -> list[tuple[str, str]]:
        before: dict[str, str] = {start: start}
        queue = deque([start])
        while queue and end not in before:
            vertex = queue.popleft()
            for neighbour in self._cables.get(vertex, {}):
                if neighbour not in before:
                    before[neighbour] = vertex
                    queue.append(neighbour)
        way = []
        while end != start:
            way.append((before[end], end))
            end = before[end]
        return way[::-1]


# -- how concurrent flows share links --------------------------------------------------------------
# Weighted max-min fairness. There is no clock here.
#
# Find rates x[f] of flows f over links l such that
#
# sum over f of coefficient[f, l] * x[f] <= capacity[l] for every link l, 0 <= x[f] <= cap[f] for every flow
# f,
#
# and no x[f] / weight[f] can grow without shrinking another that is no larger. This solution exists and is
# unique; it is the one in which every flow is at its cap, or crosses a saturated link on which no other
# flow has a larger x / weight. Progressive filling finds it: raise all x[f] = weight[f] * level together,
# hold a flow when it reaches its cap and the flows of a link when the link is full.


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
