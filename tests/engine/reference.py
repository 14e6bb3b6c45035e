"""The engine written a second time, slowly and plainly, to compare with.

Nothing here is shared with the engine but the schedule: operations are unrolled, every quantity is
looked up anew at every moment, and fractions are fractions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from simoffload.hardware.paths import Demand
from simoffload.schedule import Program, Schedule

PICO = 10**12


def fair_by_filling(demands: Sequence[Demand], capacities: Sequence[int]) -> list[Fraction]:
    """Max-min fair rates: find the lowest level at which anything stops growing, stop one flow, repeat."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(demands):
        stops: list[tuple[Fraction, int]] = []
        for flow, demand in enumerate(demands):
            if flow in rates:
                continue
            levels = [Fraction(demand.cap, demand.weight)]
            for link, _ in demand.hops:
                users = [(f, c) for f, d in enumerate(demands) for other, c in d.hops if other == link]
                taken = sum((rates[f] * c for f, c in users if f in rates), Fraction(0))
                pull = sum(demands[f].weight * c for f, c in users if f not in rates)
                levels.append((capacities[link] - taken) / pull)
            stops.append((min(levels), flow))
        level, flow = min(stops)
        rates[flow] = level * demands[flow].weight
    return [rates[flow] for flow in range(len(demands))]


def fair_by_trying(demands: Sequence[Demand], capacities: Sequence[int]) -> list[Fraction]:
    """Max-min fair rates: guess for every flow what holds it, and keep the guess that is consistent.

    The reasons (its cap, or one of its links) fix a linear system; its solution is the max-min fair one
    if no link is over capacity and no flow on a full link is faster, for its weight, than those held there.
    """
    reasons = [[None, *(link for link, _ in demand.hops)] for demand in demands]
    for guess in itertools.product(*reasons):
        rates = _solve_guess(demands, capacities, guess)
        if rates is not None and _is_fair(demands, capacities, rates):
            return rates
    raise AssertionError("max-min fairness always has a solution")


def _solve_guess(
    demands: Sequence[Demand], capacities: Sequence[int], guess: Sequence[int | None]
) -> list[Fraction] | None:
    links = sorted({link for link in guess if link is not None})
    rows: list[list[Fraction]] = []  # unknowns: the level of each link; last column: right-hand side
    for link in links:
        row = [Fraction(0)] * len(links) + [Fraction(capacities[link])]
        for demand, held_by in zip(demands, guess, strict=True):
            coefficient = dict(demand.hops).get(link, 0)
            if held_by is None:
                row[-1] -= coefficient * demand.cap
            else:
                row[links.index(held_by)] += coefficient * demand.weight
        rows.append(row)
    levels = _gauss(rows)
    if levels is None:
        return None
    return [
        Fraction(demand.cap) if held_by is None else levels[links.index(held_by)] * demand.weight
        for demand, held_by in zip(demands, guess, strict=True)
    ]


