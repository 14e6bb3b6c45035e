"""The fluid network: flows join, share links max-min fairly, and leave when their bytes have passed.

Rates change only when a flow joins or leaves; all changes at one time are solved together at its end. The
remaining bytes of a flow are counted in 10^-12 B, so that rate [B/s] x time [ps] is exact however often the
rate changes; a flow ends at the first picosecond at which nothing remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from simoffload.engine.clock import Clock
from simoffload.errors import SimulationError
from simoffload.hardware import Demand, fair_rates, loads
from simoffload.schedule import Schedule

Owner = TypeVar("Owner")

_PARTS = 10**12
"""Parts of a byte in which work is counted: one per [B/s x ps]."""

_HELD = 100_000
"""Changes of rates after which the time of each allocation is summed up."""

_REMEMBERED = 200_000
"""Flows in the cached solutions (about 100 B each): identical layers produce the same sets of flows again."""


class _Flow(Generic[Owner]):
    __slots__ = ("due", "left", "owner", "path", "rate", "since")

    def __init__(self, path: int, size: int, owner: Owner, now: int) -> None:
        self.path = path
        self.owner = owner
        self.left = size * _PARTS  # at time `since`
        self.rate = 0  # [B/s] from time `since` on
        self.since = now
        self.due = -1  # [ps] unknown until the rates of this instant are known


class _Allocation:
    """The rates of one set of flows, and for how long they held."""

    __slots__ = ("busy", "duration", "rates", "saturated")

    def __init__(self, rates: dict[int, int], busy: tuple[int, ...], saturated: tuple[int, ...]) -> None:
        self.rates = rates
        self.busy = busy
        self.saturated = saturated
        self.duration = 0


class AllocationMark(NamedTuple):
    """A position in the list of past allocations."""

    held: int
    summed: int


class Network(Generic[Owner]):
    """The links of a schedule and the flows on them.

    A path is a route on one rank, numbered ``route * ranks + rank``. ``finished`` is called with the owners
    of the flows that end at the current time, in the order in which they joined. A flow of a rank represents
    as many ``flows`` as there are ranks in its class.
    """

    def __init__(
        self,
        schedule: Schedule,
        clock: Clock,
        finished: Callable[[list[Owner]], object],
        *,
        flows: Sequence[int] | None = None,
    ) -> None:
        self._links = schedule.links
        self._capacities = tuple(link.capacity for link in schedule.links)
        self._paths = tuple(
            Demand(hops, route.cap, route.weight) for route in schedule.routes for hops in route.hops
        )
        self._flows = flows or [1] * schedule.ranks
        self._clock = clock
        self._finished = finished
        self._active: list[_Flow[Owner]] = []
        self._busy = [0] * len(self._links)
        self._saturated = [0] * len(self._links)
        self._solved: dict[tuple[int, ...], _Allocation] = {}  # by the sorted paths of the flows
        self._cached_flows = 0
        self._current = _Allocation({}, (), ())
        self._current_since = 0
        self._history: list[tuple[_Allocation, int]] = []  # with the time [ps] for which each held, in order
        self._summed = 0  # how often these were summed up
        self._settling = False
        self._next_end: int | None = None
        self.solves = 0
        """Number of systems solved, without cached ones."""
        self.constant_rates = True
        """Whether every flow has kept its initial rate."""

    def join(self, path: int, size: int, owner: Owner) -> None:
        """Start a flow of ``size`` [B] > 0 over ``path`` now."""
        self._active.append(_Flow(path, size, owner, self._clock.now))
        self._settle_later()

    def busy(self) -> tuple[list[int], list[int]]:
        """Return for every link the time [ps] with at least one flow, and the time at full capacity, within
        the rounding of the rates to 1 B/s; valid once all flows have ended."""
        self._forget()
        return self._busy, self._saturated

    def in_flight(self) -> list[tuple[Owner, int]]:
        """Return the owners of all flows, in the order in which they joined, and what remains of each [10^-12
        B]."""
        now = self._clock.now
        return [(flow.owner, flow.left - flow.rate * (now - flow.since)) for flow in self._active]

    def mark(self) -> AllocationMark:
        """Return the current position in the list of allocations, once rates are settled."""
        self._record_allocation(self._clock.now)
        if len(self._history) > _HELD:
            self._sum_up()
        return AllocationMark(len(self._history), self._summed)

    def counts_since(self, mark: AllocationMark) -> bool:
        """Return whether every allocation since ``mark`` is still listed."""
        return mark.summed == self._summed

    def repeat(self, begin: AllocationMark, end: AllocationMark, times: int) -> None:
        """Count the allocations between two marks ``times`` times more."""
        for allocation, duration in self._history[begin.held : end.held]:
            allocation.duration += times * duration

    def _record_allocation(self, now: int) -> None:
        """Record for how long the current allocation has held."""
        self._history.append((self._current, now - self._current_since))
        self._current_since = now

    def _sum_up(self) -> None:
        for allocation, duration in self._history:
            allocation.duration += duration
        self._history.clear()
        self._summed += 1

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._clock.call_at_end_of_instant(self._share_links)

    def _share_links(self) -> None:
        """Compute the rates of the current flows."""
        self._settling = False
        now, active = self._clock.now, self._active
        self._history.append((self._current, now - self._current_since))
        self._current_since = now
        paths = (active[0].path,) if len(active) == 1 else tuple(sorted([flow.path for flow in active]))
        self._current = self._solved.get(paths) or self._solve(paths)
        rates = self._current.rates
        next_end = None
        for flow in active:
            rate = rates[flow.path]
            if rate != flow.rate:
                if flow.rate:
                    self.constant_rates = False
                flow.left -= flow.rate * (now - flow.since)
                flow.since = now
                flow.rate = rate
                flow.due = now - (-flow.left // rate)  # rounded up
            if next_end is None or flow.due < next_end:
                next_end = flow.due
        if next_end != self._next_end:
            self._next_end = next_end
            if next_end is not None:
                self._clock.call_at(next_end, self._end_flows, next_end)

    def _end_flows(self, due: int) -> None:
        if due != self._next_end:
            return  # rates have changed since this call was requested
        self._next_end = None
        ending, self._active = self._active, []
        if len(ending) > 1:
            self._active = [flow for flow in ending if flow.due != due]
            ending = [flow for flow in ending if flow.due == due]
        self._settle_later()
        self._finished([flow.owner for flow in ending])

    def _solve(self, paths: tuple[int, ...]) -> _Allocation:
        demands = [self._paths[path] for path in paths]
        rates = fair_rates(demands, self._capacities)
        self.solves += 1
        # Rates are rounded down by less than 1 B/s, so 1 B/s more would be too much for a full link.
        above = loads(demands, [rate + 1 for rate in rates])
        full = tuple(link for link in above if above[link] > self._capacities[link])
        if 0 in rates:
            raise SimulationError(self._too_many(paths, rates, full))
        if self._cached_flows > _REMEMBERED:
            self._forget()
        allocation = _Allocation(dict(zip(paths, rates, strict=True)), tuple(above), full)
        self._solved[paths] = allocation
        self._cached_flows += len(paths)
        return allocation

    def _too_many(self, paths: Sequence[int], rates: Sequence[int], full: Sequence[int]) -> str:
        """Return the message for a link that leaves less than 1 B/s for a flow."""
        crossed = [{link for link, _ in self._paths[path].hops} for path in paths]
        starved = set().union(*[own for own, rate in zip(crossed, rates, strict=True) if not rate])
        tight = next(link for link in full if link in starved)
        count = sum(
            self._flows[path % len(self._flows)]
            for path, own in zip(paths, crossed, strict=True)
            if tight in own
        )
        return f"{count} flows share {self._links[tight].name}, which leaves less than 1 B/s for one of them"

    def _forget(self) -> None:
        """Sum up for how long each cached allocation held, and clear the cache."""
        self._sum_up()
        for allocation in self._solved.values():
            for link in allocation.busy:
                self._busy[link] += allocation.duration
            for link in allocation.saturated:
                self._saturated[link] += allocation.duration
            allocation.duration = 0
        self._solved.clear()
        self._cached_flows = 0
