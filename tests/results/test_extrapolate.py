"""How long runs take in which one duration is longer, without running them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.results.extrapolate import differ_beyond_kernels, makespan_for_longer_context
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule
from tests.engine.generated import long_schedules, program_schedules, schedules
from tests.examples import some

US = 10**6  # [ps]
HOST, COPY, GPU = range(3)


def grown(schedule: Schedule, places: Iterable[tuple[int, int]], by: int) -> Schedule:
    """The operations at (block, position) last longer."""
    chosen = set(places)
    blocks = tuple(
        block._replace(
            ops=tuple(
                op._replace(fixed=op.fixed + by) if (index, position) in chosen else op
                for position, op in enumerate(block.ops)
            )
        )
        for index, block in enumerate(schedule.blocks)
    )
    return schedule._replace(blocks=blocks)


def check(schedule: Schedule, data: st.DataObject) -> None:
    blocks = enumerate(schedule.blocks)
    every = [(index, position) for index, block in blocks for position in range(len(block.ops))]
    places = data.draw(st.sets(st.sampled_from(every), min_size=1))
    by = data.draw(st.sampled_from([1, 10, 1000, US]) | st.integers(1, 10**8))
    timeline = execute(schedule)
    time = makespan_for_longer_context(timeline, grown(schedule, places, by))
    if time is None:
        return
    assert time == execute(grown(schedule, places, by)).makespan
    between = data.draw(st.integers(0, by))
    part = grown(schedule, places, between)
    assert makespan_for_longer_context(timeline, part) == execute(part).makespan


@settings(max_examples=some(25))
@given(long_schedules(), st.data())
def test_what_is_known_is_what_a_run_takes(schedule: Schedule, data: st.DataObject) -> None:
    check(schedule, data)


@settings(max_examples=some(25))
@given(schedules(), st.data())
def test_on_schedules_of_any_kind(schedule: Schedule, data: st.DataObject) -> None:
    check(schedule, data)


@settings(max_examples=some(25))
@given(program_schedules(), st.data())
def test_on_two_programs(schedule: Schedule, data: st.DataObject) -> None:
    check(schedule, data)


# ---- single stories ----


def story(*blocks: Block, link: int = 1000) -> Schedule:
    routes = (Route(Cause.own("r"), (((0, 1),),), 10**12),)
    return Schedule("story", 1, ("host", "copy", "gpu"), (Link("link", link),), routes, blocks)


def wait(stream: int, time: int, *after: Dependency) -> Op:
    return Op("wait", "", stream, fixed=time, after=after)


LAYER = Block(
    "layer",
    (wait(HOST, 5), wait(COPY, 7, Dependency(HOST), Dependency(GPU, 1)), wait(GPU, 9, Dependency(COPY))),
    1000,
)


def test_on_the_chain_every_layer_adds_as_much() -> None:
    """Copy and computation take turns over two buffers: 9 ps a layer, and longer with the computation."""
    timeline = execute(story(LAYER))
    assert timeline.how.skipped
    longer_by_3 = grown(story(LAYER), [(0, 2)], 3)
    assert (
        makespan_for_longer_context(timeline, longer_by_3)
        == timeline.makespan + 3000
        == execute(longer_by_3).makespan
    )


def test_what_is_hidden_adds_nothing_until_it_decides() -> None:
    """The host has 4 ps to spare in each layer; the copy 2 ps."""
    timeline = execute(story(LAYER))
    assert makespan_for_longer_context(timeline, grown(story(LAYER), [(0, 1)], 2)) == timeline.makespan + 2, (
        "only the first shows"
    )
    assert makespan_for_longer_context(timeline, grown(story(LAYER), [(0, 1)], 3)) is None


def test_without_growth_nothing_has_to_be_looked_at() -> None:
    timeline = execute(story(LAYER))
    assert makespan_for_longer_context(timeline, story(LAYER)) == timeline.makespan


@pytest.mark.parametrize(
    "other",
    [
        grown(grown(story(LAYER), [(0, 1)], 1), [(0, 2)], 2),
        grown(story(LAYER), [(0, 2)], -1),
        story(LAYER._replace(ops=(*LAYER.ops[:2], wait(GPU, 9, Dependency(HOST))))),
        story(LAYER._replace(repeat=999)),
        story(LAYER._replace(repeat=999), LAYER._replace(repeat=1)),
        story(LAYER._replace(ops=LAYER.ops * 2, repeat=500)),
    ],
    ids=["two durations", "shorter", "another program", "fewer layers", "two blocks", "pairs of layers"],
)
def test_only_one_duration_may_differ_and_be_longer(other: Schedule) -> None:
    assert makespan_for_longer_context(execute(story(LAYER)), other) is None


def test_transfers_that_overlap_must_be_shifted_together() -> None:
    """Two copies of 1000 B share 1000 B/s; one begins after a computation, later if that is longer."""
    ops = (
        Op("copy", "", HOST, size=1000, route=0),
        wait(GPU, US),
        Op("copy", "", COPY, size=1000, route=0, after=(Dependency(GPU),)),
    )
    schedule = story(Block("b", ops))
    timeline = execute(schedule)
    assert timeline.shared
    assert not timeline.constant_rates
    assert makespan_for_longer_context(timeline, grown(schedule, [(0, 1)], 1)) is None


def test_transfers_that_do_not_overlap_stay_apart() -> None:
    """The second begins after the first, and a longer computation puts it off."""
    ops = (
        Op("copy", "", HOST, size=1000, route=0),
        wait(GPU, US, Dependency(HOST)),
        Op("copy", "", COPY, size=1000, route=0, after=(Dependency(GPU),)),
    )
    schedule = story(Block("b", ops))
    timeline = execute(schedule)
    assert timeline.shared
    assert makespan_for_longer_context(timeline, grown(schedule, [(0, 1)], 5)) == timeline.makespan + 5


def test_one_that_ends_as_another_begins_may_come_to_overlap_it() -> None:
    """At 3 s the first copy is over and, by chance, the host ready for the second."""
    ops = (
        wait(GPU, 10**12),
        Op("copy", "", GPU, size=2000, route=0),
        wait(HOST, 3 * 10**12),
        Op("copy", "", COPY, size=1000, route=0, after=(Dependency(HOST),)),
    )
    schedule = story(Block("b", ops))
    timeline = execute(schedule)
    assert timeline.makespan == 4 * 10**12
    assert makespan_for_longer_context(timeline, grown(schedule, [(0, 0)], 10)) is None


def test_more_than_kernels_differs() -> None:
    """A copy of another size, not a longer kernel; blocks that are cut differently say nothing."""
    copy, kernel = wait(COPY, 7), Op("compute", "", GPU, fixed=9, after=(Dependency(COPY),))
    one = story(Block("layer", (copy, kernel), 10))
    assert not differ_beyond_kernels(one, grown(one, [(0, 1)], 5))
    assert differ_beyond_kernels(one, grown(one, [(0, 0), (0, 1)], 5))
    assert not differ_beyond_kernels(one, story(Block("layer", (copy, kernel), 9)))


def test_what_comes_back_after_others() -> None:
    """Others repeat once between the layers and several times, and are recorded once."""
    waits = (wait(HOST, 50), wait(GPU, 30, Dependency(HOST)), wait(COPY, 1, Dependency(GPU)))
    once, layers = Block("other", waits), LAYER._replace(repeat=30)
    schedule = story(layers, once, once._replace(repeat=5), layers, once, LAYER._replace(repeat=10))
    timeline = execute(schedule)
    assert not timeline.is_simple
    assert list(timeline.written_out()) == list(timeline)
    for by in (1, 3):
        longer = grown(schedule, [(3, 2), (5, 2)], by)
        assert makespan_for_longer_context(timeline, longer) == execute(longer).makespan
