"""Progress counts the steps of what is asked, within each other and after each other."""

from __future__ import annotations

import pytest

from simoffload.progress import Progress, Stage, stage, step, steps, watched_by, working_on


def test_a_function_hears_of_each_step_and_of_what_happens_in_it() -> None:
    heard: list[str] = []
    with watched_by(heard.append):
        for _ in steps(["a", "b"], str):
            for _ in steps(range(2)):
                working_on("prefill")
    assert heard == [
        *("1 of 2: a", "1 of 2: a: 1 of 2: prefill", "1 of 2: a: 2 of 2: prefill"),
        *("2 of 2: b", "2 of 2: b: 1 of 2: prefill", "2 of 2: b: 2 of 2: prefill"),
    ]


def test_nobody_has_to_watch() -> None:
    working_on("prefill")
    assert list(steps([1, 2])) == [1, 2]
    with stage(3) as one:
        one.step("a")
    assert one.begun == 1


def test_the_innermost_watcher_hears() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with watched_by(outer.append), watched_by(inner.append), watched_by(None):
        working_on("prefill")
    assert (outer, inner) == ([], ["prefill"])


def test_stages_after_each_other_add_up_and_those_within_are_parts_of_a_step() -> None:
    progress = Progress()
    shares: list[float] = []
    with watched_by(progress):
        for _ in steps(range(4)):
            pass
        for _ in steps(range(4)):
            shares += (progress.share * 8 for _ in steps(range(2)))
    assert shares == [4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5]
    assert (progress.done, progress.total) == (8, None)


def test_a_stage_may_grow_and_its_length_may_be_unknown() -> None:
    progress = Progress()
    with watched_by(progress), stage(1) as one:
        one.step()
        one.step("b")
        assert (progress.done, progress.total, progress.line) == (1, 2, "2 of 2: b")
        one.total = 10
        assert (progress.total, progress.share) == (10, 0.1)
    with watched_by(progress), stage() as one:
        one.step("c")
        assert (progress.total, progress.share, progress.time_left(), progress.line) == (
            None,
            0,
            None,
            "1: c",
        )


def test_a_step_may_begin_far_from_its_stage() -> None:
    heard: list[str] = []
    step("nowhere")
    with watched_by(heard.append), stage():
        step("a")
        for _ in steps(["b", "c"], str):
            pass
        step("d")
    assert heard == ["1: a", "1: a: 1 of 2: b", "1: a: 2 of 2: c", "2: d"]


def test_what_an_error_leaves_open_ends_with_the_step_around_it() -> None:
    progress = Progress()
    with watched_by(progress):
        for _ in steps(range(2)):
            left = steps(range(5))
            next(left)
            assert len(progress.stages) == 2
            assert progress.now == "1 of 5"
        del left
    assert progress.stages == ()
    assert progress.done == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, whose time [s] a test sets."""
    now = [0.0]
    monkeypatch.setattr("simoffload.progress.time.monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_from_the_steps_that_are_done(clock: list[float]) -> None:
    progress = Progress()
    with watched_by(progress):
        for number in steps(range(5)):
            assert progress.time_left() == (8.0 * (5 - number) if number else None)
            clock[0] += 2.0
            assert progress.time_left() == (8.0 * (5 - number) - 2.0 if number else None)
            clock[0] += 6.0


def test_the_time_left_of_a_first_step_follows_from_the_steps_within_it(clock: list[float]) -> None:
    progress = Progress()
    with watched_by(progress), stage(3) as outer:
        outer.step()
        with stage(4) as inner:
            inner.step()
            clock[0] = 1.0
            assert progress.time_left() is None
            inner.step()
            assert progress.time_left() == 3.0 + 2 * 4.0


def test_another_thread_may_read_while_a_stage_ends() -> None:
    class Ending(Progress):
        """A Progress whose stage ends after it was read once."""

        @property
        def stages(self) -> tuple[Stage, ...]:
            found, self._found = self._found, ()
            return found

        @stages.setter
        def stages(self, found: tuple[Stage, ...]) -> None:
            self._found = found

    def begun() -> Ending:
        progress = Ending()
        one = Stage(progress, 4)
        one.begun, one.name = 2, "b"
        progress.stages = (one,)
        return progress

    assert (begun().total, begun().done, begun().now) == (4, 1, "b")
    assert begun().share == 0  # it has ended when the steps are counted
