"""Passes put together: times and bytes add up, each as often as it happens."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.results.passes import (
    GroupShare,
    LinkUse,
    PassResult,
    Share,
    StreamUse,
    aggregate,
    largest_remainder,
    seconds,
)
from simoffload.results.result import attributed
from simoffload.scenario import read_scenario
from simoffload.schedule import Cause
from simoffload.simulation import simulate


def passed(name: str, *shares: Share, links: tuple[LinkUse, ...] = (), host: float = 0.0) -> PassResult:
    time = sum(share.exposed_ps for share in shares)
    return PassResult(
        name=name,
        new_tokens=512,
        context=512,
        time_ps=time,
        shares=shares,
        links=links,
        bounds={"GPU compute": seconds(time) / 2, "host thread": seconds(time) / 4},
        streams=(StreamUse("host", host, host / 2), StreamUse("compute", 1.0, 0.5)),
    )


S = 10**12  # [ps]
COMPUTE = Share(Cause("gpu-compute"), "GPU", 3 * S, 4 * S, "", 0)
COPY = Share(Cause("host-to-gpu"), "transfers", S, 2 * S, "pcie", 100)
FORWARD = passed("forward", COMPUTE, COPY, links=(LinkUse("pcie", 100, 2.0, 1.0, 50, 1.0),), host=2.0)
UPDATE = passed(
    "optimizer",
    Share(Cause("cpu-adam"), "host", 5 * S, 5 * S, "dram", 280),
    Share(Cause("host-to-gpu"), "transfers", 2 * S, 7 * S, "the latency of each transfer", 60),
    links=(LinkUse("dram", 280, 5.0, 5.0, 56, 5.0), LinkUse("pcie", 60, 7.0, 0.0, 50, 2.0)),
    host=8.0,
)
STEP = aggregate("step", [(FORWARD, Fraction(3)), (UPDATE, Fraction(1, 2))])


def test_times_add_up_each_as_often_as_it_happens() -> None:
    assert STEP.time_s == 3 * 4.0 + 7.0 / 2
    assert sum(share.exposed_ps for share in STEP.shares) == STEP.time_ps == 15.5 * S


def test_causes_are_put_together_by_name_the_largest_first() -> None:
    assert [(share.cause_text, share.exposed_s, share.busy_s, share.size) for share in STEP.shares] == [
        ("GPU compute", 9.0, 12.0, 0),
        ("host to GPU", 3 + 1.0, 6 + 3.5, 300 + 30),
        ("CPU Adam", 2.5, 2.5, 140),
    ]
    assert STEP.bottleneck.cause_text == "GPU compute"


def test_a_transfer_was_held_back_by_what_did_so_where_it_took_longest() -> None:
    """3 x 2.0 s in forward are more than 7.0 / 2 s in the optimizer; once each they are less."""
    limits = {share.cause_text: share.limit for share in STEP.shares}
    assert limits["host to GPU"] == "pcie"
    once = aggregate("step", [(FORWARD, Fraction(1)), (UPDATE, Fraction(1))])
    assert {one.cause_text: one.limit for one in once.shares}["host to GPU"] == "the latency of each transfer"


def test_links_carry_what_they_carried_in_all_passes() -> None:
    pcie, dram = STEP.links
    assert pcie == LinkUse("pcie", 300 + 30, 6 + 3.5, 3.0, 50, 3 + 1.0)
    assert dram == LinkUse("dram", 140, 2.5, 2.5, 56, 2.5)


def test_groups_have_what_is_exposed_and_what_is_hidden() -> None:
    assert STEP.groups == (
        GroupShare("GPU", 9 * S, 3 * S),
        GroupShare("transfers", 4 * S, 5.5 * S),
        GroupShare("host", Fraction(5, 2) * S, 0),
    )
    assert (STEP.groups[1].exposed_s, STEP.groups[1].hidden_s) == (4.0, 5.5)


def test_thirds_of_a_picosecond_are_told_in_whole_ones_that_sum_up() -> None:
    """An update every three steps: 2 2/3 ps of 8 and 1/3 ps of 1 beside 5 ps of each step are 8 ps."""
    often = passed("forward", Share(Cause("gpu-compute"), "GPU", 5, 5, ""))
    seldom = passed(
        "update",
        Share(Cause("cpu-adam"), "host", 8, 8, ""),
        Share(Cause("host-to-gpu"), "transfers", 1, 1, ""),
    )
    step = aggregate("step", [(often, Fraction(1)), (seldom, Fraction(1, 3))])
    assert step.time_ps == 8
    assert [share.exposed_ps for share in step.shares] == [5, Fraction(8, 3), Fraction(1, 3)]
    rendered = attributed(step)
    assert [cause["exposed_ps"] for cause in rendered["time_by_cause"]] == [5, 3, 0]
    assert [group["exposed_ps"] for group in rendered["time_by_group"]] == [5, 3, 0]
    assert rendered["time_ps"] == 8


@given(st.lists(st.fractions(min_value=0, max_value=10**18, max_denominator=64), max_size=9))
def test_whole_parts_sum_to_the_rounded_whole_and_are_less_than_one_off(parts: list[Fraction]) -> None:
    found = largest_remainder(parts)
    assert sum(found) == round(sum(parts))
    assert all(abs(mine - part) < 1 for mine, part in zip(found, parts, strict=True))


def test_bounds_and_streams_add_up() -> None:
    assert STEP.bounds == {"GPU compute": 6 + 1.75, "host thread": 3 + 0.875}
    assert (STEP.bound_s, STEP.bound_by) == (7.75, "GPU compute")
    assert STEP.streams == (StreamUse("host", 6 + 4.0, 3 + 2.0), StreamUse("compute", 3.5, 1.75))


def test_a_pass_by_itself_stays_what_it_is() -> None:
    alone = aggregate("forward", [(FORWARD, Fraction(1))])
    assert alone._replace(streams=()) == FORWARD._replace(streams=())
    assert aggregate("step", [(alone, Fraction(2))]).time_s == pytest.approx(2 * FORWARD.time_s)


def test_cpu_work_that_leaves_its_memory_idle_is_limited_by_the_cpu() -> None:
    result = simulate(read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=dram"]))
    assert result.step
    limits = {share.cause_text: share.limit for share in result.step.shares if share.group == "host"}
    assert limits["CPU Adam"] == "the speed of the CPU"
    assert not any("transfer" in limit for limit in limits.values())
