"""Search for the number from which something holds, in as many trials as it has digits.

What is left of each capacity is known as a number, so that a few trials find where one ends if the need
grows evenly, or is shared evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import ceil, exp, floor, inf, isfinite, log, sqrt
from types import MappingProxyType
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_PROBES = 8
"""Number of counts between one that fits and its double that are tried, too: our choice."""
_EXACTLY = 1.01
"""Ratio of both ends at which a search over real numbers stops: our choice."""
_APART = 0.01
"""Part of a range by which a trial is within it at least: our choice."""
Room = Callable[[int], Mapping[str, float] | None]
"""Function that returns the share of each capacity that a count leaves free, negative where it does not fit;
None if the count is refused."""


def first_that_holds(values: Sequence[T], holds: Callable[[T], bool]) -> T | None:
    """Return the first of the values for which a condition holds that goes on to hold for all after it; None
    if it holds for none."""
    index = bisect_left(values, True, key=holds)
    return values[index] if index < len(values) else None


class _Attempt(NamedTuple):
    """A count with its room."""

    number: int
    room: Mapping[str, float] | None

    @property
    def fits(self) -> bool:
        return self.room is not None and all(left >= 0 for left in self.room.values())


def first_with_room(count: int, room: Room) -> int | None:
    """Return the first index below ``count`` that fits, of which each leaves more room than the one before;
    None if none fits."""

    def tried(index: int) -> _Attempt:
        return _Attempt(index, room(index))

    first, last = tried(0), tried(count - 1)
    if first.fits:
        return 0
    return _nearest(tried, last, first, float, max) if last.fits else None


def largest_that_fits(room: Room, *, start: int, most: int, falls: Callable[[int], bool]) -> int | None:
    """Return the largest count from 1 to ``most`` of something of which more needs more; None if not even 1
    fits.

    ``start`` is where to begin. ``falls`` returns whether more than a count that does not fit may need less:
    pinned memory in powers of two lets a need fall again before its double, where the search looks as well.
    """

    def tried(count: int) -> _Attempt:
        return _Attempt(count, room(count))

    low, step = tried(min(start, most)), 1
    if not low.fits:
        low, high = tried(1), low
        if not low.fits:
            return None
    else:
        before, high = _Attempt(0, None), low
        while high.fits and high.number < most:
            crossing = _crossing(before, high, float, min)
            following = 4 * high.number if crossing == inf else max(floor(crossing) + 1, high.number + step)
            before, low, high, step = high, high, tried(min(most, following)), 2 * step
        if high.fits:
            return high.number
    found = _nearest(tried, low, high, float, min)
    if not falls(found + 1):
        return found
    beyond = (found + part * found // _PROBES for part in range(_PROBES, 0, -1))
    again = next((one for one in beyond if found + 1 < one <= most and tried(one).fits), None)
    return found if again is None else largest_that_fits(room, start=again, most=most, falls=falls)


def smallest_that_fits(room: Room, *, start: int, most: int) -> int | None:
    """Return the smallest count from ``start`` to ``most`` of something that shares a need; None if none
    fits.

    What is refused at one count may be accepted at its double (GPUs that must divide a number of heads).
    """

    def tried(count: int) -> _Attempt:
        return _Attempt(count, room(count))

    before, last, step = _Attempt(0, None), tried(start), 1
    while not last.fits:
        if last.number == most:
            return None
        if last.room is None:
            following = start << (last.number // start).bit_length()
        elif before.room is None:  # at least, as if all of the need were shared
            following = ceil(last.number * (1 - min(last.room.values())))
        else:
            crossing = min(most, _crossing(before, last, _reciprocal, max))
            following = max(ceil(crossing), last.number + step)
        before, last, step = last, tried(min(most, following)), 2 * step
    return start if last.number == start else _nearest(tried, last, before, _reciprocal, max)


_Scale = Callable[[float], float]
_Pick = Callable[[Sequence[float]], float]


def _nearest(
    tried: Callable[[int], _Attempt], fits: _Attempt, fails: _Attempt, scale: _Scale, pick: _Pick
) -> int:
    """Return the count that fits next to one that does not, between one of each kind.

    Where room is linear in a ``scale``, which is its own inverse, two trials find it, elsewhere halves.
    """
    evenly = True
    while (gap := abs(fits.number - fails.number)) > 1:
        middle = (fits.number + fails.number) // 2
        if evenly and isfinite(crossing := _crossing(fits, fails, scale, pick)):
            rounded = floor(crossing) if fits.number < fails.number else ceil(crossing)
            low, high = sorted((fits.number, fails.number))
            middle = min(max(rounded, low + 1), high - 1)
        trial = tried(middle)
        fits, fails = (trial, fails) if trial.fits else (fits, trial)
        evenly = not evenly or abs(fits.number - fails.number) <= gap // 2
    return fits.number


def _crossing(one: _Attempt, other: _Attempt, scale: _Scale, pick: _Pick) -> float:
    """Return the count at which rooms end that are linear in a scale, the first or the last as ``pick`` has
    it; inf if one stays too small, and if none ends."""
    if one.room is None or other.room is None:
        return inf
    begin, end = scale(one.number), scale(other.number)
    found = []
    for name, here in other.room.items():
        there = one.room.get(name, 1.0)
        part = here / (here - there) if here != there else inf
        at = end + (begin - end) * part if part <= 1 else 0
        if at > 0:
            found.append(scale(at))
        elif here < 0:
            return inf
    return pick(found) if found else inf


def _reciprocal(count: float) -> float:
    return 1 / count


def least_factor(
    low: float,
    high: float,
    margin: Callable[[float], float],
    known: Mapping[float, float] = MappingProxyType({}),
) -> float:
    """Return the smallest factor, to 1 %, at which a margin is not negative, as it is at ``high`` and at all
    larger ones, and not at ``low``.

    It is one of the numbers to which halves of the range lead. Margins between which a line crosses zero say
    which of them to try; ``known`` has those that were computed before.
    """

    def half(factor: float) -> tuple[float, float]:
        begin, end = low, high
        while end / begin > _EXACTLY:
            middle = sqrt(begin * end)
            begin, end = (begin, middle) if factor <= middle else (middle, end)
        return begin, end

    margins = {low: -inf, high: inf, **known}
    holds = min(factor for factor, one in margins.items() if one >= 0)
    fails = max(factor for factor, one in margins.items() if factor < holds)
    evenly = True
    while fails < half(holds)[0]:
        gap, guess = log(holds / fails), sqrt(fails * holds)
        if evenly and isfinite(rise := margins[holds] - margins[fails]):
            guess = fails * exp(gap * min(max(-margins[fails] / rise, _APART), 1 - _APART))
        begin, end = half(guess)
        trial = end if end < holds else begin
        margins[trial] = margin(trial)
        fails, holds = (fails, trial) if margins[trial] >= 0 else (trial, holds)
        evenly = not evenly or log(holds / fails) <= gap / 2
    return half(holds)[1]
