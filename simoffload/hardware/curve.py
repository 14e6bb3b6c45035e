"""Interpolation of measured points."""

from __future__ import annotations

from bisect import bisect_left
from math import log
from typing import NamedTuple

__all__ = ["Curve"]


class Curve(NamedTuple):
    """Points (x, y) with x rising; y is linear in log x between them and level beyond both ends."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def flat(cls, rate: int) -> Curve:
        """The same ``rate`` [B/s] for every size."""
        return cls(((1, rate),))

    def at(self, x: float) -> float:
        """The value at ``x``."""
        index = bisect_left(self.points, x, key=lambda point: point[0])
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (left, low), (right, high) = self.points[index - 1], self.points[index]
        return low + (high - low) * log(x / left) / log(right / left)

    def covers(self, x: float) -> bool:
        """Whether ``x`` lies between the points, or there is only one point, which says nothing of range."""
        return len(self.points) == 1 or self.points[0][0] <= x <= self.points[-1][0]

    def lower(self, other: Curve) -> Curve:
        """The lower of two curves, at the points of both."""
        sizes = sorted({x for x, _ in (*self.points, *other.points)})
        return Curve(tuple((x, min(self.at(x), other.at(x))) for x in sizes))

    def rate(self, size: int) -> int:
        """[B/s] at ``size`` [B], whole and at least 1."""
        return max(1, int(self.at(size)))
