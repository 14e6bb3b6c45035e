"""Copies of ranks that are not in step: others use a shared link for only a part of the time.

In a schedule all ranks do the same, so that their copies begin at the same moment and share links from
beginning to end. Real ranks have host threads of their own, whose work takes a little longer one time and
less another, and all-gathers keep them together only to within a tensor. The variance of the phase between
two ranks grows with the work of their host threads, and with every copy if the link is slow: a rank that
begins first copies as fast as one alone, and what the others have left when it ends takes them longer. While
phases are little compared with a copy, ranks stay in step; later each finds the others in any phase, and
another one copies at the same time with the probability u, the share of the time for which a rank copies. The
rate of a copy is the mean of the fair rates, over the binomial distribution of the number of ranks that copy.
This holds for transfers of one kind; different kinds share links as they meet in the schedule.

Source: copies of four ranks in profiles of runs (docs/measurements/several-gpus.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import comb, erf, exp, expm1, log, pi, prod, sqrt
from typing import NamedTuple

from simoffload.hardware import Demand, fair_rates
from simoffload.results import Timeline
from simoffload.schedule import SHARING_SCALE, Route, Schedule, alone_rate

_VARIANCE = 1.2e6
"""[ps] Variance of the time of a host thread's work, over that time: pieces of 0.12 ms vary by 10 %, the
standard deviation of launches and releases of one kind of module (0.08 to 0.12 in records of the fit set)."""
_PASSES = 10
"""Number of passes over which the phase of ranks is averaged; the first begins in step. A choice: the records
with which the rule was compared have about as many."""
_POINTS = 16
"""Number of times in these passes at which the overlap is computed."""
_MANY_DEVIATIONS = 1e4
"""Length of a copy, in standard deviations of the phase, from which on ranks are in step."""
_SMALLEST, _LARGEST = 1e-9, 200.0
"""Exponents between which the growth of phases counts: below there is none, above ranks are in any phase."""
_MOST = 4096
"""Largest number of combinations of ranks whose rates are computed; with more, ranks stay in step."""
_ROUNDS = 30
"""Steps of the iteration for the share of the time."""


class Meetings(NamedTuple):
    """How ranks that are not in step meet on routes of one name."""

    probability: float
    """Probability that another rank transfers while one does."""
    gain: float
    """How many times as fast transfers are as in step."""


def meetings(timeline: Timeline) -> dict[str, Meetings]:
    """Return how ranks meet if they are not in step, by the names of the routes on which they do; from a
    timeline in which they are in step.

    A rank that transfers faster has the same work besides, which is exact where the host thread waits for
    each transfer.
    """
    schedule, makespan = timeline.schedule, timeline.makespan
    worked = _host_time(schedule)
    found: dict[str, Meetings] = {}
    for use in _uses(timeline):
        places = Counter(_places(schedule, use.route))
        if not any(places):
            continue
        met, rate_in_step, growth = 1.0, _slowest(places, 1.0), _growth(places)
        for _ in range(_ROUNDS):
            time = use.time * rate_in_step / _slowest(places, met)
            share = min(1.0, time / (max(makespan - use.time, 0.0) + time))
            same = _overlap(time / use.transfers, worked / use.transfers, use.transfers, growth)
            met = share + (1 - share) * same
        gain = _slowest(places, met) / rate_in_step
        found[schedule.routes[use.route].name] = Meetings(met, gain)
    return found


def ranks_out_of_step(schedule: Schedule, met: Mapping[str, Meetings]) -> Schedule:
    """Return the schedule in which transfers over the routes of ``met`` have the rates of ranks that are not
    in step: links count a smaller part of each, while all ranks transfer at once."""
    routes = [
        _eased(schedule, index, met[route.name].probability) if route.name in met else route
        for index, route in enumerate(schedule.routes)
    ]
    return schedule._replace(routes=tuple(routes))


def _overlap(length: float, worked: float, transfers: int, growth: float) -> float:
    """Return the mean part of a transfer of ``length`` [ps] during which another rank is still at the same
    one, if ranks begin in step, and a host thread works for ``worked`` [ps] before each of the ``transfers``
    of a pass.

    The phase between two ranks is normally distributed; the result is the mean of 1 - |phase| / length, where
    that is positive. With every transfer the phase grows by the factor ``growth``.
    """
    total = 0.0
    for point in range(_POINTS):
        number = transfers * _PASSES * (point + 0.5) / _POINTS
        exponent = 2 * number * log(growth)
        if exponent > _LARGEST:
            continue
        # 1 + g^2 + g^4 + ... of as many terms as transfers
        terms = expm1(exponent) / (growth**2 - 1) if exponent > _SMALLEST else number
        deviation = sqrt(2 * _VARIANCE * worked * terms)
        if length < _MANY_DEVIATIONS * deviation:
            ratio = length / deviation
            total += erf(ratio / sqrt(2)) - sqrt(2 / pi) / ratio * (1 - exp(-(ratio**2) / 2))
        else:
            total += 1.0
    return total / _POINTS


def _growth(places: Mapping[_Place | None, int]) -> float:
    """Return by which factor a rank that begins a transfer before all others is further ahead at its end, on
    average.

    While it is alone it is as fast as one alone; when it has ended, the others have so many bytes left, and
    the rate of all but one.
    """
    factors = []
    for place, ranks in places.items():
        if place is not None:
            meeting, group = place
            sizes = [size - (number == group) for number, size in enumerate(meeting.sizes)]
            left = next(rates for counts, rates in _rates(meeting) if list(counts) == sizes)
            slowest = min(rate for rate, size in zip(left, sizes, strict=True) if size)
            factors += ranks * [max(1.0, meeting.groups[group][1] / slowest)]
    return sum(factors) / len(factors)


def _host_time(schedule: Schedule) -> int:
    """Return the time [ps] for which the host thread of a rank works."""
    return sum(
        block.repeat * op.fixed
        for block in schedule.blocks
        for op in block.ops
        if schedule.device_of(op.stream).kind == "host thread"
    )


class _Use(NamedTuple):
    """The use of the routes of one name by each rank."""

    route: int
    """The route over which most of the time is spent."""
    transfers: int
    time: int
    """The time of all transfers [ps] of the rank that spends most."""


def _uses(timeline: Timeline) -> list[_Use]:
    """Return the uses of routes by their names; collectives do not count."""
    schedule = timeline.schedule
    times: Counter[tuple[int, int]] = Counter()
    for track in timeline.tracks:
        for piece in track.pieces():
            for entry in range(piece.first, piece.last):
                op = track.steps[entry].op
                if op.size and not op.collective:
                    length = track.end[entry] - track.start[entry] - op.fixed
                    times[track.rank, op.route] += piece.times * length
    transfers: Counter[str] = Counter()
    for block in schedule.blocks:
        for op in block.ops:
            if op.size:
                transfers[schedule.routes[op.route].name] += block.repeat
    total: dict[str, Counter[int]] = {}
    longest: dict[str, int] = {}
    for (rank, route), time in times.most_common():
        name = schedule.routes[route].name
        longest.setdefault(name, route)
        total.setdefault(name, Counter())[rank] += time
    return [_Use(route, transfers[name], max(total[name].values())) for name, route in longest.items()]


# -- ranks that meet ----------------------------------------------------------------------------

_Group = tuple[tuple[tuple[int, int], ...], int]
"""The narrow links that ranks of a group cross, with coefficients, and the rate [B/s] of one alone."""


class _Meeting(NamedTuple):
    """Ranks that meet on links which are too slow for all of them, in groups that cross the same ones.

    The links are numbered anew, so that equal hosts have equal meetings.
    """

    groups: tuple[_Group, ...]
    sizes: tuple[int, ...]
    """The number of ranks of each group."""
    capacities: tuple[int, ...]
    """The capacity of each link [B/s x coefficient]."""

    def expected(self, met: float) -> list[float]:
        """Return the mean rate [B/s] of a rank of each group while it transfers, if every other rank does so
        with the probability ``met``."""
        rates = []
        for own in range(len(self.groups)):
            others = [size - (group == own) for group, size in enumerate(self.sizes)]
            mean = 0.0
            for counts, found in _rates(self):
                if counts[own]:
                    there = [count - (group == own) for group, count in enumerate(counts)]
                    mean += found[own] * prod(
                        _binomial(*pair, met) for pair in zip(others, there, strict=True)
                    )
            rates.append(mean)
        return rates


_Place = tuple[_Meeting, int]
"""A meeting and the number of a group in it."""


def _binomial(number: int, count: int, probability: float) -> float:
    return float(comb(number, count) * probability**count * (1 - probability) ** (number - count))


@lru_cache(maxsize=64)
def _rates(meeting: _Meeting) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return all combinations of how many ranks of each group transfer, and the fair rates [B/s] of one rank
    of each."""
    combinations = []
    for counts in product(*(range(size + 1) for size in meeting.sizes)):
        present = [number for number, count in enumerate(counts) if count]
        demands = []
        for number in present:
            hops, rate = meeting.groups[number]
            demands.append(Demand(tuple([(link, counts[number] * each) for link, each in hops]), rate))
        found = dict(zip(present, fair_rates(demands, meeting.capacities), strict=True))
        combinations.append((counts, tuple([found.get(number, 0) for number in range(len(meeting.sizes))])))
    return tuple(combinations)


