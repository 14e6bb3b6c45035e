"""Finding the count at which a need meets what there is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from simoffload.planning.evaluator import largest_that_fits, smallest_that_fits


class Tried:
    """A shortage that remembers for which counts it was asked."""

    def __init__(self, shortage: Callable[[int], float]) -> None:
        self._shortage = shortage
        self.counts: list[int] = []

    def __call__(self, count: int) -> float:
        self.counts.append(count)
        return self._shortage(count)


def test_a_need_that_grows_evenly_is_met_at_once() -> None:
    """22.3 GiB and 0.3 GiB for each: 57.66 of them fill 39.6 GiB."""
    need = Tried(lambda count: (22.3 + 0.3 * count) / 39.6 - 1)
    assert largest_that_fits(need, start=16, most=10**6) == 57
    assert need.counts == [16, 64, 57, 58]


def test_a_need_that_is_shared_evenly_is_met_at_once() -> None:
    """45,012 GiB among 8 GPUs of each machine, which have 6.6 GiB left: 852.5 machines."""
    need = Tried(lambda count: (33 + 45_012 / (8 * count)) / 39.6 - 1)
    assert smallest_that_fits(need, start=1, most=8192) == 853
    assert len(need.counts) <= 6


@pytest.mark.parametrize("start", [1, 7, 100, 5000])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("last", [1, 2, 63, 99, 1000])
def test_needs_of_any_form_end_at_the_same_count(start: int, power: float, last: int) -> None:
    need = Tried(lambda count: count**power - (last + 0.5) ** power)
    assert largest_that_fits(need, start=start, most=10_000) == last
    assert len(need.counts) < 30


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("first", [1, 2, 3, 64, 1000, 8192])
def test_so_do_shares_of_any_form(power: float, first: int) -> None:
    need = Tried(lambda count: (first - 0.5) ** power / count**power - 1)
    assert smallest_that_fits(need, start=1, most=8192) == first
    assert len(need.counts) < 30


def test_what_jumps_is_found_too() -> None:
    assert largest_that_fits(lambda count: -1.0 if count <= 37 else 5.0, start=1, most=100) == 37
    assert smallest_that_fits(lambda count: -1.0 if count >= 37 else 5.0, start=1, most=100) == 37


def test_refused_counts_are_passed_over() -> None:
    def from_ten(count: int) -> float:
        return math.inf if count < 10 else 20 / count - 1

    assert smallest_that_fits(from_ten, start=1, most=100) == 20
    assert largest_that_fits(lambda count: math.inf if count > 12 else -1.0, start=1, most=100) == 12


def test_all_of_them_and_none() -> None:
    assert largest_that_fits(lambda count: count / 1000 - 1, start=4, most=100) == 100
    assert largest_that_fits(float, start=4, most=100) is None
    assert smallest_that_fits(lambda count: 1 / count, start=1, most=8192) is None


def test_what_is_not_shared_is_seen_early() -> None:
    """Half of what lacks stays however many there are: two counts show it, the last confirms it."""
    need = Tried(lambda count: 0.5 + 0.5 / count)
    assert smallest_that_fits(need, start=1, most=8192) is None
    assert need.counts == [1, 2, 8192]
