"""Rates of transfers of ranks that meet on a link by chance and not in step."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from simoffload.engine import execute, gains_out_of_step, ranks_out_of_step
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
    in_step = execute(schedule)
    return execute(ranks_out_of_step(in_step, gains_out_of_step(in_step)))


def copy_rate(timeline: Timeline) -> float:
    """Mean rate [B/s] of the copies of all ranks in the second half."""
    size = time = 0
    for one in timeline:
        if one.op.kind == "copy" and 2 * one.start >= timeline.makespan:
            size, time = size + one.op.size, time + one.end - one.start
    return size / (time * 1e-12)


def test_ranks_that_copy_little_have_the_link_to_themselves() -> None:
    """Each copies for a twentieth of the time; in step, two halve each other's rate."""
    schedule = copying(work=2 * _MS, size=5 * _MB, capacity=_ALONE, ranks=2, times=400)
    assert copy_rate(execute(schedule)) == pytest.approx(_ALONE / 2, rel=1e-6)
    assert copy_rate(out_of_step(schedule)) > 0.85 * _ALONE


def test_long_transfers_after_little_work_stay_in_step() -> None:
    """A millisecond of work, and then a second of reading."""
    schedule = copying(work=_MS, size=50_000 * _MB, capacity=100_000_000_000, ranks=2)
    assert out_of_step(schedule).makespan == pytest.approx(execute(schedule).makespan, rel=0.01)


def test_links_that_carry_all_ranks_at_once_change_nothing() -> None:
    schedule = copying(work=_MS, size=10 * _MB, capacity=4 * _ALONE)
    timeline = execute(schedule)
    assert gains_out_of_step(timeline) == {}
    assert ranks_out_of_step(timeline, {}) == schedule


def test_ranks_that_do_nothing_but_copy_stay_at_the_rate_of_the_link() -> None:
    schedule = copying(work=0, size=100 * _MB, capacity=100_000_000_000)
    assert out_of_step(schedule).makespan == pytest.approx(execute(schedule).makespan, rel=1e-3)


@pytest.mark.parametrize("work", [_MS // 10, _MS, 5 * _MS])
@pytest.mark.parametrize("capacity", [20, 60, 110, 180])
@pytest.mark.parametrize("sockets", [1, 2])
def test_no_link_carries_more_than_it_can_and_ranks_in_step_are_never_faster(
    work: int, capacity: int, sockets: int
) -> None:
    schedule = copying(
        work=work, size=80 * _MB, capacity=capacity * 10**9, ranks=8, sockets=sockets, times=20
    )
    timeline = out_of_step(schedule)
    busiest = max(map(link_time, link_loads(schedule), schedule.links))
    assert busiest * 0.999 <= timeline.makespan <= execute(schedule).makespan * 1.001


def test_shortcuts_change_nothing() -> None:
    schedule = copying(work=2 * _MS, size=100 * _MB, capacity=120_000_000_000, ranks=8, sockets=2)
    in_step = execute(schedule)
    eased = ranks_out_of_step(in_step, gains_out_of_step(in_step))
    short, full = execute(eased), execute(eased, rank_symmetry=False, steady_state=False)
    assert len(short.classes) == 1
    assert (short.makespan, short.link_bytes) == (full.makespan, full.link_bytes)
    assert short.link_bytes == in_step.link_bytes
    assert short.makespan < 0.9 * in_step.makespan


def test_ranks_that_meet_nobody_keep_their_rate() -> None:
    """Two ranks share a switch, the third has one to itself."""
    schedule = copying(work=2 * _MS, size=100 * _MB, capacity=10**15, ranks=3)
    links = (Link("switch", 60_000_000_000), Link("other switch", 60_000_000_000))
    route = schedule.routes[0]._replace(hops=(((0, 1),), ((0, 1),), ((1, 1),)))
    schedule = schedule._replace(links=links, routes=(route,))
    in_step = execute(schedule)
    eased = ranks_out_of_step(in_step, gains_out_of_step(in_step))
    timeline = execute(eased, rank_symmetry=False)
    lengths = {one.rank: one.end - one.start for one in timeline if one.op.kind == "copy"}
    assert lengths[2] == 2 * _MS < lengths[0] == lengths[1]


def test_ranks_of_other_hosts_are_not_met() -> None:
    """A hundred hosts of eight ranks are as fast as one."""
    one = copying(work=2 * _MS, size=100 * _MB, capacity=120_000_000_000, ranks=8)
    hops = tuple(((rank // 8, 1),) for rank in range(800))
    links = tuple(Link(f"memory{host}", 120_000_000_000) for host in range(100))
    many = one._replace(ranks=800, links=links, routes=(one.routes[0]._replace(hops=hops),))
    assert out_of_step(many).makespan == out_of_step(one).makespan < execute(one).makespan


def drifting(*, work: int, size: int, capacity: int, seed: int) -> Schedule:
    """Ten such passes on four ranks of which each is a program, and whose work varies: its variance is that
    of pieces of 0.12 ms that vary by a tenth."""
    draw = random.Random(seed)
    deviation = 0.1 * (0.12 * _MS * work) ** 0.5
    ops = []
    for _ in range(400):
        for rank in range(4):
            host, copy = 2 * rank, 2 * rank + 1
            fixed = max(0, int(draw.gauss(work, deviation)))
            ops += [
                Op("hook", "", host, fixed=fixed, after=(Dependency(copy),)),
                Op("copy", "", copy, size=size, route=rank, after=(Dependency(host),)),
            ]
    routes = tuple(
        Route(f"copy {own}", tuple(((0, 1),) if rank == own else () for rank in range(4)), _ALONE)
        for own in range(4)
    )
    programs = tuple(
        Program(str(rank), range(rank, rank + 1), range(2 * rank, 2 * rank + 2)) for rank in range(4)
    )
    return Schedule(
        "passes",
        4,
        ("host", "copy") * 4,
        (Link("memory", capacity),),
        routes,
        (Block("b", tuple(ops)),),
        programs=programs,
    )


@pytest.mark.parametrize(("work", "size"), [(2, 20), (2, 100), (1, 20), (1, 200)])
@pytest.mark.parametrize("capacity", [80, 120, 170])
def test_the_rule_agrees_with_ranks_whose_work_varies(work: int, size: int, capacity: int) -> None:
    own = {"work": work * _MS, "size": size * _MB, "capacity": capacity * 10**9}
    real = mean(copy_rate(execute(drifting(**own, seed=seed))) for seed in range(4))
    rule = copy_rate(out_of_step(copying(**own)))
    in_step = copy_rate(execute(copying(**own)))
    assert abs(rule - real) < 0.5 * abs(in_step - real) or rule == pytest.approx(real, rel=0.05)
