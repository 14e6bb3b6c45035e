"""Small schedules with exact picosecond results."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.engine import execute
from simoffload.engine.loop import Loop
from simoffload.errors import DeadlockError, SimulationError, WorkLimitError
from simoffload.limits import Limits, keep, limited
from simoffload.results.timeline import Timeline
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule

SECOND = 10**12
HOST, COPY, GPU = range(3)


def schedule(
    *blocks: Block | tuple[Op, ...],
    ranks: int = 1,
    streams: tuple[str, ...] = ("host", "copy", "gpu"),
    links: tuple[Link, ...] = (Link("link", 100),),
    routes: tuple[Route, ...] | None = None,
) -> Schedule:
    """Operations that stand alone become blocks; unless told, there is one link that every rank crosses."""
    routes = routes or (Route(Cause.own("route"), (((0, 1),),) * ranks, 10**12),)
    made = tuple(block if isinstance(block, Block) else Block("block", block) for block in blocks)
    return Schedule("story", ranks, streams, links, routes, made)


def wait(stream: int, seconds: int, *after: Dependency, collective: bool = False) -> Op:
    return Op("wait", "", stream, fixed=seconds * SECOND, after=after, collective=collective)


def move(stream: int, size: int, *after: Dependency, route: int = 0, fixed: int = 0) -> Op:
    return Op("copy", "", stream, fixed=fixed * SECOND, size=size, route=route, after=after)


def seconds(timeline: Timeline, rank: int = 0) -> list[tuple[float, float]]:
    """(start, end) of the operations of one rank, in program order."""
    columns = zip(*timeline.all_operations, strict=True)
    return [(start / SECOND, end / SECOND) for own, *_, start, end in sorted(columns) if own == rank]


# ---- streams and dependencies ----


def test_nothing_takes_no_time() -> None:
    timeline = execute(schedule())
    assert (timeline.makespan, len(timeline)) == (0, 0)


def test_operations_of_a_stream_follow_each_other() -> None:
    assert seconds(execute(schedule((wait(HOST, 2), wait(HOST, 3))))) == [(0, 2), (2, 5)]


def test_streams_run_side_by_side() -> None:
    assert seconds(execute(schedule((wait(HOST, 2), wait(GPU, 3))))) == [(0, 2), (0, 3)]


def test_a_dependency_waits_for_the_last_operation_written() -> None:
    ops = (wait(HOST, 2), wait(HOST, 3), wait(GPU, 1, Dependency(HOST)), wait(HOST, 5))
    assert seconds(execute(schedule(ops))) == [(0, 2), (2, 5), (5, 6), (5, 10)]


def test_a_dependency_counts_back() -> None:
    ops = (wait(HOST, 2), wait(HOST, 3), wait(GPU, 1, Dependency(HOST, 1)))
    assert seconds(execute(schedule(ops)))[2] == (2, 3)


def test_a_dependency_on_what_came_before_the_schedule_is_none() -> None:
    ops = (wait(HOST, 2), wait(GPU, 1, Dependency(HOST, 1)))
    assert seconds(execute(schedule(ops)))[1] == (0, 1)


def test_all_dependencies_must_be_done() -> None:
    ops = (wait(HOST, 2), wait(COPY, 7), wait(GPU, 1, Dependency(HOST), Dependency(COPY), Dependency(HOST)))
    assert seconds(execute(schedule(ops)))[2] == (7, 8)


def test_a_dependency_on_the_own_stream_is_met_already() -> None:
    ops = (wait(HOST, 2), wait(HOST, 1, Dependency(HOST, 0)), wait(HOST, 1, Dependency(HOST, 9)))
    assert seconds(execute(schedule(ops))) == [(0, 2), (2, 3), (3, 4)]


def test_a_dependency_reaches_into_the_iteration_before() -> None:
    """Two buffers: a copy waits for the computation before last; 1 s a copy, 3 s a computation."""
    layer = Block("layer", (wait(COPY, 1, Dependency(GPU, 1)), wait(GPU, 3, Dependency(COPY))), 4)
    assert seconds(execute(schedule(layer))) == [
        *((0, 1), (1, 4)),
        *((1, 2), (4, 7)),
        *((4, 5), (7, 10)),
        *((7, 8), (10, 13)),
    ]


def test_a_dependency_reaches_into_an_earlier_block() -> None:
    first = Block("first", (wait(HOST, 2),), 3)
    between = Block("between", (wait(COPY, 1),), 2)
    second = Block("second", (wait(GPU, 1, Dependency(HOST, 1)),), 2)
    assert seconds(execute(schedule(first, between, second)))[-2:] == [(4, 5), (5, 6)]


def test_operations_without_length_take_neither_recursion_nor_the_clock() -> None:
    """3 x 20,000 operations at time 0."""
    ops = (Op("hook", "", HOST), Op("hook", "", GPU, after=(Dependency(HOST),)), Op("hook", "", HOST))
    executor = Loop(schedule(Block("marks", ops, 20_000)))
    clock, timeline = executor._clock, executor.run()
    assert (len(timeline), timeline.makespan) == (60_000, 0)
    assert clock.events == 0


def test_a_mark_after_a_wait_ends_when_it_starts() -> None:
    ops = (wait(HOST, 2), Op("hook", "", GPU, after=(Dependency(HOST),)), wait(GPU, 1))
    assert seconds(execute(schedule(ops))) == [(0, 2), (2, 2), (2, 3)]


# ---- ranks ----


def test_a_collective_starts_when_every_rank_is_ready() -> None:
    """Rank 1 has half the rate: its copy of 100 B takes 2 s."""
    links = (Link("fast", 100), Link("slow", 50))
    routes = (Route(Cause.own("copy"), (((0, 1),), ((1, 1),)), 10**9),)
    ops = (move(COPY, 100), wait(GPU, 1, Dependency(COPY), collective=True), wait(GPU, 1, collective=True))
    timeline = execute(schedule(ops, ranks=2, links=links, routes=routes))
    assert seconds(timeline, 0) == [(0, 1), (2, 3), (3, 4)]
    assert seconds(timeline, 1) == [(0, 2), (2, 3), (3, 4)]


def test_without_collectives_ranks_drift_apart() -> None:
    links = (Link("fast", 100), Link("slow", 50))
    routes = (Route(Cause.own("copy"), (((0, 1),), ((1, 1),)), 10**9),)
    timeline = execute(schedule(Block("b", (move(COPY, 100),), 3), ranks=2, links=links, routes=routes))
    assert seconds(timeline, 0)[-1] == (2, 3)
    assert seconds(timeline, 1)[-1] == (4, 6)


# ---- sharing ----


def test_the_fixed_time_comes_before_the_transfer_and_does_not_occupy_links() -> None:
    timeline = execute(schedule((move(COPY, 200, fixed=3),)))
    assert seconds(timeline) == [(0, 5)]
    assert timeline.link_busy == (2 * SECOND,)


def test_a_transfer_takes_whole_picoseconds_rounded_up() -> None:
    assert execute(schedule((move(COPY, 1),), links=(Link("link", 3),))).makespan == 333_333_333_334


def test_the_narrower_of_two_links_limits_a_transfer() -> None:
    routes = (Route(Cause.own("r"), (((0, 1), (1, 1)),), 10**9),)
    links = (Link("wide", 100), Link("narrow", 50))
    timeline = execute(schedule((move(COPY, 100),), links=links, routes=routes))
    assert seconds(timeline) == [(0, 2)]
    assert timeline.link_busy == (2 * SECOND, 2 * SECOND)
    assert timeline.link_saturated == (0, 2 * SECOND)
    assert timeline.link_bytes == (100, 100)


def test_ranks_share_a_link() -> None:
    timeline = execute(schedule((move(COPY, 100),), ranks=4))
    assert [seconds(timeline, rank) for rank in range(4)] == [[(0, 4)]] * 4
    assert timeline.link_bytes == (400,)


def test_a_late_arrival_slows_down_what_is_under_way() -> None:
    """100 B alone for 1 s; then halves: the first has 100 B left, 2 s; the second then 100 B alone."""
    ops = (move(COPY, 200), move(GPU, 200, fixed=1))
    timeline = execute(schedule(ops))
    assert seconds(timeline) == [(0, 3), (0, 4)]
    assert timeline.link_busy == timeline.link_saturated == (4 * SECOND,)


def test_parking_lot() -> None:
    """20, 80 and 20 B/s; when the short flow on the narrow link is through, the long one doubles."""
    links = (Link("wide", 100), Link("narrow", 40))
    routes = (
        Route(Cause.own("both"), (((0, 1), (1, 1)),), 10**9),
        Route(Cause.own("wide"), (((0, 1),),), 10**9),
        Route(Cause.own("narrow"), (((1, 1),),), 10**9),
    )
    ops = (move(HOST, 200), move(COPY, 560, route=1), move(GPU, 100, route=2))
    timeline = execute(schedule(ops, links=links, routes=routes))
    # 5 s: narrow is through, the others have 100 B and 160 B left at 40 and 60 B/s; 7.5 s: 10 B left, alone.
    assert seconds(timeline) == [(0, 7.5), (0, 7.6), (0, 5)]
    assert timeline.link_saturated == (7_600_000_000_000, 7_500_000_000_000)
    assert timeline.link_bytes == (760, 300)


def test_a_cap_leaves_the_rest_to_others() -> None:
    routes = (Route(Cause.own("capped"), (((0, 1),),), 20), Route(Cause.own("free"), (((0, 1),),), 10**9))
    timeline = execute(schedule((move(HOST, 100), move(COPY, 400, route=1)), routes=routes))
    assert seconds(timeline) == [(0, 5), (0, 5)]
    assert timeline.link_saturated == (5 * SECOND,)


def test_a_capped_flow_alone_does_not_fill_its_link() -> None:
    timeline = execute(schedule((move(HOST, 100),), routes=(Route(Cause.own("capped"), (((0, 1),),), 20),)))
    assert (timeline.link_busy, timeline.link_saturated) == ((5 * SECOND,), (0,))


def test_a_link_with_some_room_left_is_not_full() -> None:
    """Two that could share it come one after the other, each at 95 of 100 B/s."""
    ops = (move(HOST, 475), move(COPY, 475, Dependency(HOST)))
    timeline = execute(schedule(ops, routes=(Route(Cause.own("capped"), (((0, 1),),), 95),)))
    assert (timeline.link_busy, timeline.link_saturated) == ((10 * SECOND,), (0,))


def test_weights_are_outstanding_requests() -> None:
    routes = (
        Route(Cause.own("deep"), (((0, 1),),), 10**9, 8),
        Route(Cause.own("shallow"), (((0, 1),),), 10**9, 2),
    )
    timeline = execute(schedule((move(HOST, 160), move(COPY, 100, route=1)), routes=routes))
    assert seconds(timeline) == [(0, 2), (0, 2.6)]


def test_identical_layers_are_solved_once() -> None:
    """The sets of flows that occur are none, one copy, and both."""
    layer = (move(COPY, 200), wait(HOST, 1, Dependency(COPY, 1)), move(GPU, 300, Dependency(HOST)))
    executor = Loop(schedule(Block("layer", layer, 100), ranks=4))
    network = executor._network
    assert executor.run().link_bytes == (100 * 4 * 500,)
    assert network.solves <= 4


def test_coefficients_and_scale() -> None:
    """A write costs 5/3 of a read; capacity and coefficients times 3, and bytes come out unscaled."""
    routes = (Route(Cause.own("read"), (((0, 3),),), 10**9), Route(Cause.own("write"), (((0, 5),),), 10**9))
    ops = (move(HOST, 60), move(COPY, 60, route=1))
    timeline = execute(schedule(ops, links=(Link("drive", 3 * 160, 3),), routes=routes))
    assert seconds(timeline) == [(0, 1), (0, 1)]
    assert timeline.link_bytes == (160,)


def test_processor_sharing() -> None:
    """Flows of 60, 120, …, 300 B on 60 B/s: the k-th ends after the sum over j of min(j, k) seconds."""
    ops = tuple(move(stream, 60 * (stream + 1)) for stream in range(5))
    ends = [sum(min(j, k) for j in range(1, 6)) for k in range(1, 6)]
    timeline = execute(schedule(ops, streams=tuple("abcde"), links=(Link("link", 60),)))
    assert seconds(timeline) == [(0, end) for end in ends]


def test_a_transfer_starts_at_the_instant_that_another_ends() -> None:
    """The links are shared once an instant, so the follower takes over without a moment in between."""
    ops = (move(HOST, 100), move(COPY, 100, Dependency(HOST)), move(GPU, 300))
    executor = Loop(schedule(ops))
    clock = executor._clock
    assert seconds(executor.run()) == [(0, 2), (2, 4), (0, 5)]
    assert clock.events == 7  # a solve at 0 s; an end and a solve at 2, 4 and 5 s


def test_a_transfer_that_joins_as_another_ends_does_not_end_with_it() -> None:
    """At 2 s the fixed time of the one is over first, and then the other is through."""
    ops = (move(COPY, 100, fixed=2), move(HOST, 200))
    assert seconds(execute(schedule(ops))) == [(0, 3), (0, 2)]


def test_a_route_without_links_runs_at_its_cap() -> None:
    timeline = execute(schedule((move(HOST, 100),), routes=(Route(Cause.own("local"), ((),), 50),)))
    assert seconds(timeline) == [(0, 2)]


# ---- the timeline ----


def test_columns_are_in_order_of_completion() -> None:
    ops = (wait(HOST, 3), wait(COPY, 2))
    timeline = execute(schedule(Block("a", ops), Block("b", ops, 2)))
    assert [(i.block, i.iteration, i.op.stream, i.end // SECOND) for i in timeline] == [
        (0, 0, COPY, 2),
        (0, 0, HOST, 3),
        (1, 0, COPY, 4),
        (1, 0, HOST, 6),
        (1, 1, COPY, 6),
        (1, 1, HOST, 9),
    ]


# ---- very long ----


@pytest.mark.parametrize("late", [9_008, 10**6])
def test_picoseconds_count_after_hours_and_days(late: int) -> None:
    """A third of a second each, rounded up to the picosecond, ten times, after a very long wait."""
    copies = Block("copies", (move(COPY, 1, Dependency(HOST)),), 10)
    timeline = execute(schedule((wait(HOST, late),), copies, links=(Link("link", 3),)))
    assert timeline.makespan == late * SECOND + 10 * 333_333_333_334


def test_a_transfer_of_days_ends_to_the_picosecond() -> None:
    """10^16 B at 10^10 B/s = 10^6 s; a flow of 1 B that comes 1 s before the end costs it 100 ps."""
    ops = (move(COPY, 10**16), wait(HOST, 10**6 - 1), move(HOST, 1))
    timeline = execute(schedule(ops, links=(Link("link", 10**10),)))
    assert timeline.makespan == 10**6 * SECOND + 100
    assert timeline.link_bytes == (10**16 + 1,)


def test_more_than_106_days_do_not_fit_into_columns() -> None:
    for op in (Op("wait", "", HOST, fixed=2**63), move(COPY, 2**24)):
        with pytest.raises(SimulationError, match=r"longer than 2\^63 ps \(106 simulated days\)"):
            execute(schedule((op,), links=(Link("link", 1),)))


def test_the_last_picosecond_that_fits() -> None:
    assert execute(schedule((Op("wait", "", HOST, fixed=2**63 - 1),))).makespan == 2**63 - 1


# ---- what stops a run ----


def test_a_deadlock_names_who_waits_for_what() -> None:
    """A sound schedule cannot have one: counting forward is refused before the run."""
    ops = (
        Op("launch", "mlp", HOST, after=(Dependency(GPU, -1),)),
        Op("compute", "mlp", GPU, after=(Dependency(HOST, 0),)),
        Op("gather", "mlp", COPY, collective=True),
    )
    story = schedule(Block("layer", ops, 2), ranks=2)
    with pytest.raises(SimulationError, match="count back is -1"):
        execute(story)
    with pytest.raises(DeadlockError) as caught:
        Loop(story).run()
    assert str(caught.value) == (
        "deadlock at 0 ps: "
        "rank 0, stream 'host': launch 'mlp' (block 'layer', iteration 0) "
        "waits for operation 1 of stream 'gpu', which has completed 0; "
        "rank 0, stream 'gpu': compute 'mlp' (block 'layer', iteration 0) "
        "waits for operation 1 of stream 'host', which has completed 0; "
        "rank 1, stream 'host': launch 'mlp' (block 'layer', iteration 0) "
        "waits for operation 1 of stream 'gpu', which has completed 0; "
        "rank 1, stream 'gpu': compute 'mlp' (block 'layer', iteration 0) "
        "waits for operation 1 of stream 'host', which has completed 0"
    )


def test_a_long_list_of_waiting_operations_is_cut() -> None:
    forward = Op("launch", "", HOST, after=(Dependency(GPU, -1),))
    ops = (forward, Op("compute", "", GPU, after=(Dependency(HOST),)))
    with pytest.raises(DeadlockError, match=r"; and 4 more$"):
        Loop(schedule(ops, ranks=6)).run()


@limited
def _limited(story: Schedule, *, steady_state: bool = True, **limits: Any) -> Timeline:
    keep(Limits(**limits))
    return execute(story, steady_state=steady_state)


def test_more_operations_than_allowed_are_refused_at_once() -> None:
    with pytest.raises(
        WorkLimitError, match=r"has at least 2,000,000,000,000 operations; .* allows 1,000; raise the limit"
    ):
        _limited(schedule(Block("b", (wait(HOST, 1),), 10**9), ranks=2000), max_events=1000)


def test_the_allowed_number_of_operations_runs() -> None:
    story = schedule(Block("b", (move(COPY, 100),), 3))
    assert len(_limited(story, max_events=3)) == 3
    with pytest.raises(WorkLimitError, match=r"has at least 3 operations; .* allows 2;"):
        _limited(story, max_events=2)


def test_a_run_that_takes_too_long_is_stopped() -> None:
    story = schedule(Block("b", (move(COPY, 100), move(GPU, 70)), 10_000))
    with pytest.raises(WorkLimitError, match=r"stopped by engine\.timeout"):
        _limited(story, steady_state=False, timeout=0.0)


@pytest.mark.parametrize(
    "blocks",
    [
        (Block("one", (wait(HOST, 1),) * 300_000),),
        tuple(Block("pair", (wait(HOST, i),), 2) for i in range(1, 100_000)),
        (Block("many", (Op("hook", "", HOST),), 10**8),),
    ],
    ids=["one long block", "many blocks", "no time at all"],
)
@pytest.mark.parametrize("steady_state", [True, False])
def test_a_run_without_clock_events_is_stopped_too(blocks: tuple[Block, ...], steady_state: bool) -> None:
    with pytest.raises(WorkLimitError, match=r"stopped by engine\.timeout"):
        _limited(schedule(*blocks), steady_state=steady_state, timeout=0.0)


def test_a_stalled_run_names_what_runs() -> None:
    """At 4 s the wait of 3 s is over, two transfers of 3 s share a link until 6 s, and a wait follows one."""
    ops = (wait(HOST, 3), move(COPY, 300), move(GPU, 300), wait(GPU, 2))
    executor = Loop(schedule(Block("layer", ops)))
    seen: list[str] = []
    for time in (1, 4, 7, 9):
        executor._clock.call_at(time * SECOND, lambda _: seen.append(executor._running()), None)
    executor.run()
    host, copy, gpu, last = (
        f"rank 0, stream {stream!r}: {kind} '' (block 'layer', iteration 0)"
        for stream, kind in (("host", "wait"), ("copy", "copy"), ("gpu", "copy"), ("gpu", "wait"))
    )
    assert seen == ["; ".join((host, copy, gpu)), f"{copy}; {gpu}", last, "nothing"]


def test_too_many_flows_for_a_link() -> None:
    with pytest.raises(SimulationError, match="3 flows share link, which leaves less than 1 B/s"):
        execute(schedule((move(COPY, 100),), ranks=3, links=(Link("link", 2),)))