def _gauss(rows: list[list[Fraction]]) -> list[Fraction] | None:
    for column in range(len(rows)):
        pivot = next((row for row in rows[column:] if row[column]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        rows.insert(column, pivot)
        for row in rows:
            if row is not pivot and row[column]:
                factor = row[column] / pivot[column]
                row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return [row[-1] / row[column] for column, row in enumerate(rows)]


def _is_fair(demands: Sequence[Demand], capacities: Sequence[int], rates: Sequence[Fraction]) -> bool:
    users: dict[int, list[tuple[int, int]]] = {}
    for flow, demand in enumerate(demands):
        for link, coefficient in demand.hops:
            users.setdefault(link, []).append((flow, coefficient))
    load = {link: sum(rates[f] * c for f, c in on_it) for link, on_it in users.items()}
    if any(load[link] > capacities[link] for link in users):
        return False
    for demand, rate in zip(demands, rates, strict=True):
        if not 0 <= rate <= demand.cap:
            return False
        full = [link for link, _ in demand.hops if load[link] == capacities[link]]
        first_on = [
            link
            for link in full
            if all(rates[f] * demand.weight <= rate * demands[f].weight for f, _ in users[link])
        ]
        if rate < demand.cap and not first_on:
            return False
    return True


@dataclass
class _Task:
    """One operation of one rank, unrolled."""

    place: tuple[int, int, int, int]  # rank, block, iteration, position
    number: int  # in the order in which they are written, the same on every rank
    stream: int
    fixed: int
    work: int  # [10^-12 B]
    route: int
    together: int  # ranks that have to be ready
    after: list[_Task] = field(default_factory=list)
    start: int | None = None
    end: int | None = None


@dataclass
class Outcome:
    rows: list[tuple[int, ...]]  # rank, block, iteration, position, start, end; sorted
    busy: list[int]  # [ps] per link


def run(schedule: Schedule) -> Outcome:
    """Step from one moment at which something happens to the next."""
    tasks = _unroll(schedule)
    busy = [0] * len(schedule.links)
    now = 0
    while True:
        while _start_and_end(tasks, now):
            pass
        underway = [task for task in tasks if task.start is not None and task.end is None]
        if not underway:
            assert all(task.end is not None for task in tasks), "deadlock"
            return Outcome(sorted((*t.place, t.start or 0, t.end or 0) for t in tasks), busy)
        flows = [task for task in underway if not task.fixed]
        demands = [
            Demand(
                schedule.routes[t.route].hops[t.place[0]],
                schedule.routes[t.route].cap,
                schedule.routes[t.route].weight,
            )
            for t in flows
        ]
        rates = [int(rate) for rate in fair_by_filling(demands, [link.capacity for link in schedule.links])]
        waits = [task.fixed for task in underway if task.fixed]
        waits += [-(-task.work // rate) for task, rate in zip(flows, rates, strict=True)]
        step = min(waits)
        for task in underway:
            if task.fixed:
                task.fixed -= step
        for task, rate in zip(flows, rates, strict=True):
            task.work = max(0, task.work - rate * step)
        for link in {link for demand in demands for link, _ in demand.hops}:
            busy[link] += step
        now += step


def _unroll(schedule: Schedule) -> list[_Task]:
    """All tasks in the order in which they are written, each operation once for every rank that does it."""
    programs = schedule.programs or [Program("", range(schedule.ranks), range(len(schedule.streams)))]
    tasks: dict[tuple[int, int], list[_Task]] = {}  # by rank and stream
    number = 0
    for b, block in enumerate(schedule.blocks):
        for iteration in range(block.repeat):
            for position, op in enumerate(block.ops):
                (ranks,) = [program.ranks for program in programs if op.stream in program.streams]
                number += 1
                made = []
                for rank in ranks:
                    place = (rank, b, iteration, position)
                    work = op.size * PICO
                    task = _Task(
                        place, number, op.stream, op.fixed, work, op.route, len(ranks) if op.collective else 1
                    )
                    task.after.extend(tasks.get((rank, op.stream), [])[-1:])
                    for stream, back, peers in op.after:
                        for other in [rank] if peers == -1 else schedule.peers[peers][rank]:
                            earlier = tasks.get((other, stream), [])
                            if back < len(earlier):
                                task.after.append(earlier[-1 - back])
                    made.append(task)
                for task in made:  # what ranks wait for of each other was written before
                    tasks.setdefault((task.place[0], op.stream), []).append(task)
    return [task for own in tasks.values() for task in own]


def _start_and_end(tasks: list[_Task], now: int) -> bool:
    """Start and end what can be now; return whether anything changed."""
    changed = False
    for task in tasks:
        if task.start is not None and task.end is None and not task.fixed and not task.work:
            task.end = now
            changed = True
    ready = [t for t in tasks if t.start is None and all(other.end is not None for other in t.after)]
    for task in ready:
        same = [other for other in ready if other.number == task.number]
        if len(same) >= task.together:
            task.start = now
            changed = True
    return changed
