"""Equal layers become one block; routes get integer coefficients."""

from __future__ import annotations

from fractions import Fraction

import pytest

from simoffload.errors import WorkLimitError
from simoffload.limits import Limits, keep, limited
from simoffload.schedule import Block, Cause, Dependency, Device, Link, Op, Program
from simoffload.schedule.builder import ScheduleBuilder

A, B, C = (Op("compute", name, 0, fixed=1) for name in "abc")


def blocks_of(*segments: tuple[str, tuple[Op, ...]]) -> tuple[Block, ...]:
    builder = ScheduleBuilder(name="pass", ranks=1, streams=("gpu",))
    for name, ops in segments:
        builder.segment(name)
        for op in ops:
            builder.add(op)
    return builder.build([]).blocks


def test_a_run_of_equal_segments_is_one_block() -> None:
    blocks = blocks_of(("head", (B,)), *[("layer", (A, B))] * 4800, ("tail", (C,)))
    assert blocks == (Block("head", (B,), 1), Block("layer", (A, B), 4800), Block("tail", (C,), 1))


def test_a_pattern_over_several_layers_is_one_block() -> None:
    blocks = blocks_of(*[("layer", (A,)), ("layer", (B,))] * 10, ("layer", (C,)))
    assert blocks == (Block("layer", (A, B), 10), Block("layer", (C,), 1))


def test_a_segment_that_is_written_again_is_equal() -> None:
    """Blocks, operations per stream, and the limit on their number are those of a segment written twice."""
    builder = ScheduleBuilder(name="pass", ranks=2, streams=("gpu",))
    builder.segment("layer")
    builder.add(A)
    builder.add(B)
    builder.again()
    builder.segment("tail")
    assert builder.written == [4]
    builder.add(C)
    assert builder.build([]).blocks == blocks_of(*[("layer", (A, B))] * 2, ("tail", (C,)))

    @limited
    def write() -> None:
        keep(Limits(max_events=5000))
        for _ in range(4000):
            builder.again()

    with pytest.raises(WorkLimitError):
        write()


def test_an_earlier_segment_is_written_again_by_its_number() -> None:
    builder = ScheduleBuilder(name="pass", ranks=1, streams=("gpu",))
    for op in (A, B):
        builder.segment("layer")
        builder.add(op)
    builder.again(0)
    builder.again(1)
    assert builder.written == [4]
    assert builder.build([]).blocks == (Block("layer", (A, B), 2),)


def test_dependencies_count_back_so_equal_layers_are_equal() -> None:
    builder = ScheduleBuilder(name="pass", ranks=1, streams=("host", "gpu"))
    for _ in range(3):
        builder.segment("layer")
        launch = builder.add(Op("launch", "x", 0, fixed=5))
        builder.add(Op("compute", "x", 1, fixed=7, after=(builder.after(0, launch),)))
    schedule = builder.build([])
    assert [block.repeat for block in schedule.blocks] == [3]
    assert schedule.blocks[0].ops[1].after == (Dependency(0, 0),)


def test_shares_become_integers_on_a_scaled_link() -> None:
    builder = ScheduleBuilder(name="pass", ranks=1, streams=("io",))
    whole = builder.route(cause=Cause.own("whole"), hops=(((0, Fraction(1)),),), cap=100)
    striped = builder.route(
        cause=Cause.own("striped"), hops=(((0, Fraction(1, 4)), (1, Fraction(1, 6))),), cap=100
    )
    again = builder.route(cause=Cause.own("whole"), hops=(((0, Fraction(1)),),), cap=100)
    schedule = builder.build([("uplink", 1000), ("nic", 500)])
    assert (whole, striped, again) == (0, 1, 0)
    assert schedule.links == (Link("uplink", 4000, 4), Link("nic", 3000, 6))
    assert schedule.routes[0].hops == (((0, 4),),)
    assert schedule.routes[1].hops == (((0, 1), (1, 1)),)


PROGRAMS = Program("prefill", range(3), range(1)), Program("decode", range(3, 4), range(1, 2))


def test_several_programs_are_written_in_one_order() -> None:
    gpu = Device("GPU")
    builder = ScheduleBuilder(
        name="served", ranks=4, streams=("a", "b"), devices=(gpu, gpu), programs=PROGRAMS
    )
    peers = builder.peers(((), (), (), (0, 1, 2)))
    for _ in range(3):
        builder.segment("request")
        sent = builder.add(Op("compute", "x", 0, fixed=5))
        builder.add(Op("compute", "x", 1, fixed=7, after=(builder.after(0, sent, peers),)))
    schedule = builder.build([])
    assert builder.peers(((), (), (), (0, 1, 2))) == peers == 0
    assert (schedule.programs, schedule.devices) == (PROGRAMS, (gpu, gpu))
    assert schedule.peers == (((), (), (), (0, 1, 2)),)
    assert [(block.repeat, block.ops[1].after) for block in schedule.blocks] == [(3, (Dependency(0, 0, 0),))]
    assert schedule.operations == 3 * (3 + 1)


@limited
def written(operations: int) -> ScheduleBuilder:
    keep(Limits(max_events=4096))
    builder = ScheduleBuilder(name="served", ranks=4, streams=("a", "b"), programs=PROGRAMS)
    for number in range(operations):
        builder.add(Op("compute", "x", number % 2, fixed=number))
    return builder


def test_operations_count_for_the_ranks_of_their_program() -> None:
    """3 and 1 by turns: 2 on average, where all 4 ranks would do 4."""
    assert written(2048).build([]).operations == 4096
    with pytest.raises(WorkLimitError, match="has at least 6,144 operations"):
        written(3072)
