"""A timeline that repeats, looked at without writing it out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.results.attribution import critical_path, last_of
from simoffload.results.timeline import Timeline
from simoffload.schedule import Block, Dependency, Op, Schedule
from tests.engine.generated import long_schedules, program_schedules


@pytest.fixture
def timeline() -> Timeline:
    """Two ranks that are alike; 1000 layers of 3 + 4 ps, of which the second stage lags behind."""
    ops = (Op("hook", "", 0, fixed=3), Op("compute", "", 1, fixed=4, after=(Dependency(0),)))
    throttled = (ops[0]._replace(after=(Dependency(1, 1),)), ops[1])
    return execute(Schedule("s", 2, ("a", "b"), (), (), (Block("layer", throttled, 1000),)))


def test_one_period_is_kept_and_counted(timeline: Timeline) -> None:
    assert timeline.entries < 20
    assert len(timeline) == 4000
    assert timeline.classes == ((0, 1),)
    assert [len(track) for track in timeline.tracks] == [1000, 1000]


def test_single_operations_are_found_where_they_are(timeline: Timeline) -> None:
    """A layer takes 4 ps once the first hook is over."""
    assert timeline.makespan == 3 + 1000 * 4
    assert timeline.start_of(0, 500, 1, rank=1) == 3 + 500 * 4
    for place in ((0, 1000, 1), (0, -1, 1), (1, 0, 0), (0, 0, 2), (0, 0, -1)):
        with pytest.raises(KeyError):
            timeline.start_of(*place)
    for ask in (lambda: timeline.start_of(0, 0, 0, rank=2), lambda: timeline.during(0, 9, rank=2)):
        with pytest.raises(KeyError):
            ask()
    hooks, computations = timeline.tracks
    assert computations.end_of(999) == timeline.makespan
    for ordinal in (-1, 1000):
        with pytest.raises(IndexError):
            hooks.end_of(ordinal)


def test_the_chain_is_counted_and_not_walked(timeline: Timeline) -> None:
    last = last_of(timeline)
    assert last is not None
    links = critical_path(timeline, last)
    assert len(links) < 30
    assert sum(times for _, _, times in links) == 1001


@given(long_schedules() | program_schedules(), st.data())
def test_parts_are_those_of_the_whole(schedule: Schedule, data: st.DataObject) -> None:
    timeline = execute(schedule)
    all_operations = list(timeline)
    assert timeline.makespan == max(one.end for one in all_operations)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, timeline.makespan)] * 2)))
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    inside = [
        one for one in all_operations if one.rank == rank and one.start < end and one.end > start != one.end
    ]
    assert timeline.during(start, end, rank=rank) == [one for one in inside if one.end > one.start]
    index = data.draw(st.integers(0, len(all_operations) - 1))
    one = all_operations[index]
    position = next(p for p, op in enumerate(schedule.blocks[one.block].ops) if op is one.op)
    assert timeline.start_of(one.block, one.iteration, position, rank=one.rank) == one.start
