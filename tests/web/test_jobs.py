"""Questions that worker processes answer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from simoffload.extensions.web.jobs import Jobs, Kind, _progress_texts
from simoffload.extensions.web.questions import START
from simoffload.extensions.web.state import State, Variant
from simoffload.limits import Limits
from simoffload.progress import Progress, stage, watched_by

LONG = State((Variant("training/gpt-1t"),))


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_answer_is_made_once(jobs: Jobs) -> None:
    first = jobs.ask("a", "quick", "answer", START, wait=60)
    assert first.value.sentence.startswith("gpt-oss-120b")
    assert jobs.ask("b", "quick", "answer", START, wait=0) == first


def test_a_mistake_is_an_answer(jobs: Jobs) -> None:
    found = jobs.ask("a", "quick", "answer", START, "nonsense", 1, wait=60)
    assert found.problems == ("nonsense: this page has no such input",)


def test_what_fails_in_code_is_one_line(jobs: Jobs) -> None:
    found = jobs.ask("a", "quick", "answer", None, wait=60)
    assert [one.startswith("internal error: ") for one in found.problems] == [True]


def test_a_page_can_know_whether_it_waits_for_an_answer(jobs: Jobs) -> None:
    """Then what follows the old answer is no longer looked for."""
    jobs.ask("w", "slow", "next", LONG, wait=0)
    assert jobs.answers("w", "slow")
    jobs.cancel("w", "slow")
    assert not jobs.answers("w", "slow")


def test_progress_has_a_share_and_the_time_left() -> None:
    progress = Progress()
    with watched_by(progress), stage(4) as parts:
        parts.step("one")
        parts.step("two")
        share, left, now = _progress_texts(progress)
    assert (share, now) == ("25%", "two")
    assert left.endswith(" left")


def test_the_next_question_ends_the_one_before(jobs: Jobs) -> None:
    assert jobs.ask("a", "slow", "next", LONG, wait=0.3).progress
    began = time.monotonic()
    found = jobs.ask("a", "slow", "next", State((Variant("xinnor/llama-1b"),)), wait=60)
    assert found.value is not None
    assert time.monotonic() - began < 30


def test_a_question_says_how_far_it_is_and_ends_at_its_limit() -> None:
    own = Jobs({"slow": Kind(1, Limits(8.0))})
    try:
        seen, said = set[str](), list[str]()

        def ended() -> bool:
            found = own.ask("a", "slow", "next", LONG, wait=0.1)
            seen.add(found.progress)
            said.extend([found.value.note] if found.value else found.problems)
            return not found.progress

        wait_for(ended)
        assert len(seen - {"", "waiting"}) > 1, seen
        assert re.search(r"\(--timeout\).*raise the limit", said[-1]), said
        assert own.ask("b", "slow", "next", State((Variant("no such\n"),)), wait=60).value  # works again
    finally:
        own.close()


@pytest.mark.parametrize("text", ["name: x\n" * 200_000, "[" * 100_000, "x: " + "9" * 100_000])
def test_no_document_stops_a_worker(jobs: Jobs, text: str) -> None:
    found = jobs.ask("a", "check", "check", Variant(f"{text}\n"), wait=60)
    assert found.value or found.problems
    assert jobs.ask("a", "check", "check", Variant("name: x\n"), wait=60).value
