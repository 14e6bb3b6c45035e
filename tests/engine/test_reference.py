"""The engine against its slow twin, and what must hold for any schedule."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.engine import execute, network
from simoffload.results.timeline import Timeline
from simoffload.schedule import Block, Link, Route, Schedule
from tests.engine import reference
from tests.engine.bounds import lower_bound, serial_time
from tests.engine.generated import program_schedules, schedules, slowed
from tests.examples import some


def rows(timeline: Timeline) -> list[tuple[int, ...]]:
    return sorted(zip(*timeline.all_operations, strict=True))


@settings(max_examples=some(60))
@given(schedules())
def test_agrees_with_the_slow_engine_to_the_picosecond(schedule: Schedule) -> None:
    timeline = execute(schedule)
    expected = reference.run(schedule)
    assert rows(timeline) == expected.rows
    assert list(timeline.link_busy) == expected.busy


@settings(max_examples=some(25))
@given(program_schedules(most=4))
def test_agrees_with_it_on_two_programs(schedule: Schedule) -> None:
    timeline = execute(schedule)
    expected = reference.run(schedule)
    assert rows(timeline) == expected.rows
    assert list(timeline.link_busy) == expected.busy
    assert sum(map(len, timeline.tracks)) <= schedule.operations == len(timeline)


@given(schedules())
def test_every_link_carries_what_the_schedule_puts_on_it(schedule: Schedule) -> None:
    timeline = execute(schedule)
    carried: Counter[int] = Counter()
    for block in schedule.blocks:
        for op in block.ops:
            for hops in schedule.routes[op.route].hops:
                for link, coefficient in hops:
                    carried[link] += op.size * coefficient * block.repeat
    for index, (capacity, scale) in enumerate((link.capacity, link.scale) for link in schedule.links):
        assert timeline.link_bytes[index] == carried[index] // scale
        assert carried[index] * 10**12 <= capacity * timeline.link_busy[index]
        assert timeline.link_saturated[index] <= timeline.link_busy[index] <= timeline.makespan


@given(schedules() | program_schedules())
def test_the_makespan_is_between_the_bounds(schedule: Schedule) -> None:
    makespan = execute(schedule).makespan
    assert lower_bound(schedule) <= makespan
    # Rates of flows that share are rounded down to 1 B/s, here of 10^6 B/s over at most a dozen flows.
    assert makespan <= serial_time(schedule) * (1 + 1e-4)


@given(schedules())
def test_repeating_a_block_is_writing_it_again(schedule: Schedule) -> None:
    unrolled = [Block(block.name, block.ops) for block in schedule.blocks for _ in range(block.repeat)]
    one = Block("all", tuple(op for block in unrolled for op in block.ops))
    whole = execute(schedule)
    for blocks in (tuple(unrolled), (one,)):
        again = execute(schedule._replace(blocks=blocks))
        ours, theirs = again.all_operations, whole.all_operations
        assert (ours.rank, ours.start, ours.end) == (theirs.rank, theirs.start, theirs.end)
        assert again.link_saturated == whole.link_saturated


@given(schedules())
def test_half_the_rates_and_twice_the_times_take_twice_as_long(schedule: Schedule) -> None:
    """Up to rounding; `test_executor` has the exact case."""
    makespan = execute(schedule).makespan
    slow = execute(slowed(schedule, 2)).makespan
    operations = schedule.ranks * sum(len(block.ops) * block.repeat for block in schedule.blocks)
    assert slow == pytest.approx(2 * makespan, rel=1e-4, abs=4 * operations)


@given(schedules(), st.sampled_from([0, 3, 20]))
def test_forgetting_solutions_changes_nothing(schedule: Schedule, remembered: int) -> None:
    timeline = execute(schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "_REMEMBERED", remembered)
        again = execute(schedule)
    assert again == timeline


@given(schedules())
def test_ranks_on_links_of_their_own_do_not_know_of_each_other(schedule: Schedule) -> None:
    """Rank 0 alone gives the times that every rank has when each has its own copy of the links."""
    alone = schedule._replace(
        ranks=1, routes=tuple(route._replace(hops=route.hops[:1]) for route in schedule.routes)
    )
    count = len(schedule.links)
    links = tuple(Link(f"{link.name}.{rank}", link.capacity) for rank in range(3) for link in schedule.links)
    routes = tuple(
        Route(
            route.cause,
            tuple(tuple((link + rank * count, c) for link, c in route.hops[0]) for rank in range(3)),
            route.cap,
            route.weight,
        )
        for route in schedule.routes
    )
    apart = execute(schedule._replace(ranks=3, links=links, routes=routes))
    single = [row[1:] for row in rows(execute(alone))]
    for rank in range(3):
        assert [row[1:] for row in rows(apart) if row[0] == rank] == single
