"""Rates of transfers of ranks that meet on a link by chance and not in step."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import mean

import pytest

from simoffload.engine import execute, meetings, ranks_out_of_step
from simoffload.results import Timeline
from simoffload.schedule import Block, Dependency, Link, Op, Program, Route, Schedule, link_loads, link_time

_MS, _MB = 10**9, 10**6
_ALONE = 50_000_000_000
HOST, COPY = 0, 1


def copying(
    *, work: int, size: int, capacity: int, ranks: int = 4, sockets: int = 1, times: int = 40
) -> Schedule:
    """Ranks whose host threads work for ``work`` [ps] and then wait for a copy of ``size`` [B], in turn.

    All ranks share a memory of ``capacity`` [B/s]; the ranks of a socket share 60 % of it.
    """
    links = (Link("memory", capacity), *(Link(f"socket{i}", capacity * 6 // 10) for i in range(sockets)))
    hops = tuple(
        ((0, 1), *([(1 + rank * sockets // ranks, 1)] if sockets > 1 else [])) for rank in range(ranks)
    )
    ops = (
        Op("hook", "", HOST, fixed=work, after=(Dependency(COPY),)),
        Op("copy", "", COPY, size=size, route=0, after=(Dependency(HOST),)),
    )
    route = Route("host to GPU", hops, _ALONE)
    return Schedule("pass", ranks, ("host", "copy"), links, (route,), (Block("b", ops, times),))


def out_of_step(schedule: Schedule) -> Timeline:
    return execute(ranks_out_of_step(schedule, meetings(execute(schedule))))


def copy_rate(timeline: Timeline) -> float:
    """Mean rate [B/s] of the copies of all ranks."""
    size = time = 0
    for one in timeline:
        if one.op.kind == "copy":
            size, time = size + one.op.size, time + one.end - one.start
    return size / (time * 1e-12)


def test_two_ranks_share_a_link_for_the_part_of_the_time_in_which_both_copy() -> None:
    """x = mean rate, u = share of the time: x = (1 - u) a + u C / 2 and u = (S / x) / (h + S / x)."""
    times = 10**7  # phases have drifted far apart for almost all of them
    schedule = copying(work=2 * _MS, size=100 * _MB, capacity=60_000_000_000, ranks=2, times=times)
    share = 0.5
    for _ in range(100):
        rate = (1 - share) * _ALONE + share * 30e9
        share = (1e8 / rate) / (2e-3 + 1e8 / rate)
    (met,) = meetings(execute(schedule)).values()
    assert met.probability == pytest.approx(share, rel=0.005)
    assert out_of_step(schedule).makespan * 1e-12 == pytest.approx(times * (2e-3 + 1e8 / rate), rel=0.005)


def test_long_transfers_after_little_work_stay_in_step() -> None:
    """A millisecond of work, and then a second of reading."""
    schedule = copying(work=_MS, size=50_000 * _MB, capacity=100_000_000_000)
    assert meetings(execute(schedule))["host to GPU"].probability > 0.99
    assert out_of_step(schedule).makespan == pytest.approx(execute(schedule).makespan, rel=0.01)


@pytest.mark.parametrize(("capacity", "ranks"), [(4 * _ALONE, 4), (_ALONE // 3, 1)])
def test_links_that_carry_all_ranks_at_once_change_nothing(capacity: int, ranks: int) -> None:
    schedule = copying(work=_MS, size=10 * _MB, capacity=capacity, ranks=ranks)
    assert meetings(execute(schedule)) == {}
    assert ranks_out_of_step(schedule, {}) == schedule


def test_ranks_that_do_nothing_but_copy_stay_at_the_rate_of_the_link() -> None:
    schedule = copying(work=0, size=100 * _MB, capacity=100_000_000_000)
    assert out_of_step(schedule).makespan == pytest.approx(execute(schedule).makespan, rel=1e-3)


@pytest.mark.parametrize("work", [_MS // 10, _MS, 5 * _MS])
@pytest.mark.parametrize("capacity", [20, 60, 110, 180])
@pytest.mark.parametrize("ranks", [2, 3, 5, 7, 8])
@pytest.mark.parametrize("sockets", [1, 2])
def test_no_link_carries_more_than_it_can_and_ranks_in_step_are_never_faster(
    work: int, capacity: int, ranks: int, sockets: int
) -> None:
    schedule = copying(
        work=work, size=80 * _MB, capacity=capacity * 10**9, ranks=ranks, sockets=sockets, times=20
    )
    timeline = out_of_step(schedule)
    busiest = max(map(link_time, link_loads(schedule), schedule.links))
    assert busiest * 0.999 <= timeline.makespan <= execute(schedule).makespan * 1.001
    for load, link, busy in zip(timeline.link_loads, schedule.links, timeline.link_busy, strict=True):
        assert link_time(load, link) <= busy * 1.001
        assert busy <= timeline.makespan * 1.001


def test_a_faster_link_is_never_slower() -> None:
    """At one per cent more each, through the rates at which ranks stop to meet."""
    times = [
        out_of_step(
            copying(work=2 * _MS, size=50 * _MB, capacity=int(6e10 * 1.01**step), ranks=8, sockets=2)
        ).makespan
        for step in range(230)
    ]
    assert all(later < 1.001 * earlier for earlier, later in pairwise(times))
    assert times[-1] < 0.5 * times[0]


def test_shortcuts_change_nothing() -> None:
    schedule = copying(work=2 * _MS, size=100 * _MB, capacity=120_000_000_000, ranks=8, sockets=2)
    in_step = execute(schedule)
    eased = ranks_out_of_step(schedule, meetings(in_step))
    short, full = execute(eased), execute(eased, rank_symmetry=False, steady_state=False)
    assert len(short.classes) == 1
    assert (short.makespan, short.link_bytes) == (full.makespan, full.link_bytes)
    assert (short.link_busy, short.link_saturated) == (full.link_busy, full.link_saturated)
    assert short.link_bytes == in_step.link_bytes
    assert short.makespan < 0.95 * in_step.makespan


def test_gains_are_the_rates_over_those_in_step() -> None:
    schedule = copying(work=2 * _MS, size=50 * _MB, capacity=120_000_000_000, ranks=8, sockets=2)
    in_step = execute(schedule)
    ((name, met),) = meetings(in_step).items()
    assert name == "host to GPU"
    assert copy_rate(out_of_step(schedule)) / copy_rate(in_step) == pytest.approx(met.gain, rel=2e-3)


@pytest.mark.parametrize("numbers", [(0, 0, 1), (0, 1, 0), (1, 0, 0)])
def test_ranks_that_meet_nobody_keep_their_rate(numbers: tuple[int, ...]) -> None:
    """Two ranks share a switch, the third has one to itself; whichever it is."""
    schedule = copying(work=2 * _MS, size=100 * _MB, capacity=10**15, ranks=3)
    links = (Link("switch", 60_000_000_000), Link("other switch", 60_000_000_000))
    route = schedule.routes[0]._replace(hops=tuple(((number, 1),) for number in numbers))
    schedule = schedule._replace(links=links, routes=(route,))
    eased = ranks_out_of_step(schedule, meetings(execute(schedule)))
    timeline = execute(eased, rank_symmetry=False)
    lengths = {one.rank: one.end - one.start for one in timeline if one.op.kind == "copy"}
    (lone,) = (rank for rank, number in enumerate(numbers) if numbers.count(number) == 1)
    together = {length for rank, length in lengths.items() if rank != lone}
    assert lengths[lone] == 2 * _MS < min(together)
    assert len(together) == 1


@pytest.mark.parametrize(
    "order", [(0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 0, 1, 0, 1), (0, 1, 1, 0, 0, 1, 1, 0)]
)
def test_the_numbers_of_ranks_do_not_matter(order: tuple[int, ...]) -> None:
    schedule = copying(work=2 * _MS, size=50 * _MB, capacity=120_000_000_000, ranks=8, sockets=2)
    hops = tuple(((0, 1), (1 + socket, 1)) for socket in order)
    other = schedule._replace(routes=(schedule.routes[0]._replace(hops=hops),))
    assert out_of_step(other).makespan == out_of_step(schedule).makespan


def test_ranks_of_other_hosts_are_not_met() -> None:
    """A hundred hosts of eight ranks are as fast as one."""
    one = copying(work=2 * _MS, size=100 * _MB, capacity=120_000_000_000, ranks=8)
    hops = tuple(((rank // 8, 1),) for rank in range(800))
    links = tuple(Link(f"memory{host}", 120_000_000_000) for host in range(100))
    many = one._replace(ranks=800, links=links, routes=(one.routes[0]._replace(hops=hops),))
    assert out_of_step(many).makespan == out_of_step(one).makespan < execute(one).makespan


def test_too_many_different_ranks_stay_in_step() -> None:
    """Hosts that share a file server, each behind a port of its own."""
    one = copying(work=2 * _MS, size=100 * _MB, capacity=80_000_000_000)
    hops = tuple(((0, 1), (1 + rank // 4, 1)) for rank in range(40))
    links = (Link("server", 10**11), *(Link(f"port{host}", 10**11) for host in range(10)))
    many = one._replace(ranks=40, links=links, routes=(one.routes[0]._replace(hops=hops),))
    assert meetings(execute(many)) == {}


def drifting(*, work: int, size: int, capacity: int, ranks: int, seed: int) -> Schedule:
    """Ten such passes on ranks of which each is a program, and whose work varies: its variance is that of
    pieces of 0.12 ms that vary by a tenth."""
    draw = random.Random(seed)
    deviation = 0.1 * (0.12 * _MS * work) ** 0.5
    ops = []
    for _ in range(400):
        for rank in range(ranks):
            host, copy = 2 * rank, 2 * rank + 1
            fixed = max(0, int(draw.gauss(work, deviation)))
            ops += [
                Op("hook", "", host, fixed=fixed, after=(Dependency(copy),)),
                Op("copy", "", copy, size=size, route=rank, after=(Dependency(host),)),
            ]
    routes = tuple(
        Route(f"copy {own}", tuple(((0, 1),) if rank == own else () for rank in range(ranks)), _ALONE)
        for own in range(ranks)
    )
    programs = tuple(
        Program(str(rank), range(rank, rank + 1), range(2 * rank, 2 * rank + 2)) for rank in range(ranks)
    )
    return Schedule(
        "passes",
        ranks,
        ("host", "copy") * ranks,
        (Link("memory", capacity),),
        routes,
        (Block("b", tuple(ops)),),
        programs=programs,
    )


@pytest.mark.parametrize(("work", "size"), [(2, 20), (2, 100), (1, 20), (1, 200)])
@pytest.mark.parametrize(
    ("ranks", "capacity"), [(2, 60), (3, 90), (4, 80), (4, 120), (4, 170), (8, 180), (8, 340)]
)
def test_the_rule_agrees_with_ranks_whose_work_varies(
    work: int, size: int, ranks: int, capacity: int
) -> None:
    """Ranks in step are up to 57 % too slow."""
    own = {"work": work * _MS, "size": size * _MB, "capacity": capacity * 10**9, "ranks": ranks}
    real = mean(copy_rate(execute(drifting(**own, seed=seed))) for seed in range(3))
    rule = copy_rate(out_of_step(copying(**own)))
    in_step = copy_rate(execute(copying(**own)))
    assert rule == pytest.approx(real, rel=0.13)
    assert abs(rule - real) < abs(in_step - real)