def _places(schedule: Schedule, index: int) -> list[_Place | None]:
    """Return for each rank where it meets others on a route; None where no link is too slow for all, or too
    many different ranks meet."""
    route, links = schedule.routes[index], schedule.links
    alone = [alone_rate(schedule, route=index, rank=rank) for rank in range(schedule.ranks)]
    narrow = {link for link, load in _load(route, alone).items() if load > links[link].capacity}
    crossed = [tuple([hop for hop in hops if hop[0] in narrow]) for hops in route.hops]
    groups = Counter(zip(crossed, alone, strict=True))
    found: dict[_Group, _Place | None] = {}
    for together in _connected([group for group in groups if group[0]]):
        numbers: dict[int, int] = {}
        for hops, _ in together:
            for link, _ in hops:
                numbers.setdefault(link, len(numbers))
        meeting = _Meeting(
            tuple([(tuple([(numbers[link], each) for link, each in hops]), rate) for hops, rate in together]),
            tuple([groups[group] for group in together]),
            tuple([links[link].capacity for link in numbers]),
        )
        few = prod(size + 1 for size in meeting.sizes) <= _MOST
        found |= {group: (meeting, number) if few else None for number, group in enumerate(together)}
    return [found.get(group) for group in zip(crossed, alone, strict=True)]


