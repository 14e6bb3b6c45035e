"""All decode steps of a generation from a few simulated ones.

Of step to step only one thing changes: the attention reads a longer cache, and lasts x. From the course of a
simulated step it can be known how long later ones take (``longer``), to the picosecond, as long as nothing
else comes to decide. The first step behind that is simulated next. Where nothing can be known the step in the
middle is simulated and each half looked at; what is left after ``MOST`` simulated steps is interpolated, and
how far simulated steps lay from the line between their neighbours is the bound that is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from simoffload.errors import ShortcutError
from simoffload.results import PassResult, Timeline

MOST = 16
"""Maximum number of steps that are simulated before the rest is interpolated."""
_REMEMBERED = 4096
"""Number of steps whose durations are cached, as they are read twice."""
_SAFETY = 2
"""Safety factor on the largest observed distance for the error bound: our choice."""

Durations = tuple[int, ...]


class Simulated(NamedTuple):
    """A Simulated is a decode step that was simulated."""

    step: int
    durations: Durations
    """GPU time of each module [ps]."""
    result: PassResult
    time: int
    """[ps]"""
    timeline: Timeline | None
    """Timeline of the step; None where nothing can be derived from it."""


class Decoding(NamedTuple):
    """Decoding holds the times of all decode steps."""

    simulated: tuple[Simulated, ...]
    """Simulated decode steps, in order of context."""
    total: int
    """Total time of all steps [ps]."""
    bound: float = 0.0
    """Relative error bound of an interpolated step; 0 = all are exact."""
    estimated: int = 0
    """Number of steps that are not known exactly."""


Later = Callable[[Simulated, int], int | None]
"""Function that derives the time [ps] of a later step from a simulated one; None if it must be simulated."""


def decode(
    steps: int,
    durations: Callable[[int], Durations],
    run: Callable[[int], Simulated],
    later: Later,
    *,
    most: int = MOST,
) -> Decoding:
    """Return the times of the decode steps 1 … ``steps``; ``run`` simulates one, ``durations`` says what
    differs."""
    if steps == 0:
        return Decoding((), 0)
    durations = lru_cache(maxsize=_REMEMBERED)(durations)
    known = {1: run(1)}
    open_ends = [(1, steps)]
    done: list[_DecodeRange] = []
    while open_ends:
        low, high = open_ends.pop(0)
        if low == high:
            continue
        may_run = len(known) + 1 < most  # one more for the end of what is interpolated
        last, time = _farthest(known[low], high, later, search=may_run)
        stretch = _certain(known[low], last, time, durations) if last > low else None
        if stretch is not None:
            done.append(stretch)
            if last < high:
                open_ends.append((last + 1, high))
        elif high - low > 1 and may_run:
            open_ends += [(low, (low + high) // 2), ((low + high) // 2, high)]
        else:
            end = known[high] = known.get(high) or run(high)
            done.append(
                _DecodeRange(known[low], end.durations, end.time, high, None if high - low > 1 else 0)
            )
        for begin, _ in open_ends:
            known[begin] = known.get(begin) or run(begin)
    simulated = tuple(known[step] for step in sorted(known))
    lasts = {one.last for one in done}
    total = sum(one.inner(durations) + one.time for one in done)
    total += sum(one.time for one in simulated if one.step not in lasts)
    estimated = sum(one.last - one.low.step - 1 for one in done if one.grown is None)
    bound = _SAFETY * max(_distances(simulated), default=0.0) if estimated else 0.0
    return Decoding(simulated, total, bound, estimated)


def _farthest(low: Simulated, last: int, later: Later, *, search: bool) -> tuple[int, int]:
    """Return the last step up to ``last`` whose time [ps] is certain, and that time; ``low`` if there is
    none.

    Without ``search`` it is ``last`` or ``low``. What is certain for a step is so for those before it.
    """
    certain, time, doubtful = low.step, low.time, last + 1
    step = last
    while certain < step < doubtful:
        found = later(low, step)
        if found is None:
            doubtful = step
        else:
            certain, time = step, found
        step = (certain + doubtful) // 2 if search else certain
    return certain, time


def verify_decoding(found: Decoding, full: Decoding) -> None:
    """Raise ShortcutError unless all steps together take as long as in ``full``, or within the bound."""
    difference = abs(found.total - full.total)
    allowed = found.bound * sum(one.time for one in full.simulated) if found.estimated else 0
    if difference > allowed:
        bound = f"; the bound is {allowed:.0f} ps" if allowed else ""
        raise ShortcutError(
            f"decode steps take {found.total} ps from a few and {full.total} ps simulated one by one{bound}"
        )


class _DecodeRange(NamedTuple):
    """A _DecodeRange is the steps between a simulated one and a later one whose time is known."""

    low: Simulated
    durations: Durations
    """GPU time of each module in the last step [ps]."""
    time: int
    """Time of the last step [ps]."""
    last: int
    grown: int | None
    """[ps] by which the attention lasts longer than at first, over all steps between; None if these are not
    certain."""

    def inner(self, durations: Callable[[int], Durations]) -> int:
        """Return the time [ps] of all steps between the two."""
        between = range(self.low.step + 1, self.last)
        if self.grown is None:
            return sum([self.at(durations(step)) for step in between])
        rise, growth = self.time - self.low.time, self._growth()
        return len(between) * self.low.time + (self.grown * rise // growth if growth else 0)

    def at(self, between: Durations) -> int:
        """Return the time [ps] of a step between: it grows in proportion to the attention."""
        rise, growth = self.time - self.low.time, self._growth()
        for mine, low, high in zip(between, self.low.durations, self.durations, strict=True):
            if low != high:
                return self.low.time + (2 * rise * (mine - low) + growth) // (2 * growth)
        return self.low.time

    def _growth(self) -> int:
        """Return by how much [ps] the attention lasts longer in the last step."""
        pairs = zip(self.low.durations, self.durations, strict=True)
        return next((high - low for low, high in pairs if low != high), 0)


def _certain(
    low: Simulated, last: int, time: int, durations: Callable[[int], Durations]
) -> _DecodeRange | None:
    """Return the steps up to ``last``, which takes ``time`` [ps], if one duration alone changes, and is
    nowhere longer than at the last nor shorter than at the first; else None."""
    first, final = low.durations, durations(last)
    grow = [i for i, pair in enumerate(zip(first, final, strict=True)) if pair[0] != pair[1]]
    if not grow:
        same = all(durations(step) == first for step in range(low.step + 1, last))
        return _DecodeRange(low, final, low.time, last, 0) if same else None
    if len({first[i] for i in grow}) > 1:
        return None
    least, most, grown = first[grow[0]], final[grow[0]], 0
    for step in range(low.step + 1, last + 1):
        own = durations(step)
        mine = own[grow[0]]
        if not least <= mine <= most:
            return None
        if own != tuple([mine if i in grow else value for i, value in enumerate(first)]):
            return None
        grown += mine - least
    return _DecodeRange(low, final, time, last, grown - (most - least))


def _distances(simulated: tuple[Simulated, ...]) -> Iterator[float]:
    """Yield how far each simulated step is from the line between its neighbours, relative to its time."""
    for low, middle, high in zip(simulated, simulated[1:], simulated[2:], strict=False):
        line = _DecodeRange(low, high.durations, high.time, high.step, None)
        yield abs(line.at(middle.durations) - middle.time) / middle.time
