"""Exact time: whole picoseconds, or fractions of them where a part of a step happens every so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["Time", "seconds", "whole"]

Time = int | Fraction
"""[ps]"""
_PICO = 1e-12


def seconds(time: Time) -> float:
    """A time [ps] in [s], rounded to the nearest number that a computer has."""
    return float(time) * _PICO


def whole(parts: Sequence[Time]) -> tuple[int, ...]:
    """The parts of a time [ps] in whole picoseconds that sum to the rounded whole.

    By largest remainders: all are rounded down, and those that lost most get one back, the first of equals
    first. No part is off by a picosecond or more.
    """
    low = [part.__floor__() for part in parts]
    missing = round(sum(parts)) - sum(low)
    lost = sorted(range(len(parts)), key=lambda number: low[number] - parts[number])
    for number in lost[:missing]:
        low[number] += 1
    return tuple(low)
