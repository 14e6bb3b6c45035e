"""Transfers of ranks that are not in step: others use a shared link for only a part of the time.

In a schedule all ranks do the same, so that their transfers begin at the same moment and share links from
beginning to end. Real ranks have host threads of their own, whose work takes a little longer one time and
less another, and all-gathers keep them together only to within a tensor. How far that leaves them in step
depends on the lengths of work and transfers, on what waits for what, and on the link: where one rank is much
faster alone, a rank that is ahead gets further ahead. So it is simulated: in a sample of the pass every rank
runs on its own, with work of the host thread that varies. How much faster its transfers are than in step is
then true of the ranks in step, which the engine simulates as one.

Source: copies of four ranks in profiles of runs (docs/measurements/several-gpus.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf, sqrt
from random import Random

from simoffload.engine.executor import Executor
from simoffload.engine.folding import fold_ranks
from simoffload.results import Timeline
from simoffload.schedule import SHARING_SCALE, Route, Schedule, alone_rate, link_time

_VARIANCE = 1.2e6
"""[ps] Variance of the time of a host thread's work, over that time: pieces of 0.12 ms vary by 10 %, the
standard deviation of launches and releases of one kind of module (0.08 to 0.12 in records of the fit set)."""
_PASSES = 10
"""Number of passes whose drift the sample has: its variance is so many times as large. The records with which
it was compared have about as many passes, of which the first begins in step."""
_DIFFERENT = 4
"""Number of ranks whose work varies in different ways; the others repeat it, and are folded if their links
are alike."""
_OPERATIONS = 2_000
"""Number of operations of a sample, of all ranks that are simulated; at least three layers are."""
_FEWEST = 3
_NEGLIGIBLE = 1.001
"""Factor between the rates of a transfer alone and in step from which on ranks hinder each other."""

Gains = Mapping[str, float]
"""How many times as fast transfers over a route are as in step, by its name."""


def gains_out_of_step(timeline: Timeline) -> dict[str, float]:
    """Return how many times as fast the transfers over each route are if ranks are not in step, from a
    timeline in which they are; routes on which ranks do not hinder each other are left out."""
    schedule = timeline.schedule
    in_step = {route: min(rates.values()) for route, rates in _rates(timeline).items()}
    hindered = {
        schedule.routes[route].name
        for route, rate in in_step.items()
        if rate * _NEGLIGIBLE < alone_rate(schedule, route=route, rank=0)
    }
    if not hindered:
        return {}
    sample = _sample(schedule)
    before = _times(timeline)
    after = _times(sample) | _times(sample, since=sample.makespan // 2)
    gains = {}
    for name in sorted(hindered & after.keys()):
        gain = after[name][0] / after[name][1] / (before[name][0] / before[name][1])
        gains[name] = max(1.0, min(gain, _largest_gain(timeline, before[name][1] / schedule.ranks)))
    return gains


def _largest_gain(timeline: Timeline, length: float) -> float:
    """Return how many times as fast the transfers of a rank, of ``length`` [ps] together, can be without more
    than any link carries, which a short sample may miss by a little."""
    fullest = max(map(link_time, timeline.link_loads, timeline.schedule.links))
    least = fullest - (timeline.makespan - length)
    return length / least if least > 0 else inf


def ranks_out_of_step(timeline: Timeline, gains: Gains) -> Schedule:
    """Return the schedule of a timeline with transfers that are faster by ``gains``: links count a smaller
    part of each, while all ranks transfer at once."""
    schedule, in_step = timeline.schedule, _rates(timeline)
    routes = [
        _eased(timeline, index, in_step[index], gains[route.name])
        if index in in_step and gains.get(route.name, 1.0) > 1.0
        else route
        for index, route in enumerate(schedule.routes)
    ]
    return schedule._replace(routes=tuple(routes))


def _eased(timeline: Timeline, index: int, in_step: Mapping[int, float], gain: float) -> Route:
    schedule = timeline.schedule
    route = schedule.routes[index]
    load: Counter[int] = Counter()
    for number, ranks in enumerate(timeline.ranks_by_class):
        for rank in ranks if number in in_step else ():
            rate = min(in_step[number] * gain, alone_rate(schedule, route=index, rank=rank))
            for link, coefficient in route.hops[rank]:
                load[link] += int(rate * coefficient)
    part = {
        link: min(SHARING_SCALE, schedule.links[link].capacity * SHARING_SCALE // most)
        for link, most in load.items()
        if most
    }
    sharing = [
        tuple([(link, max(1, each * part.get(link, SHARING_SCALE))) for link, each in hops])
        for hops in route.hops
    ]
    return route._replace(sharing=tuple(sharing))


# -- the sample ---------------------------------------------------------------------------------


def _sample(schedule: Schedule) -> Timeline:
    """Return the timeline of a part of a schedule in which the work of host threads varies."""
    ranks = range(schedule.ranks)
    schedule = _shortened(schedule)._replace(distinct=tuple([rank % _DIFFERENT for rank in ranks]))
    folding = fold_ranks(schedule)
    draws = [Random(ranks[0] % _DIFFERENT) for ranks in folding.classes]

    def vary(rank: int, fixed: int) -> int:
        deviation = sqrt(_VARIANCE * _PASSES * fixed)
        return max(0, round(fixed + sqrt(3) * deviation * (2 * draws[rank].random() - 1)))

    executor = Executor(folding.schedule, standing_for=folding.classes, vary=vary)
    return folding.unfold(executor.run(), schedule)


def _shortened(schedule: Schedule) -> Schedule:
    """Return a schedule with fewer repetitions of blocks, if it has more operations than a sample."""
    ranks = min(schedule.ranks, _DIFFERENT)
    operations = ranks * sum(len(block.ops) * block.repeat for block in schedule.blocks)
    part = min(1.0, _OPERATIONS / operations)
    blocks = [
        block._replace(repeat=min(block.repeat, max(_FEWEST, round(part * block.repeat))))
        for block in schedule.blocks
    ]
    return schedule._replace(blocks=tuple(blocks))


# -- times of transfers -------------------------------------------------------------------------


def _rates(timeline: Timeline) -> dict[int, dict[int, float]]:
    """Return the mean rate [B/s] of transfers over each route, by class of ranks; collectives do not
    count."""
    rates: dict[int, dict[int, float]] = {}
    for (route, number), (size, time) in _transfers(timeline).items():
        rates.setdefault(route, {})[number] = size / (time * 1e-12)
    return rates


def _times(timeline: Timeline, *, since: int = 0) -> dict[str, tuple[int, int]]:
    """Return bytes and time [ps] of the transfers of all ranks over routes, by their name."""
    found: dict[str, tuple[int, int]] = {}
    for (route, number), (size, time) in _transfers(timeline, since).items():
        ranks, name = len(timeline.ranks_by_class[number]), timeline.schedule.routes[route].name
        before = found.get(name, (0, 0))
        found[name] = before[0] + ranks * size, before[1] + ranks * time
    return found


def _transfers(timeline: Timeline, since: int = 0) -> dict[tuple[int, int], tuple[int, int]]:
    """Return bytes and time [ps] of the transfers of a rank that begin at ``since`` [ps] or later, by route
    and class of ranks."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for track in timeline.tracks:
        for piece in track.pieces():
            for entry in range(piece.first, piece.last):
                op = track.steps[entry].op
                if op.size and not op.collective and track.start[entry] >= since:
                    size, time = found.get((op.route, track.rank), (0, 0))
                    length = track.end[entry] - track.start[entry] - op.fixed
                    found[op.route, track.rank] = size + piece.times * op.size, time + piece.times * length
    return {key: (size, time) for key, (size, time) in found.items() if time > 0}
