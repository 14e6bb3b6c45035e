"""Counts at which a need meets what there is, found in few steps: each is the planning of a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Shortage", "largest_that_fits", "smallest_that_fits"]

Shortage = Callable[[int], float]
"""What lacks with a count, as a fraction of what there is: 0 or less fits, infinity is refused."""

_STRIDE = 4
"""By how much a count grows while its end is not in sight."""


class _SearchEnd(NamedTuple):
    """A count that was tried."""

    at: int
    shortage: float

    @property
    def fits(self) -> bool:
        return self.shortage <= 0


class _Scale(NamedTuple):
    """In what the need is nearly linear, and back."""

    there: Callable[[float], float]
    back: Callable[[float], float]


def _inverse(value: float) -> float:
    return 1 / value


_BY_COUNT = _Scale(float, float)
_BY_SHARE = _Scale(_inverse, _inverse)


def largest_that_fits(shortage: Shortage, *, start: int, most: int) -> int | None:
    """The largest count from 1 to ``most`` of something of which more needs more; None if not even 1 fits.

    ``start`` is where to begin.
    """
    first = _SearchEnd(start, shortage(start))
    if not first.fits:
        least = _SearchEnd(1, shortage(1))
        return _between(shortage, least, first, _BY_COUNT) if least.fits else None
    good = first
    while good.at < most:
        ahead = min(most, _STRIDE * good.at)
        end = _SearchEnd(ahead, shortage(ahead))
        if not end.fits:
            return _between(shortage, good, end, _BY_COUNT)
        good = end
    return most


def smallest_that_fits(shortage: Shortage, *, start: int, most: int) -> int | None:
    """The smallest count from ``start`` to ``most`` of something that shares a need; None if none fits."""
    bad = _SearchEnd(start, shortage(start))
    if bad.fits:
        return start
    before: _SearchEnd | None = None
    while bad.at < most:
        ahead = min(most, _ahead(before, bad, most))
        end = _SearchEnd(ahead, shortage(ahead))
        if end.fits:
            return _between(shortage, end, bad, _BY_SHARE)
        before, bad = bad, end
    return None


def _ahead(before: _SearchEnd | None, bad: _SearchEnd, most: int) -> int:
    """A count that should fit if the need falls with 1 / count, as it did from ``before`` to ``bad``."""
    if before is None or not math.isfinite(before.shortage):
        return 2 * bad.at
    slope = (before.shortage - bad.shortage) / (1 / before.at - 1 / bad.at)
    stays = bad.shortage - slope / bad.at
    if slope <= 0 or stays >= 0:  # what is not shared is too much already
        return most
    return max(2 * bad.at, math.ceil(slope / -stays))


def _between(shortage: Shortage, good: _SearchEnd, bad: _SearchEnd, scale: _Scale) -> int:
    """The last count that fits on the way from ``good`` to ``bad``.

    False position, at once there where the need is linear on the scale, with a bisection as every third
    step for needs that are not.
    """
    step = 0
    while abs(good.at - bad.at) > 1:
        step += 1
        count = _guess(good, bad, scale) if step % 3 else (good.at + bad.at) // 2
        end = _SearchEnd(count, shortage(count))
        good, bad = (end, bad) if end.fits else (good, end)
    return good.at


def _guess(good: _SearchEnd, bad: _SearchEnd, scale: _Scale) -> int:
    """Where the need should be met, rounded to the side that fits; strictly between the two."""
    low, high = sorted((good.at + 1, bad.at - 1) if good.at < bad.at else (good.at - 1, bad.at + 1))
    if not math.isfinite(bad.shortage):
        return (low + high) // 2
    part = good.shortage / (good.shortage - bad.shortage)
    near, far = scale.there(good.at), scale.there(bad.at)
    found = scale.back(near + part * (far - near))
    return min(high, max(low, math.floor(found) if good.at < bad.at else math.ceil(found)))
