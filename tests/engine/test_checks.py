"""What is refused before the clock starts, and how it is said."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.engine import execute
from simoffload.errors import SimulationError
from simoffload.schedule import Block, Cause, Dependency, Device, Link, Op, Program, Route, Schedule
from simoffload.schedule.checks import check_schedule

OP = Op("copy", "fc1", 1, fixed=5, size=100, route=0, after=(Dependency(0, 2),))
ROUTE = Route(Cause.own("h2d"), (((0, 1),), ((1, 2),)), 50)
GOOD = Schedule(
    "story", 2, ("host", "copy"), (Link("a", 100), Link("b", 100)), (ROUTE,), (Block("layer", (OP,), 3),)
)


def with_op(**changes: Any) -> Schedule:
    return GOOD._replace(blocks=(Block("layer", (OP, OP._replace(**changes)), 3),))


def with_route(**changes: Any) -> Schedule:
    return GOOD._replace(routes=(ROUTE._replace(**changes),))


def with_link(**changes: Any) -> Schedule:
    return GOOD._replace(links=(GOOD.links[0], GOOD.links[1]._replace(**changes)))


TWO = GOOD._replace(
    devices=(Device("host thread"), Device("GPU")),
    programs=(Program("prefill", range(1), range(1)), Program("decode", range(1, 2), range(1, 2))),
    peers=(((), (0,)), ((), (1,))),
    blocks=(Block("layer", (OP._replace(after=(Dependency(0, 2, 0), Dependency(1, 0, 1))),), 3),),
)
"""Rank 1 waits for rank 0 of another program, and by way of the second peers for itself."""


def with_programs(*programs: Program) -> Schedule:
    return TWO._replace(programs=programs)


def waiting(*after: Dependency) -> Schedule:
    return TWO._replace(blocks=(Block("layer", (OP._replace(after=after),), 3),))


def test_a_valid_schedule_passes() -> None:
    check_schedule(GOOD)
    check_schedule(TWO)
    check_schedule(TWO)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (GOOD._replace(ranks=0), "ranks is 0; it must be at least 1"),
        (GOOD._replace(ranks=2**16 + 1), "ranks is 65537; it must be at most 65536"),
        (GOOD._replace(ranks=True), "ranks is True (bool); it must be an int"),
        (GOOD._replace(ranks=3), "route 'h2d': it has hops for 2 ranks; the schedule has 3"),
        (GOOD._replace(streams=("host", "host")), "two streams are called 'host'"),
        (with_link(name="a"), "two links are called 'a'"),
        (with_link(capacity=0), "link 'b': capacity [B/s] is 0; it must be at least 1"),
        (with_link(capacity=1e9), "link 'b': capacity [B/s] is 1000000000.0 (float); it must be an int"),
        (with_link(scale=0), "link 'b': scale is 0; it must be at least 1"),
        (with_route(cap=0), "route 'h2d': cap [B/s] is 0; it must be at least 1"),
        (with_route(weight=-1), "route 'h2d': weight is -1; it must be at least 1"),
        (with_route(weight=0.5), "route 'h2d': weight is 0.5 (float); it must be an int"),
        (
            with_route(hops=(((2, 1),), ())),
            "route 'h2d': on rank 0, link 2 does not exist; there are 2, numbered from 0",
        ),
        (with_route(hops=((), ((-1, 1),))), "route 'h2d': on rank 1, link -1 does not exist"),
        (
            with_route(hops=((), ((1, 0),))),
            "route 'h2d': on rank 1, coefficient on 'b' is 0; it must be at least 1",
        ),
        (
            with_route(hops=((), ((1, 101),))),
            "route 'h2d': on rank 1, coefficient on 'b' is 101; it must be at most 100",
        ),
        (
            with_route(hops=(((0, 1), (0, 1)), ())),
            "route 'h2d': on rank 0, it crosses 'a' twice; add the coefficients instead",
        ),
        (
            GOOD._replace(blocks=(Block("layer", (OP,), 0),)),
            "block 0 ('layer'): repeat is 0; it must be at least 1",
        ),
        (
            GOOD._replace(blocks=(Block("layer", (), 2**32),)),
            "block 0 ('layer'): repeat is 4294967296; it must be at most 4294967295",
        ),
        (
            with_op(stream=2),
            "block 0 ('layer'), operation 1 (copy 'fc1'): stream 2 does not exist; there are 2,",
        ),
        (with_op(fixed=-1), "operation 1 (copy 'fc1'): fixed [ps] is -1; it must be at least 0"),
        (with_op(fixed=1.5), "fixed [ps] is 1.5 (float); it must be an int"),
        (with_op(size=-1), "size [B] is -1; it must be at least 0"),
        (with_op(route=1), "route 1 does not exist; there are 1, numbered from 0"),
        (with_op(route=-2), "route -2 does not exist"),
        (with_op(route=-1), "it moves 100 B but has no route"),
        (with_op(after=(Dependency(2),)), "it depends on stream 2 does not exist"),
        (with_op(after=(Dependency(0, -1),)), "its dependency's count back is -1; it must be at least 0"),
        (with_op(after=(Dependency(0, 0, 0),)), "its dependency's peers 0 does not exist; there are 0,"),
        (TWO._replace(devices=TWO.devices[:1]), "it has 1 devices for 2 streams"),
        (
            TWO._replace(devices=(Device("GPU", -1), Device("GPU"))),
            "stream 'host': number of its GPU is -1; it must be at least 0",
        ),
        (
            GOOD._replace(streams=("copy", "copy"), devices=(Device("GPU"), Device("GPU"))),
            "two streams are called 'GPU 0 copy'",
        ),
        (
            with_programs(TWO.programs[0], TWO.programs[1]._replace(name="prefill")),
            "two programs are called 'prefill'",
        ),
        (with_programs(TWO.programs[0]), "its programs have 1 ranks; the schedule has 2"),
        (
            with_programs(*[one._replace(ranks=range(2)) for one in TWO.programs]),
            "program 'decode': its ranks are range(0, 2); they must be those from 2 on, at least one",
        ),
        (
            with_programs(Program("none", range(0), range(1)), *TWO.programs),
            "program 'none': its ranks are range(0, 0); they must be those from 0 on, at least one",
        ),
        (
            with_programs(TWO.programs[0], TWO.programs[1]._replace(streams=range(1, 3))),
            "its programs have 3 streams; the schedule has 2",
        ),
        (TWO._replace(peers=(((0,),),)), "peers 0: it has 1 ranks; the schedule has 2"),
        (
            TWO._replace(peers=(((), (2,)),)),
            "peers 0, of rank 1: rank 2 does not exist; there are 2, numbered from 0",
        ),
        (
            waiting(Dependency(0)),
            "it depends on stream 'prefill: host' of another program; its peers must name the ranks",
        ),
        (waiting(Dependency(0, 0, 1)), "rank 1 waits for rank 1, which has no stream 'prefill: host'"),
        (waiting(Dependency(0, -1, 0)), "its dependency's count back is -1; it must be at least 0"),
        (
            waiting(Dependency(0, 0, 2)),
            "its dependency's peers 2 does not exist; there are 2,",
        ),
        (with_op(after=(Dependency(0, 0, -2),)), "its dependency's peers -2 does not exist"),
    ],
)
def test_every_problem_has_a_message(broken: Schedule, message: str) -> None:
    with pytest.raises(SimulationError) as caught:
        execute(broken)
    assert str(caught.value).startswith("schedule 'story' cannot be run: ")
    assert message in str(caught.value)


def test_blocks_of_a_known_frame_are_still_checked() -> None:
    """Passes share what stands around their blocks; another program may not wait as the first one did."""
    check_schedule(TWO)
    for other in (waiting(Dependency(0, 0, 1)), TWO._replace(peers=TWO.peers[1:] * 2)):
        with pytest.raises(SimulationError, match="rank 1 waits for rank 1, which has no stream"):
            check_schedule(other)


def test_a_route_without_a_transfer_is_fine() -> None:
    check_schedule(with_op(size=0))
    check_schedule(with_op(size=0, route=-1))
