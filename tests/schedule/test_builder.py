"""Equal layers become one block; routes get integer coefficients."""

from __future__ import annotations

from fractions import Fraction

from simoffload.schedule import Block, Dependency, Link, Op
from simoffload.schedule.builder import ScheduleBuilder, fold

A, B, C = (Op("compute", name, 0, fixed=1) for name in "abc")


def test_a_run_of_equal_segments_is_one_block() -> None:
    blocks = fold([("head", (B,)), *[("layer", (A, B))] * 4800, ("tail", (C,))])
    assert blocks == (Block("head", (B,), 1), Block("layer", (A, B), 4800), Block("tail", (C,), 1))


def test_a_pattern_over_several_layers_is_one_block() -> None:
    blocks = fold([("layer", (A,)), ("layer", (B,))] * 10 + [("layer", (C,))])
    assert blocks == (Block("layer", (A, B), 10), Block("layer", (C,), 1))


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
    whole = builder.route(name="whole", hops=(((0, Fraction(1)),),), cap=100)
    striped = builder.route(name="striped", hops=(((0, Fraction(1, 4)), (1, Fraction(1, 6))),), cap=100)
    again = builder.route(name="whole", hops=(((0, Fraction(1)),),), cap=100)
    schedule = builder.build([("uplink", 1000), ("nic", 500)])
    assert (whole, striped, again) == (0, 1, 0)
    assert schedule.links == (Link("uplink", 4000, 4), Link("nic", 3000, 6))
    assert schedule.routes[0].hops == (((0, 4),),)
    assert schedule.routes[1].hops == (((0, 1), (1, 1)),)
