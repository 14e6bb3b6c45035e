"""Decode steps between simulated ones: exact where they take the same course."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.results.extrapolate import makespan_for_longer_context
from simoffload.results.passes import summarize_pass
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule
from simoffload.simulation.runner import MOST, STRAIGHT, Decoding, Simulated, decode

US = 10**6  # [ps]
GB = 10**9
HOST, COPY, COMPUTE, READ = range(4)


def program(
    attention: int, *, ranks: int = 2, layers: int = 5, shared: int = 0, copy: int = 2_000_000
) -> Schedule:
    """Layers whose weights are copied while the one before is computed; a link of the rate ``shared`` > 0
    carries a read, too, that begins earlier than the copy."""
    links = tuple(Link(f"wire{rank}", (20 + rank) * GB) for rank in range(ranks))
    links += (Link("memory", shared or 1000 * GB),)
    wires = tuple(((rank, 1), (ranks, 1)) for rank in range(ranks))
    routes = (
        Route(Cause.own("copy"), wires, 18 * GB),
        Route(Cause.own("read"), (((ranks, 1),),) * ranks, 18 * GB),
    )
    ops = [
        Op("hook", "layer", HOST, fixed=20 * US),
        Op("copy", "layer", COPY, 5 * US, copy, 0, (Dependency(HOST), Dependency(COMPUTE, 1))),
        Op("compute", "mlp", COMPUTE, 60 * US, after=(Dependency(COPY),)),
        Op("compute", "attention", COMPUTE, attention),
    ]
    if shared:
        ops.insert(1, Op("read", "layer", READ, 0, 1_500_000, 1, (Dependency(HOST),)))
    streams = ("host", "copy", "compute", "read")
    return Schedule("step", ranks, streams, links, routes, (Block("layers", tuple(ops), layers),))


def simulated(make: Callable[[int], Schedule], last: Callable[[int], int], step: int) -> Simulated:
    timeline = execute(make(last(step)))
    result = summarize_pass(timeline, new_tokens=1, context=step)
    return Simulated(step, (60 * US, last(step)), result, timeline.makespan, timeline)


def decoded(
    make: Callable[[int], Schedule], last: Callable[[int], int], steps: int
) -> tuple[Decoding, list[int]]:
    ran: list[int] = []

    def run(step: int) -> Simulated:
        ran.append(step)
        return simulated(make, last, step)

    def later(low: Simulated, step: int) -> int | None:
        assert low.timeline is not None
        return makespan_for_longer_context(low.timeline, make(last(step)))

    return decode(steps, lambda step: (60 * US, last(step)), run, later), ran


def growing(step: int) -> int:
    """[ps], not on a straight line."""
    return 3 * US + step * US // 7 + step * step


def whole(make: Callable[[int], Schedule], steps: int) -> int:
    return sum(execute(make(growing(step))).makespan for step in range(1, steps + 1))


def test_one_course_is_one_run() -> None:
    found, ran = decoded(program, growing, 40)
    assert ran == [1]
    assert (found.total, found.bound, found.estimated) == (whole(program, 40), 0.0, 0)


def test_another_bottleneck_in_between_is_found() -> None:
    """The copy of 150 us hides an attention that is short, and not one that is long."""

    def long(step: int) -> int:
        return step * 8 * US

    def make(attention: int) -> Schedule:
        return program(attention, copy=1_000_000)

    found, ran = decoded(make, long, 64)
    assert len(ran) == 2, "the second where the attention is no longer hidden"
    assert found.total == sum(execute(make(long(step))).makespan for step in range(1, 65))
    assert found.estimated == 0


def test_no_steps_one_step_two_steps() -> None:
    assert decoded(program, growing, 0) == (Decoding((), 0), [])
    for steps in (1, 2):
        found, ran = decoded(program, growing, steps)
        assert (found.total, len(ran)) == (whole(program, steps), 1)


def test_steps_that_are_alike_are_one() -> None:
    found, ran = decoded(program, lambda _: US, 1000)
    assert ran == [1]
    assert found.total == 1000 * execute(program(US)).makespan


def test_what_shares_a_link_is_told_to_be_estimated() -> None:
    """A read runs ahead, the copies wait for the attention: of step to step they overlap for longer."""

    def long(step: int) -> int:
        return step * 3 * US

    def make(attention: int) -> Schedule:
        return program(attention, shared=25 * GB, layers=9, copy=300_000)

    found, ran = decoded(make, long, 50)
    assert 3 < len(ran) <= MOST, "as often as the times do not lie on a line"
    assert 0 < found.estimated <= 50 - len(ran)
    times = [execute(make(long(step))).makespan for step in range(1, 51)]
    assert found.total == pytest.approx(sum(times), rel=found.bound)


def test_three_steps_on_a_line_are_enough() -> None:
    """The attention is hidden no more, but nothing says so."""

    def later(_low: Simulated, _step: int) -> int | None:
        return None

    def long(step: int) -> int:
        return 200 * US + step * 3 * US

    found = decode(50, lambda step: (60 * US, long(step)), partial(simulated, program, long), later)
    assert [one.step for one in found.simulated] == [1, 25, 50]
    assert (found.estimated, found.bound) == (47, 2 * STRAIGHT)
    assert found.total == sum(execute(program(long(step))).makespan for step in range(1, 51))


@given(
    ranks=st.integers(1, 3),
    layers=st.integers(1, 6),
    shared=st.sampled_from([0, 15 * GB, 40 * GB]),
    copy=st.sampled_from([10_000, 1_000_000, 3_000_000]),
    steps=st.integers(2, 20),
    slope=st.integers(1, 20 * US),
)
def test_certified_means_exact(
    ranks: int, layers: int, shared: int, copy: int, steps: int, slope: int
) -> None:
    def make(attention: int) -> Schedule:
        return program(attention, ranks=ranks, layers=layers, shared=shared, copy=copy)

    def last(step: int) -> int:
        return US + slope * step

    found, _ = decoded(make, last, steps)
    times = [execute(make(last(step))).makespan for step in range(1, steps + 1)]
    if not found.estimated:
        assert found.total == sum(times)
