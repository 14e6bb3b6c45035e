"""Simulated time: SimPy's event queue, in integer picoseconds.

Time is an integer because a float clock cannot resolve picoseconds beyond 2^53 ps (9,007 s): it would then
wait forever for times that have already passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from simpy import Environment
from simpy.events import Event, EventPriority

from simoffload.errors import StalledClockError

T = TypeVar("T")

_PATIENCE = 1_000_000
"""Events without progress of time after which a run counts as stalled; a valid run needs about two."""

_END = EventPriority(2)
"""Priority after every ordinary event of the same time (SimPy's NORMAL is 1)."""

_OVER = EventPriority(3)
"""Priority after the end of the instant, when nothing more can happen in it."""


class _Due(Event):
    """SimPy's Timeout for one callback, created in fewer steps."""

    def __init__(self, env: Environment, delay: int, callback: Callable[[Event], None]) -> None:
        self.env = env
        self.callbacks = [callback]
        self._value = None
        self._ok = True
        env.schedule(self, delay=delay)


class _EndOfInstant(Event):
    """An event that SimPy processes after all ordinary ones of the current time."""

    def __init__(
        self, env: Environment, callback: Callable[[Event], None], priority: EventPriority = _END
    ) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks.append(callback)
        env.schedule(self, priority=priority)


class Clock:
    """Calls functions at given times, in order of time and then of the requests.

    All calls due at the same time share one SimPy event: ranks in lockstep cost one event, not one each.
    """

    def __init__(
        self,
        *,
        patience: int = _PATIENCE,
        running: Callable[[], str] = lambda: "unknown",
    ) -> None:
        self.now = 0
        """Simulated time [ps], without skipped time."""
        self.skipped = 0
        """Skipped simulated time [ps]."""
        self.events = 0
        """Number of SimPy events processed so far."""
        self._environment = Environment(initial_time=0)
        self._due: dict[int, list[tuple[Callable[[Any], object], Any]]] = {}
        self._at_end: list[Callable[[], object]] = []
        self._when_over: list[Callable[[], object]] = []
        self._ringing = False
        self._patience = patience
        self._running = running
        self._events_before_now = 0
        self._next_check = self._latest_check()  # number of events

    def call_at(self, time: int, action: Callable[[T], object], argument: T) -> None:
        """Call ``action(argument)`` at ``time`` [ps].

        Raises TypeError if ``time`` is not a plain int, ValueError if it has passed.
        """
        if type(time) is not int:
            raise TypeError(f"the clock counts whole picoseconds, not {time!r} ({type(time).__name__})")
        calls = self._due.get(time)
        if calls is not None:
            calls.append((action, argument))
            return
        if time < self.now:
            raise ValueError(f"{time} ps has passed: it is {self.now} ps")
        self._due[time] = [(action, argument)]
        _Due(self._environment, time - self.now, self._ring)

    def call_at_end_of_instant(self, action: Callable[[], object]) -> None:
        """Call ``action()`` after all other calls due at the current time."""
        if not self._at_end and not self._ringing:
            _EndOfInstant(self._environment, self._close)
        self._at_end.append(action)

    def call_when_over(self, action: Callable[[], object]) -> None:
        """Call ``action()`` once nothing more happens at the current time; it must not request calls at that
        time."""
        if not self._when_over and not self._ringing:
            _EndOfInstant(self._environment, self._end, _OVER)
        self._when_over.append(action)

    def pending(self) -> list[tuple[int, list[tuple[Callable[[Any], object], Any]]]]:
        """Return the pending calls with their times [ps], the earliest first."""
        return sorted(self._due.items(), key=_time)

    def skip(self, time: int) -> None:
        """Count ``time`` [ps] as passed; pending calls keep their distance from the current time."""
        self.skipped += time

    def run(self) -> None:
        """Advance time until no call is pending.

        Raises StalledClockError if events pass and time does not.
        """
        self._environment.run()

    def _ring(self, _event: Event) -> None:
        now = self._environment.now
        if now != self.now:
            self.now = int(now)
            self._events_before_now = self.events
        self.events += 1
        if self.events >= self._next_check:
            self._check_progress()
        self._ringing = True
        for action, argument in self._due.pop(self.now):
            action(argument)
        self._ringing = False
        if not self._at_end and not self._when_over:
            return
        # All calls due now share this event, so that the end of the instant needs no event of its own, unless
        # further calls have been requested for now.
        if self._at_end and self.now not in self._due:
            self._close(_event)
        if self._at_end:
            _EndOfInstant(self._environment, self._close)
        if not self._when_over:
            return
        if self._at_end or self.now in self._due:
            _EndOfInstant(self._environment, self._end, _OVER)
        else:
            self._end(_event)

    def _close(self, _event: Event) -> None:
        if not self._at_end:
            return  # another call at this time has done it
        self.events += 1
        if self.events >= self._next_check:
            self._check_progress()
        actions, self._at_end = self._at_end, []
        for action in actions:
            action()

    def _end(self, _event: Event) -> None:
        actions, self._when_over = self._when_over, []
        for action in actions:
            action()

    def _check_progress(self) -> None:
        """Raise StalledClockError after too many events, and set when to check again."""
        if self.events - self._events_before_now > self._patience:
            raise StalledClockError(
                f"simulated time stands still at {self.now + self.skipped} ps: {self._patience} events "
                f"passed; running: {self._running()}"
            )
        self._next_check = self._latest_check()

    def _latest_check(self) -> int:
        return self._events_before_now + self._patience + 1


def _time(item: tuple[int, object]) -> int:
    return item[0]
