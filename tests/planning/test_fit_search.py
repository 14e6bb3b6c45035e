"""Finding the count at which a need meets what there is."""

from __future__ import annotations

import pytest

from simoffload.bisection import largest_that_fits, smallest_that_fits


@pytest.mark.parametrize("start", [1, 7, 100, 5000, 10_000])
@pytest.mark.parametrize("last", [1, 2, 63, 64, 65, 99, 1000, 10_000])
def test_the_largest_count_is_found_from_any_start(start: int, last: int) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count <= last

    assert largest_that_fits(fits, start=start, most=10_000) == last
    assert len(tried) <= 2 + 7 + 13 + 8, "a try at each end, factors of four, halves of the rest, and beyond"


@pytest.mark.parametrize("start", [1, 40, 64, 99])
def test_a_need_that_falls_again_before_its_double_is_found(start: int) -> None:
    assert largest_that_fits(lambda count: count <= 64 or 70 < count <= 99, start=start, most=10_000) == 99


@pytest.mark.parametrize("start", [1, 2, 3, 100])
@pytest.mark.parametrize("first", [100, 101, 1000, 8191, 8192])
def test_the_smallest_count_is_found_from_any_start(start: int, first: int) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count >= first

    assert smallest_that_fits(fits, start=start, most=8192) == first
    assert len(tried) <= 14 + 12


def test_what_stays_the_same_or_never_fits() -> None:
    assert largest_that_fits(lambda _: True, start=4, most=100) == 100
    assert largest_that_fits(lambda _: False, start=4, most=100) is None
    assert largest_that_fits(lambda count: count <= 3, start=4, most=4) == 3
    assert smallest_that_fits(lambda _: True, start=4, most=8192) == 4
    assert smallest_that_fits(lambda _: False, start=1, most=8192) is None
