"""Which part of a timeline is drawn."""

from __future__ import annotations

import pytest

from simoffload.engine import execute
from simoffload.report.charts import windows
from simoffload.results import cause_text
from simoffload.results.timeline import Timeline
from simoffload.schedule import Block, Dependency, Op, Program, Schedule


def test_first_layers_and_one_in_the_middle(timeline: Timeline) -> None:
    """Two ranks read 4 GB a layer at 5 GB/s each: a layer takes 0.8 s."""
    first, steady = windows(timeline, most=1000)
    assert first.title == "First layers"
    assert (first.start_s, first.end_s) == pytest.approx((0.0, 0.003 + 2 * 0.8))
    assert steady.title == "Steady state: repetition 7 of 12 of “layer”"
    assert (steady.start_s, steady.end_s) == pytest.approx((0.003 + 6 * 0.8, 0.003 + 7 * 0.8))


def test_what_overlaps_is_there_but_not_own(timeline: Timeline) -> None:
    _, steady = windows(timeline, most=1000)
    found = {(bar.kind, bar.own): (bar.start_s, bar.duration_s, bar.size) for bar in steady.bars}
    assert found[("read", True)] == pytest.approx((4.803, 0.8, 4e9))
    assert found[("copy", False)] == pytest.approx((4.803, 0.201, 4e9)), "of the layer before"
    assert ("copy", True) not in found
    assert {cause_text(bar.cause) for bar in steady.bars} == {"raid read", "host to GPU", "GPU compute"}


def test_only_one_rank_is_shown(timeline: Timeline) -> None:
    first, _ = windows(timeline, most=1000)
    assert [bar.label for bar in first.bars if bar.kind == "hook"].count("embedding") == 1


def test_the_longest_are_kept_in_order(timeline: Timeline) -> None:
    full, _ = windows(timeline, most=1000)
    small, _ = windows(timeline, most=3)
    assert [bar.kind for bar in small.bars] == ["read", "copy", "read"]
    assert small.omitted == len(full.bars) - 3
    assert full.omitted == 0


def test_a_short_pass_has_one_window(short: Timeline) -> None:
    (only,) = windows(short, most=1000)
    assert only.end_s == pytest.approx(0.003 + 0.8 + 0.201 + 0.003 + 0.005)


def test_nothing_recorded_gives_no_window(timeline: Timeline) -> None:
    assert windows(Timeline(timeline.schedule), most=10) == ()


def test_a_pass_that_does_not_repeat_has_a_middle() -> None:
    blocks = tuple(Block(f"part {n}", (Op("compute", "x", 0, fixed=(n + 1) * 10**9),)) for n in range(9))
    _, steady = windows(execute(Schedule("decode 1", 1, ("compute",), (), (), blocks)), most=10)
    assert steady.title == "Steady state: repetition 1 of 1 of “part 4”"
    assert (steady.start_s, steady.end_s) == pytest.approx((0.010, 0.015))


def test_the_first_rank_of_each_program_is_shown() -> None:
    """Two ranks of each stage; a micro-batch takes 1 ms and then 2 ms, which sets the pace."""
    ops = (
        Op("compute", "x", 0, fixed=10**9),
        Op("compute", "y", 1, fixed=2 * 10**9, after=(Dependency(0, 0, 0),)),
    )
    schedule = Schedule(
        "pipeline",
        4,
        ("compute", "compute"),
        (),
        (),
        (Block("micro-batch", ops, 12),),
        programs=(Program("one", range(2), range(1)), Program("two", range(2, 4), range(1, 2))),
        peers=(((), (), (0,), (1,)),),
    )
    first, steady = windows(execute(schedule), most=10, called="micro-batches")
    assert first.ranks == "rank 0 (one), rank 2 (two)"
    assert first.streams == ("one: compute", "two: compute")
    assert (first.start_s, first.end_s) == pytest.approx((0, 0.007))
    assert [(bar.stream, bar.start_s) for bar in first.bars if bar.own] == [
        *(("one: compute", pytest.approx(i * 1e-3)) for i in range(3)),
        *(("two: compute", pytest.approx(1e-3 + i * 2e-3)) for i in range(3)),
    ]
    assert (steady.start_s, steady.end_s) == pytest.approx((0.013, 0.015))
