"""Progress of a question that takes long: how many steps of its loops are done, and what it does now.

A loop that may take long goes through :func:`steps`, a search that is no loop has a :func:`stage`, and
:func:`working_on`, as ``limits.now_doing``, names what happens within a step. Whoever waits for the answer
asks within :func:`watched_by`; where nobody does, nothing is recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

Watcher = Callable[[str], None]
"""Function that is called with a line of text when a step or an activity begins."""


class Progress:
    """The Progress of a question is what it has done, and as far as that is known still has to do.

    Another thread may read it while the question goes on.
    """

    def __init__(self, watcher: Watcher | None = None) -> None:
        self.activity = ""
        """What happens now, within the innermost step."""
        self.ended = 0
        """Number of steps of outermost stages that ran before, without those whose number was unknown."""
        self.stages: tuple[Stage, ...] = ()
        """The stages that run, each within a step of the one before."""
        self._watcher = watcher

    def work_on(self, activity: str) -> None:
        """Set the activity that happens now."""
        self.activity = activity
        if self._watcher is not None:
            self._watcher(self.line)

    @property
    def line(self) -> str:
        """The current steps, from the outermost to the innermost, and the activity."""
        return ": ".join(filter(None, (*(one.text for one in self.stages), self.activity)))

    @property
    def now(self) -> str:
        """What happens now, without the number of the outermost step."""
        names = [one.text if number else one.name for number, one in enumerate(self.stages)]
        return ": ".join(filter(None, (*names, self.activity)))

    @property
    def done(self) -> int:
        """Number of steps of outermost stages that have ended."""
        return self.ended + sum(one.done for one in self.stages[:1] if one.total is not None)

    @property
    def total(self) -> int | None:
        """Number of steps of the outermost stages so far; None while it is unknown."""
        first = next(iter(self.stages), None)
        return None if first is None or first.total is None else self.ended + first.total

    @property
    def share(self) -> float:
        """What part of the total is done, from 0 to 1."""
        inside = 0.0  # of the current step
        for one in reversed(self.stages[1:]):
            inside = (one.done + inside) / one.total if one.total else 0.0
        total = self.total
        return (self.done + inside) / total if total else 0.0

    def time_left(self) -> float | None:
        """Return the time [s] that the stages will probably take from now on; None where that is unknown."""
        now, left = time.monotonic(), None
        for one in reversed(self.stages):
            spent = now - one.stepped
            if one.done:
                each = (one.stepped - one.began) / one.done
            elif left is not None:
                each = spent + left
            else:
                continue
            if one.total is None:
                return None
            left = max(each - spent, left or 0.0) + each * (one.total - one.begun)
        return left


class Stage:
    """A Stage is a loop or a search: how many steps have begun, and as far as that is known, how many it
    has."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self.total = total
        self.begun = 0
        self.name = ""
        """What the current step is about; empty where the number says all."""
        self.began = self.stepped = time.monotonic()
        """Times of the clock [s] at which the stage and its current step began."""
        self._progress, self._around = progress, progress.stages
        progress.stages = (*self._around, self)

    def step(self, name: str = "") -> None:
        """Begin the next step, which ends the one before with all stages in it."""
        self._progress.stages = (*self._around, self)
        self.begun += 1
        if self.total is not None:
            self.total = max(self.total, self.begun)
        self.name, self.stepped = name, time.monotonic()
        if name:
            self._progress.work_on("")

    def reach(self, done: int) -> None:
        """Let so many steps have ended, without names of their own."""
        self.begun, self.stepped = done + 1, time.monotonic()

    def end(self) -> None:
        """End the stage, unless it has ended with the step around it."""
        if self in self._progress.stages:
            self._progress.stages = self._around
            self._progress.ended += 0 if self._around or self.total is None else self.begun

    @property
    def done(self) -> int:
        """Number of steps that have ended."""
        return max(0, self.begun - 1)

    @property
    def text(self) -> str:
        """The current step as text, such as "12 of 60: vllm"."""
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.begun:,}{of}: {self.name}" if self.name else f"{self.begun:,}{of}"


class _Followed(threading.local):
    progress: Progress | None = None


_current = _Followed()


@contextmanager
def watched_by(watcher: Watcher | Progress | None) -> Iterator[None]:
    """Let somebody follow the work inside: a function of one line of text, or who reads a Progress; None: who
    follows it already."""
    before = _current.progress
    if watcher is not None:
        _current.progress = watcher if isinstance(watcher, Progress) else Progress(watcher)
    try:
        yield
    finally:
        _current.progress = before


@contextmanager
def stage(total: int | None = None) -> Iterator[Stage]:
    """Yield a stage of the work, of which every step begins with its ``step``, or with :func:`step`.

    ``total`` is the number of steps; None: unknown. It may grow: ``total`` of the stage can be set.
    """
    found = Stage(_current.progress or Progress(), total)
    try:
        yield found
    finally:
        found.end()


def steps(
    items: Iterable[T], name: Callable[[T], str] = lambda _: "", *, total: int | None = None
) -> Iterator[T]:
    """Yield items, with each of which a step of the work begins.

    ``name`` returns what a step is about. ``total`` is the number of items, by default that of a sequence.
    """
    total = len(items) if total is None and isinstance(items, Sized) else total
    if total == 1:  # nothing to count
        for item in items:
            working_on(name(item))
            yield item
        return
    with stage(total) as one:
        for item in items:
            one.step(name(item))
            yield item


def step(name: str) -> None:
    """Begin the next step of the innermost stage."""
    if _current.progress is not None and _current.progress.stages:
        _current.progress.stages[-1].step(name)


def working_on(activity: str) -> None:
    """Set the activity that happens now, within the current step."""
    if _current.progress is not None:
        _current.progress.work_on(activity)


def clock(seconds: float) -> str:
    """Return a time [s] as minutes and seconds, such as "1:05"."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
