"""Search by bisection for the number from which something holds, in as many trials as it has digits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeVar

__all__ = ["Fits", "first_that_holds", "largest_that_fits", "least_factor", "smallest_that_fits"]

T = TypeVar("T")
_PROBES = 8
"""Number of counts between one that fits and its double that are tried, too: our choice."""
_EXACTLY = 1.01
"""Ratio of both ends at which a search over real numbers stops: our choice."""
Fits = Callable[[int], bool]
"""Function that returns whether a count fits."""


def first_that_holds(values: Sequence[T], holds: Callable[[T], bool]) -> T | None:
    """Return the first of the values for which a condition holds that goes on to hold for all after it; None
    if it holds for none."""
    index = bisect_left(values, True, key=holds)
    return values[index] if index < len(values) else None


def largest_that_fits(fits: Fits, *, start: int, most: int) -> int | None:
    """Return the largest count from 1 to ``most`` of something of which more needs more; None if not even 1
    fits.

    ``start`` is where to begin. Pinned memory in powers of two lets a need fall again before its double,
    where the search looks as well.
    """
    start = min(start, most)
    if fits(start):
        low, high = start, min(most, 4 * start)
        while low < most and fits(high):
            low, high = high, min(most, 4 * high)
    elif fits(1):
        low, high = 1, start
    else:
        return None
    found = low + bisect_left(range(low + 1, high), True, key=lambda count: not fits(count))
    beyond = (found + part * found // _PROBES for part in range(_PROBES, 0, -1))
    again = next((one for one in beyond if found + 1 < one <= most and fits(one)), None)
    return found if again is None else largest_that_fits(fits, start=again, most=most)


def smallest_that_fits(fits: Fits, *, start: int, most: int) -> int | None:
    """Return the smallest count from ``start`` to ``most`` of something that shares a need; None if none
    fits."""
    low, high = start - 1, start
    while not fits(high):
        if high == most:
            return None
        low, high = high, min(most, 2 * high)
    return low + 1 + bisect_left(range(low + 1, high), True, key=fits)


def least_factor(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Return the smallest factor, to 1 %, for which a condition holds; it holds for ``high`` and for all
    larger ones."""
    while high / low > _EXACTLY:
        middle = sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
