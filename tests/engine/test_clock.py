"""Small stories told by a log of what was called when."""

from __future__ import annotations

import pytest

from simoffload.engine.clock import Clock
from simoffload.errors import StalledClockError

Log = list[tuple[int, str]]


@pytest.fixture
def log() -> Log:
    return []


def test_calls_come_in_order_of_time_then_of_requests(log: Log) -> None:
    clock = Clock()
    for time, name in ((20, "late"), (10, "first"), (10, "second")):
        clock.call_at(time, lambda name: log.append((clock.now, name)), name)
    clock.run()
    assert log == [(10, "first"), (10, "second"), (20, "late")]
    assert clock.events == 2  # calls of one time share an event


def test_the_end_of_an_instant_comes_after_everything_else_in_it(log: Log) -> None:
    clock = Clock()

    def note(name: str) -> None:
        log.append((clock.now, name))

    def ask(name: str) -> None:
        note(name)
        clock.call_at_end_of_instant(lambda: note("end"))
        clock.call_at(clock.now, note, "same instant")

    clock.call_at(5, ask, "asks")
    clock.call_at(5, note, "beside")
    clock.call_at(6, note, "next")
    clock.run()
    assert log == [(5, "asks"), (5, "beside"), (5, "same instant"), (5, "end"), (6, "next")]


@pytest.mark.parametrize("start", [9_008 * 10**12, 10**18, 10**30])
def test_a_picosecond_counts_however_late_it_is(log: Log, start: int) -> None:
    """Floats stop telling picoseconds apart at 2^53 ps = 9,007 s."""
    clock = Clock()
    for time in (start + 1, start):
        clock.call_at(time, lambda _: log.append((clock.now, "")), None)
    clock.run()
    assert log == [(start, ""), (start + 1, "")]
    assert type(clock.now) is int


@pytest.mark.parametrize("time", [1.0, True, "1"])
def test_times_must_be_integers(time: object) -> None:
    clock = Clock()
    clock.call_at(1, print, None)
    with pytest.raises(TypeError, match="whole picoseconds"):
        clock.call_at(time, print, None)  # type: ignore[arg-type]


def test_past_times_are_refused() -> None:
    clock = Clock()
    clock.call_at(10, lambda time: clock.call_at(time, print, None), 9)
    with pytest.raises(ValueError, match="9 ps has passed: it is 10 ps"):
        clock.run()


def test_events_without_time_are_stopped() -> None:
    clock = Clock(patience=100, running=lambda: "a loop")

    def again(_: None) -> None:
        clock.call_at(clock.now, again, None)

    clock.call_at(7, again, None)
    with pytest.raises(
        StalledClockError, match="simulated time stands still at 7 ps: 100 events passed; running: a loop"
    ):
        clock.run()


def test_ends_of_an_instant_without_time_are_stopped() -> None:
    clock = Clock(patience=100)

    def again() -> None:
        clock.call_at_end_of_instant(again)

    again()
    with pytest.raises(StalledClockError):
        clock.run()


def test_time_that_advances_is_not_stopped() -> None:
    clock = Clock(patience=3)
    for time in range(1000):
        clock.call_at(time, len, "")
    clock.run()
    assert clock.events == 1000
