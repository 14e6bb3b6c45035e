"""How many examples tests try: few by default, many where new ones are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
FEW = 25
"""Examples of a test that does not say how many."""
_MORE = 40
Case = TypeVar("Case")


def one_of_each(names: Sequence[str]) -> list[str]:
    """The first shipped scenario of each folder, and one that only saves checkpoints; all to explore."""
    first = {name.partition("/")[0]: name for name in reversed(names)}
    return [one for one in names if EXPLORES or one in (*first.values(), "checkpoint/mlperf-8b")]


def one_in(number: int, cases: Iterable[Case], *, first: int = 0) -> list[Case]:
    """Every so manieth of cases that have most in common, from ``first`` on; all to explore."""
    listed = list(cases)
    return listed if EXPLORES else listed[first % number :: number]


def some(count: int) -> int:
    """The number of examples of a test that draws ``count`` by default: many times more to explore."""
    return count * _MORE if EXPLORES else count
