"""Shortcuts that are verified, and limits of work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simoffload.documents import parse_yaml, yaml_text
from simoffload.engine import execute
from simoffload.errors import ShortcutError, WorkLimitError
from simoffload.results.passes import summarize_pass
from simoffload.results.timeline import Timeline
from simoffload.scenario import read_scenario, resolve
from simoffload.simulation import simulate
from simoffload.simulation.runner import Decoding, Simulated, verify, verify_decoding


@pytest.fixture(scope="module")
def both() -> tuple[Timeline, Timeline]:
    """A decode step with shortcuts and without."""
    plan = read_scenario("ddn/bloom-7b1").plan()
    schedule = plan.schedule(plan.forward("decode 1", 1, 9))
    return execute(schedule), execute(schedule, rank_symmetry=False, steady_state=False)


def test_shortcuts_were_taken_and_change_nothing(both: tuple[Timeline, Timeline]) -> None:
    short, full = both
    assert short.how.skipped
    assert len(short.classes) == 1
    assert short.entries < full.entries / 30
    verify(short, full)


def test_a_picosecond_is_a_difference(both: tuple[Timeline, Timeline]) -> None:
    short, full = both
    with pytest.raises(ShortcutError, match=r"decode 1: makespan is \d+ with shortcuts and \d+ without"):
        verify(replace(short, makespan=short.makespan + 1), full)
    with pytest.raises(ShortcutError, match="link_busy"):
        verify(replace(short, link_busy=(short.link_busy[0] + 1, *short.link_busy[1:])), full)
    *others, last = full.tracks
    last = replace(last, start=last.start[:])
    last.start[0] += 1
    moved = replace(full, tracks=(*others, last), _expanded=None)
    with pytest.raises(ShortcutError, match=r"\(7, 0, .* with shortcuts and \(7, 0, .* without"):
        verify(moved, full)


def test_decode_steps_must_agree_to_the_picosecond_or_within_their_bound() -> None:
    full = Decoding((), 1000)
    verify_decoding(Decoding((), 1000), full)
    with pytest.raises(ShortcutError, match="take 1001 ps from a few and 1000 ps simulated one by one"):
        verify_decoding(Decoding((), 1001), full)


@pytest.mark.parametrize(("bound", "fits"), [(0.001, True), (0.0009, False)])
def test_interpolated_steps_must_agree_within_their_bound(
    both: tuple[Timeline, Timeline], bound: float, fits: bool
) -> None:
    result = summarize_pass(both[0], new_tokens=1, context=9)
    steps = tuple(Simulated(step, (), result, 500, None) for step in (1, 2))
    found, full = Decoding((), 1001, bound, estimated=1), Decoding(steps, 1000)
    if fits:
        verify_decoding(found, full)
    else:
        with pytest.raises(ShortcutError, match="the bound is 1 ps"):
            verify_decoding(found, full)


# An interruption may come between a file's opening and its "with", as that of Ctrl-C may.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_work_is_refused_before_it_begins_and_stopped_when_time_is_up() -> None:
    overrides = ["workload.output_length=1"]
    with pytest.raises(WorkLimitError, match=r'"first pass" has at least [\d,]+ operations; .* allows 1,000'):
        simulate(read_scenario("ddn/bloom-7b1", overrides=[*overrides, "engine.max_events=1000"]))
    with pytest.raises(WorkLimitError, match=r"stopped by engine\.timeout \(--timeout\) after 1e-09 s"):
        read_scenario("ddn/bloom-7b1", overrides=[*overrides, "engine.timeout=1 ns"])


@pytest.mark.parametrize(("model", "window"), [("gpt-oss-20b", 128), ("gemma-2-9b", 4096)])
def test_steps_before_and_after_a_window_is_full(model: str, window: int) -> None:
    """Then layers that were equal differ, so that the schedules of such steps have other blocks."""
    work = {"batch_size": 1, "prompt_length": window - 20, "output_length": 40}
    content = {"name": "window", "model": model, "platform": "dgx-h200", "workload": work}
    content |= {"strategy": {"kind": "transformers"}, "engine": {"decode_extrapolation": "verify"}}
    simulate(resolve(parse_yaml(yaml_text(content), name="window.yaml")))