def _connected(groups: Sequence[_Group]) -> list[list[_Group]]:
    """Return the groups that meet each other, directly or through others, in their order."""
    by_link: dict[int, list[int]] = {}
    for number, (hops, _) in enumerate(groups):
        for link, _ in hops:
            by_link.setdefault(link, []).append(number)
    found: list[list[_Group]] = []
    seen: set[int] = set()
    for first in range(len(groups)):
        together, new = set[int](), {first} - seen
        while new:
            together |= new
            links = {link for number in new for link, _ in groups[number][0]}
            new = {number for link in links for number in by_link.pop(link, ())} - together
        if together:
            seen |= together
            found.append([groups[number] for number in sorted(together)])
    return found


def _slowest(places: Mapping[_Place | None, int], met: float) -> float:
    """Return the mean rate [B/s] of a rank of the slowest group, for which the others wait in the end."""
    meetings_ = {place[0] for place in places if place is not None}
    return min(rate for meeting in meetings_ for rate in meeting.expected(met))


def _load(route: Route, rates: Sequence[float]) -> Counter[int]:
    """Return the load [B/s x coefficient] on each link, rounded down, if all ranks transfer at these
    rates."""
    load: Counter[int] = Counter()
    for rate, hops in zip(rates, route.hops, strict=True):
        for link, coefficient in hops:
            load[link] += int(rate * coefficient)
    return load


def _eased(schedule: Schedule, index: int, met: float) -> Route:
    """Return a route of which links count the part that gives ranks in step the rates of others that meet
    with this probability."""
    route, places = schedule.routes[index], _places(schedule, index)
    expected = {place[0]: place[0].expected(met) for place in set(places) if place is not None}
    rates = [0.0 if place is None else expected[place[0]][place[1]] for place in places]
    part = {
        link: min(SHARING_SCALE, schedule.links[link].capacity * SHARING_SCALE // most)
        for link, most in _load(route, rates).items()
        if most
    }
    sharing = [
        tuple([(link, max(1, each * part.get(link, SHARING_SCALE))) for link, each in hops])
        for hops in route.hops
    ]
    return route._replace(sharing=tuple(sharing)) if expected else route
