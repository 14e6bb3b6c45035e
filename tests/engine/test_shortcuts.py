"""Rank symmetry, steady states and both: the same as the full run in every interval and every counter."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.errors import SimulationError, WorkLimitError
from simoffload.limits import Limits, keep, limited
from simoffload.results.attribution import attribute
from simoffload.results.timeline import Interval, Timeline
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule
from tests.engine.generated import long_schedules, nested_schedules, program_schedules, schedules
from tests.examples import some

SECOND = 10**12

WAYS = [(True, False), (False, True), (True, True)]


def totals(timeline: Timeline) -> tuple[object, ...]:
    return (
        len(timeline),
        timeline.makespan,
        timeline.link_bytes,
        timeline.link_busy,
        timeline.link_saturated,
    )


def intervals(timeline: Timeline) -> list[Interval]:
    return sorted(timeline, key=lambda one: (one.rank, one.op.stream, one.block, one.iteration, one.start))


def agree(schedule: Schedule) -> list[Timeline]:
    full = execute(schedule, rank_symmetry=False, steady_state=False)
    found = []
    for rank_symmetry, steady_state in WAYS:
        short = execute(schedule, rank_symmetry=rank_symmetry, steady_state=steady_state)
        assert totals(short) == totals(full)
        assert sorted(zip(*short.all_operations, strict=True)) == sorted(
            zip(*full.all_operations, strict=True)
        )
        found.append(short)
    assert list(found[1]) == list(full), "without folding the order is the same, too"
    assert intervals(found[2]) == intervals(full)
    return found


@settings(max_examples=some(20))
@given(long_schedules())
def test_on_topologies_and_schedules_with_identical_ranks(schedule: Schedule) -> None:
    agree(schedule)


@settings(max_examples=some(20))
@given(schedules())
def test_on_topologies_and_schedules_of_any_kind(schedule: Schedule) -> None:
    agree(schedule)


@settings(max_examples=some(20))
@given(program_schedules())
def test_on_two_programs_that_wait_for_each_other(schedule: Schedule) -> None:
    agree(schedule)


@settings(max_examples=some(20))
@given(nested_schedules())
def test_where_blocks_come_again(schedule: Schedule) -> None:
    agree(schedule)


@given(long_schedules() | program_schedules() | nested_schedules())
def test_what_determined_the_time_is_the_same(schedule: Schedule) -> None:
    full = attribute(execute(schedule, rank_symmetry=False, steady_state=False))
    for rank_symmetry, steady_state in WAYS:
        assert attribute(execute(schedule, rank_symmetry=rank_symmetry, steady_state=steady_state)) == full


@given(long_schedules(), st.randoms(use_true_random=False))
def test_ranks_have_no_order(schedule: Schedule, random: Random) -> None:
    """Ranks under other numbers do the same: nothing breaks ties by rank, which is what folding rests on."""
    order = list(range(schedule.ranks))
    random.shuffle(order)
    routes = tuple(
        route._replace(hops=tuple(route.hops[rank] for rank in order)) for route in schedule.routes
    )
    other = execute(schedule._replace(routes=routes), rank_symmetry=False, steady_state=False)
    renamed = [one._replace(rank=order[one.rank]) for one in other]
    assert sorted(renamed, key=_place) == sorted(
        execute(schedule, rank_symmetry=False, steady_state=False), key=_place
    )


def _place(one: Interval) -> tuple[int, int, int, int, int]:
    return one.rank, one.op.stream, one.block, one.iteration, one.start


# ---- single stories ----


def wait(stream: int, picoseconds: int, *after: Dependency) -> Op:
    return Op("wait", "", stream, fixed=picoseconds, after=after)


def one_rank(*blocks: Block, streams: int = 3) -> Schedule:
    names = tuple(f"stream{i}" for i in range(streams))
    return Schedule(
        "story", 1, names, (Link("link", 1000),), (Route(Cause.own("r"), (((0, 1),),), 10**9),), blocks
    )


def test_layers_in_a_row_are_one_layer_and_a_count() -> None:
    """The state after the first layer is the one after the second; the last layer is run."""
    timeline = execute(one_rank(Block("layer", (wait(0, 7), wait(0, 5)), 1_000_000)))
    (jump,) = timeline.how.skipped
    assert (jump.period, jump.length, jump.times) == (1, 12, 1_000_000 - 3)
    assert timeline.makespan == 12_000_000
    assert timeline.entries == 6
    assert len(timeline) == 2_000_000
    assert next(iter(timeline)).end == 7


def test_a_period_of_two_layers() -> None:
    """Three stages of 3, 3 and 4 ps, of which two layers may be under way: 10 ps for two layers."""
    ops = (wait(0, 3, Dependency(2, 1)), wait(1, 3, Dependency(0)), wait(2, 4, Dependency(1)))
    schedule = one_rank(Block("layer", ops, 101))
    _, jumped, _ = agree(schedule)
    assert {(jump.period, jump.length) for jump in jumped.how.skipped} == {(2, 10)}


def test_what_waits_behind_the_block_begins_in_time() -> None:
    """A stream with nothing to do in the layers waits for the 40th; a jump ends before it."""
    layers = Block("layer", (wait(0, 10),), 100)
    behind = Block("behind", (wait(1, 3, Dependency(0, 60)),))
    _, jumped, _ = agree(one_rank(layers, behind))
    assert [one.end for one in jumped if one.block] == [403]
    assert len(jumped.how.skipped) == 2, "one up to the 40th, one from there on"


def test_work_from_before_the_block_prevents_a_steady_state() -> None:
    before = Block("before", (wait(1, 1005),))
    layers = Block("layer", (wait(0, 10),), 200)
    _, jumped, _ = agree(one_rank(before, layers))
    assert all(jump.iteration > 100 for jump in jumped.how.skipped)


def test_a_stream_that_runs_ahead_leaves_no_cycle_until_it_is_through() -> None:
    layers = Block("layer", (wait(0, 10), wait(1, 17, Dependency(0))), 100)
    _, jumped, _ = agree(one_rank(layers))
    assert jumped.how.skipped[0].iteration > 50


def test_without_a_cycle_everything_is_run_and_reported() -> None:
    """Two ranks whose reads take 1000 and 1001 ps less than what they wait for: they drift apart."""
    links = (Link("a", 10**12), Link("b", 10**12 - 10**9))
    routes = (Route(Cause.own("read"), (((0, 1),), ((1, 1),)), 10**12),)
    ops = (Op("read", "", 0, size=100_003, route=0), wait(1, 7, Dependency(0)))
    schedule = Schedule("drift", 2, ("io", "gpu"), links, routes, (Block("layer", ops, 50),))
    _, jumped, both = agree(schedule)
    assert not jumped.how.skipped
    assert both.how.separate_ranks == "no two ranks are identical"
    assert both.how.not_steady == ("block 'layer': no cycle in 50 iterations (49 states compared)",)


def test_searching_in_windows_still_finds_a_late_cycle() -> None:
    """A long operation ends after 700 iterations; from 1024 on a window of 64 looks for a cycle again."""
    before = Block("before", (wait(1, 7005),))
    _, jumped, _ = agree(one_rank(before, Block("layer", (wait(0, 10),), 3000)))
    (jump,) = jumped.how.skipped
    assert 1000 < jump.iteration < 1100


def test_switched_off() -> None:
    how = execute(one_rank(Block("layer", (wait(0, 7),), 100)), steady_state=False).how
    assert how == ((), "", ("steady_state is switched off",))


@pytest.mark.parametrize("times", [10**4, 10**7])
def test_picoseconds_count_after_weeks_of_jumps(times: int) -> None:
    """A third of a second each, rounded up to the picosecond."""
    copy = Op("copy", "", 0, size=1, route=0)
    links = (Link("link", 3),)
    schedule = one_rank(Block("copies", (copy,), times))._replace(links=links)
    timeline = execute(schedule)
    assert timeline.makespan == times * 333_333_333_334 > 3000 * SECOND
    assert timeline.link_bytes == (times,)
    assert timeline.link_busy == (timeline.makespan,)
    assert timeline.how.skipped


def test_more_than_106_days_do_not_fit_into_columns_however_few_are_run() -> None:
    schedule = one_rank(Block("days", (wait(0, 86_400 * SECOND),), 200))
    with pytest.raises(SimulationError, match="106 simulated days"):
        execute(schedule)


def test_counted_operations_count_against_the_limit() -> None:
    schedule = one_rank(Block("b", (Op("copy", "", 0, size=100, route=0),), 50))

    @limited
    def run(most: int, *, steady_state: bool = True) -> Timeline:
        keep(Limits(max_events=most))
        return execute(schedule, steady_state=steady_state)

    assert run(50).entries < 10
    for steady_state in (True, False):
        with pytest.raises(WorkLimitError, match=r"has at least 50 operations; .* allows 49;"):
            run(49, steady_state=steady_state)


def test_blocks_that_come_in_between_are_counted_once_they_are_known() -> None:
    """Every eighth layer also writes, and every fifth of these waits for all writes, as gradients do."""
    layer = (wait(0, 5, Dependency(1, 1)), wait(1, 7, Dependency(0)))
    writing = (*layer, wait(2, 30, Dependency(0)))
    waiting = (*writing, wait(0, 1, Dependency(2)))
    group = [Block("layer", layer, 7), Block("writes", writing)]
    last = [Block("layer", layer, 7), Block("waits", waiting)]
    schedule = one_rank(*(4 * group + last) * 100)
    timeline = execute(schedule)
    assert timeline.entries < 500
    assert len(timeline) == schedule.operations
    full = execute(schedule, steady_state=False)
    assert totals(timeline) == totals(full)
    assert list(timeline.all_operations.end) == list(full.all_operations.end)
    assert attribute(timeline) == attribute(full)


@settings(max_examples=some(20))
@example(["few", "few", "many", "few"], 3)
@given(st.lists(st.sampled_from(["few", "many", "none"]), min_size=3, max_size=8), st.integers(3, 8))
def test_a_copy_in_another_block_has_its_own_place_there(group: list[str], times: int) -> None:
    """Layers with one or with three kernels before the same copy: while it runs, the state is the same."""
    few = (wait(0, 5, Dependency(1, 2)),)
    many, copy = (*few, wait(0, 1), wait(0, 0)), wait(1, 20, Dependency(0))
    kinds = {"few": (*few, copy), "many": (*many, copy), "none": many}
    agree(one_rank(*(Block(name, kinds[name]) for name in group * times + group[:1])))
