"""Search for the number from which something holds, in as many trials as it has digits.

What is left of a capacity is known as a number, so that a few trials find where it ends if the need grows
evenly, or is shared evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, floor, inf, isfinite, sqrt
from typing import TypeVar

__all__ = ["Room", "first_that_holds", "largest_that_fits", "least_factor", "smallest_that_fits"]

T = TypeVar("T")
_PROBES = 8
"""Number of counts between one that fits and its double that are tried, too: our choice."""
_EXACTLY = 1.01
"""Ratio of both ends at which a search over real numbers stops: our choice."""
Room = Callable[[int], float]
"""Function that returns the share of the capacity that a count leaves free: negative if it does not fit, -inf
if it is refused."""

_Tried = tuple[int, float]  # a count and its room


def first_that_holds(values: Sequence[T], holds: Callable[[T], bool]) -> T | None:
    """Return the first of the values for which a condition holds that goes on to hold for all after it; None
    if it holds for none."""
    index = bisect_left(values, True, key=holds)
    return values[index] if index < len(values) else None


def largest_that_fits(room: Room, *, start: int, most: int) -> int | None:
    """Return the largest count from 1 to ``most`` of something of which more needs more; None if not even 1
    fits.

    ``start`` is where to begin. Pinned memory in powers of two lets a need fall again before its double,
    where the search looks as well.
    """
    start = min(start, most)
    before, low, step = (0, -inf), (start, room(start)), 1
    if low[1] < 0:
        before, low = low, (1, room(1)) if start > 1 else low
        if low[1] < 0:
            return None
    while before[0] < low[0] < most:
        crossing = _crossing(before, low, float)
        following = 4 * low[0] if crossing == inf else max(floor(crossing) + 1, low[0] + step)
        before, low, step = low, (min(most, following), room(min(most, following))), 2 * step
        if low[1] < 0:
            before, low = low, before
    found = low[0] if low[0] == most else _nearest(room, low, before, float)
    beyond = (found + part * found // _PROBES for part in range(_PROBES, 0, -1))
    again = next((one for one in beyond if found + 1 < one <= most and room(one) >= 0), None)
    return found if again is None else largest_that_fits(room, start=again, most=most)


def smallest_that_fits(room: Room, *, start: int, most: int) -> int | None:
    """Return the smallest count from ``start`` to ``most`` of something that shares a need; None if none
    fits.

    What is refused at one count may be accepted at its double (GPUs that must divide a number of heads).
    """
    before, low, step = (0, -inf), (start, room(start)), 1
    while low[1] < 0:
        if low[0] == most:
            return None
        if not isfinite(low[1]):
            following = start << (low[0] // start).bit_length()
        elif isfinite(before[1]):
            crossing = min(most, _crossing(before, low, _reciprocal))
            following = max(ceil(crossing), low[0] + step)
        else:  # at least, as if all of the need were shared
            following = ceil(low[0] * (1 - low[1]))
        before, low, step = low, (min(most, following), room(min(most, following))), 2 * step
    return low[0] if low[0] == start else _nearest(room, low, before, _reciprocal)


def _nearest(room: Room, fits: _Tried, fails: _Tried, scale: Callable[[float], float]) -> int:
    """Return the count with room next to one without, between one of each kind.

    Room that is linear in a ``scale``, which is its own inverse, is found in two trials, any other by halves.
    """
    evenly = True
    while (gap := abs(fits[0] - fails[0])) > 1:
        middle = (fits[0] + fails[0]) // 2
        if evenly and isfinite(crossing := _crossing(fits, fails, scale)):
            ends = sorted((fits[0], fails[0]))
            rounded = floor(crossing) if fits[0] < fails[0] else ceil(crossing)
            middle = min(max(rounded, ends[0] + 1), ends[1] - 1)
        tried = middle, room(middle)
        fits, fails = (tried, fails) if tried[1] >= 0 else (fits, tried)
        evenly = not evenly or abs(fits[0] - fails[0]) <= gap // 2
    return fits[0]


def _crossing(one: _Tried, other: _Tried, scale: Callable[[float], float]) -> float:
    """Return the count at which room ends that is linear in a scale; inf if it does not, or is not known."""
    (begin, there), (end, here) = one, other
    if here == there or not isfinite(here - there) or here / (here - there) > 1:
        return inf
    found = scale(end) + (scale(begin) - scale(end)) * here / (here - there)
    return scale(found) if found > 0 else inf


def _reciprocal(count: float) -> float:
    return 1 / count


def least_factor(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Return the smallest factor, to 1 %, for which a condition holds; it holds for ``high`` and for all
    larger ones."""
    while high / low > _EXACTLY:
        middle = sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
