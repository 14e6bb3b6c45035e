"""Intervals, efficiency and lost work: the papers' own figures, limits, and a simulation of failures."""

from __future__ import annotations

import random
from math import exp, isclose, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.extensions.storage.result import (
    Outlook,
    daly_interval,
    efficiency,
    lost_work,
    outlook,
    run_mtbf,
    stall_per_checkpoint,
    stall_share,
    young_interval,
)

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("mtbf_s", "minutes"),
    [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)],
    ids=["fig3", "fig4", "fig5"],
)
def test_daly_gives_the_optima_under_his_figures(mtbf_s: float, minutes: float) -> None:
    """Captions of figures 3 to 5 of the 2006 paper: dumps of 5 minutes."""
    optimum = daly_interval(cost_s=5 * MINUTE, mtbf_s=mtbf_s) / MINUTE
    assert optimum == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_young_is_the_square_root() -> None:
    assert young_interval(cost_s=50.0, mtbf_s=10_000.0) == 1000.0


def test_daly_meets_young_where_failures_are_rare_and_stops_at_the_mtbf() -> None:
    cost, rare = 1.0, 1e9
    assert daly_interval(cost_s=cost, mtbf_s=rare) == pytest.approx(
        young_interval(cost_s=cost, mtbf_s=rare), rel=1e-4
    )
    assert daly_interval(cost_s=10.0, mtbf_s=4.0) == 4.0


@given(st.floats(1e-4, 1.0), st.floats(0.0, 0.5))
def test_daly_is_near_the_best_efficiency(cost: float, restart: float) -> None:
    """No interval does better than Daly's by more than 0.3 % (cost and restart in units of the MTBF)."""
    chosen = daly_interval(cost_s=cost, mtbf_s=1.0)
    best = max(
        efficiency(interval_s=chosen * 1.02**step, cost_s=cost, restart_s=restart, mtbf_s=1.0)
        for step in range(-120, 121)
    )
    assert efficiency(interval_s=chosen, cost_s=cost, restart_s=restart, mtbf_s=1.0) >= 0.997 * best


def _run(*, interval: float, cost: float, restart: float, mtbf: float, segments: int, seed: int) -> float:
    """Training per time of a run with exponential failures, also during checkpoints and restarts."""
    failures = random.Random(seed)
    clock, done = 0.0, 0
    left = failures.expovariate(1 / mtbf)
    while done < segments:
        if left >= interval + cost:
            clock, left, done = clock + interval + cost, left - interval - cost, done + 1
            continue
        clock += left
        left = failures.expovariate(1 / mtbf)
        while left < restart:
            clock += left
            left = failures.expovariate(1 / mtbf)
        clock, left = clock + restart, left - restart
    return segments * interval / clock


@pytest.mark.parametrize(("interval", "cost", "restart"), [(100, 5, 10), (400, 20, 60), (30, 30, 5)])
def test_efficiency_is_that_of_simulated_failures(interval: float, cost: float, restart: float) -> None:
    mean = _run(interval=interval, cost=cost, restart=restart, mtbf=500.0, segments=60_000, seed=7)
    formula = efficiency(interval_s=interval, cost_s=cost, restart_s=restart, mtbf_s=500.0)
    assert formula == pytest.approx(mean, rel=0.01)


def test_a_run_that_fails_too_often_gets_nowhere() -> None:
    assert efficiency(interval_s=1e6, cost_s=1.0, restart_s=0.0, mtbf_s=1.0) == 0.0


def test_lost_work_is_half_of_a_short_segment_and_the_mtbf_of_a_long_one() -> None:
    assert lost_work(segment_s=10.0, mtbf_s=1e12) == 5.0
    assert lost_work(segment_s=10.0, mtbf_s=1e5) == pytest.approx(5.0, rel=1e-4)
    assert lost_work(segment_s=1e6, mtbf_s=10.0) == pytest.approx(10.0)
    assert lost_work(segment_s=1.0, mtbf_s=1.0) == pytest.approx(1 - 1 / (exp(1) - 1))


def test_stall_is_what_the_window_does_not_hide() -> None:
    assert stall_per_checkpoint(blocking_s=3.0) == 3.0
    assert stall_per_checkpoint(blocking_s=3.0, background_s=10.0, window_s=4.0) == 9.0
    assert stall_per_checkpoint(blocking_s=3.0, background_s=4.0, window_s=10.0) == 3.0
    assert stall_share(stall_s=60.0, interval_s=540.0) == 0.1


def test_nodes_add_their_failure_rates() -> None:
    assert run_mtbf(node_mtbf_s=5000 * HOUR, nodes=100) == 50 * HOUR


def look(blocking_s: float, **known: float | None) -> Outlook:
    """What is not given takes no time, or is not known."""
    times = {"background_s": 0.0, "restore_s": 0.0, "restart_s": 0.0}
    unknown = dict.fromkeys(("overlap_s", "interval_s", "mtbf_s"))
    return outlook(blocking_s=blocking_s, **{**times, **unknown, **known})


def test_outlook_of_a_blocking_checkpoint() -> None:
    seen = look(30.0, restore_s=20.0, interval_s=570.0, mtbf_s=60_000.0, restart_s=100.0)
    assert seen.stall_s == 30.0
    assert seen.share == pytest.approx(0.05)
    assert seen.restart_s == 120.0
    assert seen.young_s == pytest.approx(sqrt(2 * 30 * 60_000))
    assert seen.lost_work_s == pytest.approx(300.0, rel=0.01)
    assert seen.efficiency is not None
    assert seen.best_efficiency is not None
    assert seen.best_efficiency > seen.efficiency


def test_outlook_of_a_snapshot_waits_for_the_one_before_and_loses_its_latency() -> None:
    often, seldom = (look(1.0, background_s=50.0, interval_s=each, mtbf_s=1e7) for each in (40.0, 99.0))
    assert often.stall_s == 11.0
    assert seldom.stall_s == 1.0
    assert seldom.lost_work_s == pytest.approx(50.0 + 50.0, rel=1e-3)


def test_outlook_of_a_decoupled_checkpoint_hides_one_step_only() -> None:
    seen = look(0.0, background_s=12.0, restore_s=5.0, overlap_s=9.0, interval_s=1000.0)
    assert seen.stall_s == 3.0
    assert seen.commit_s == 12.0
    assert seen.daly_s is None


def test_outlook_without_an_interval_has_no_share() -> None:
    seen = look(1.0, background_s=2.0, restore_s=3.0, mtbf_s=1e6)
    assert seen.stall_s == 1.0
    assert seen.share is None
    assert seen.efficiency is None
    assert seen.daly_s is not None
    assert isclose(seen.daly_s, daly_interval(cost_s=1.0, mtbf_s=1e6))
