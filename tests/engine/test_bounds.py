"""Bounds in closed form, and the case in which each of them is reached."""

from __future__ import annotations

from simoffload.engine import execute
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule
from simoffload.schedule.checks import (
    alone_rate,
    link_loads,
    link_time,
    stream_times,
)
from tests.engine.bounds import lower_bound, serial_time
from tests.engine.generated import slowed

SECOND = 10**12


def story(*ops: Op, repeat: int = 1, ranks: int = 2) -> Schedule:
    """Every rank reads over a shared link of 100 B/s at no more than 80 B/s, and has 50 B/s of its own."""
    links = (Link("shared", 100), *(Link(f"own{rank}", 3 * 50, 3) for rank in range(ranks)))
    routes = (
        Route(Cause.own("read"), tuple(((0, 1),) for _ in range(ranks)), 80),
        Route(Cause.own("copy"), tuple(((1 + rank, 3),) for rank in range(ranks)), 10**9),
    )
    return Schedule("story", ranks, ("host", "io", "gpu"), links, routes, (Block("layer", ops, repeat),))


WAIT = Op("wait", "", 0, fixed=3 * SECOND)
READ = Op("read", "", 1, fixed=1 * SECOND, size=400, route=0)
COPY = Op("copy", "", 2, size=100, route=1, after=(Dependency(1),))


def test_nothing_takes_no_time() -> None:
    empty = story()._replace(blocks=(), links=(), routes=(), streams=())
    assert lower_bound(empty) == serial_time(empty) == 0


def test_the_rate_of_a_transfer_alone() -> None:
    assert alone_rate(story(), route=0, rank=1) == 80
    assert alone_rate(story(), route=1, rank=1) == 50


def test_the_time_that_streams_and_links_are_occupied() -> None:
    """Rank by rank: host 3 s, io 1 + 400/80 s, gpu 2 s; link by link: 8 s shared, 2 s each rank's own."""
    schedule = story(WAIT, READ, COPY)
    host, io, gpu = (3 * SECOND, 6 * SECOND, 2 * SECOND)
    expected = {(rank, stream): time for rank in range(2) for stream, time in enumerate((host, io, gpu))}
    assert stream_times(schedule) == expected
    assert list(map(link_time, link_loads(schedule), schedule.links)) == [8 * SECOND, 2 * SECOND, 2 * SECOND]


def test_serial_time_is_the_sum_over_operations_and_ranks() -> None:
    assert serial_time(story(WAIT, READ, COPY, repeat=4)) == 2 * 4 * (3 + (1 + 5) + 2) * SECOND


def test_the_lower_bound_is_the_busiest_stream() -> None:
    assert lower_bound(story(WAIT, COPY, repeat=4)) == 4 * 3 * SECOND
    assert lower_bound(story(READ, COPY, repeat=4, ranks=1)) == 4 * (1 + 5) * SECOND


def test_the_lower_bound_is_the_busiest_link() -> None:
    """2 ranks x 4 x 400 B over 100 B/s = 32 s; each rank's own stream would take 24 s."""
    assert lower_bound(story(READ, repeat=4)) == 32 * SECOND


def test_one_operation_after_another_takes_the_serial_time() -> None:
    ops = (WAIT, READ._replace(after=(Dependency(0),)), COPY, WAIT._replace(after=(Dependency(2),)))
    schedule = story(*ops, ranks=1)
    assert execute(schedule).makespan == serial_time(schedule)


def test_streams_that_do_not_wait_take_the_lower_bound() -> None:
    schedule = story(WAIT, COPY._replace(after=()), repeat=5)
    assert execute(schedule).makespan == lower_bound(schedule)


def test_halving_rates_and_doubling_times_doubles_to_the_picosecond() -> None:
    schedule = story(WAIT, READ, COPY, repeat=5)
    slow = slowed(schedule, 2)
    for measure in (lower_bound, serial_time, lambda schedule: execute(schedule).makespan):
        assert measure(slow) == 2 * measure(schedule)
