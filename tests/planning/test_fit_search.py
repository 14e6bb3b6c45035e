"""Finding the count at which a need meets what there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.bisection import Room, largest_that_fits, smallest_that_fits


def room(tried: list[int], *needs: Callable[[int], float]) -> Room:
    """The room of capacities of 1, with a list of the counts that were tried."""

    def left(count: int) -> dict[str, float]:
        tried.append(count)
        return {str(tier): 1 - need(count) for tier, need in enumerate(needs)}

    return left


def largest(left: Room, *, start: int, most: int, falls: bool = True) -> int | None:
    return largest_that_fits(left, start=start, most=most, falls=lambda _: falls)


@pytest.mark.parametrize("start", [1, 7, 100, 5000, 10_000])
@pytest.mark.parametrize("last", [1, 2, 63, 64, 65, 99, 1000, 10_000])
@pytest.mark.parametrize("fixed", [0.0, 0.5])
def test_the_largest_count_is_found_from_any_start(start: int, last: int, fixed: float) -> None:
    tried: list[int] = []
    even = room(tried, lambda count: fixed + (1 - fixed) * count / (last + 0.5))
    assert largest(even, start=start, most=10_000) == last
    assert len(tried) <= 5 + 8, "both ends, where the need crosses the capacity, its neighbours, and beyond"
    tried.clear()
    sudden = room(tried, lambda count: 2 * (count > last))
    assert largest(sudden, start=start, most=10_000) == last
    assert len(tried) <= 2 + 7 + 2 * 13 + 8


@pytest.mark.parametrize("start", [1, 40, 64, 99])
def test_a_need_that_falls_again_before_its_double_is_found(start: int) -> None:
    left = room([], lambda count: 0 if count <= 64 or 70 < count <= 99 else 2)
    assert largest(left, start=start, most=10_000) == 99


@pytest.mark.parametrize("start", [1, 2, 3, 100])
@pytest.mark.parametrize("first", [100, 101, 1000, 8191, 8192])
@pytest.mark.parametrize("fixed", [0.0, 0.5, 0.99])
def test_the_smallest_count_is_found_from_any_start(start: int, first: int, fixed: float) -> None:
    tried: list[int] = []
    even = room(tried, lambda count: fixed + (1 - fixed) * (first - 0.5) / count)
    assert smallest_that_fits(even, start=start, most=8192) == first
    assert len(tried) <= 6, "two below, where the need crosses the capacity, and its neighbours"
    tried.clear()
    sudden = room(tried, lambda count: 2 * (count < first))
    assert smallest_that_fits(sudden, start=start, most=8192) == first
    assert len(tried) <= 14 + 2 * 12


@given(
    parts=st.lists(st.tuples(st.floats(0, 0.9), st.floats(0.01, 5000)), min_size=1, max_size=4),
    start=st.integers(1, 20),
)
def test_the_smallest_count_for_several_tiers(parts: list[tuple[float, float]], start: int) -> None:
    """Each needs a part that stays, and one that is shared."""
    tried: list[int] = []
    left = room(tried, *(lambda count, a=a, b=b: a + b / count for a, b in parts))
    found = smallest_that_fits(left, start=start, most=10**6)
    needed = [max(a + b / count for a, b in parts) for count in (found or 1, max(1, (found or 1) - 1))]
    assert found is not None
    assert needed[0] <= 1
    assert found == start or needed[1] > 1
    assert len(tried) <= 8


@given(
    parts=st.lists(st.tuples(st.floats(0, 0.9), st.floats(1e-5, 0.05)), min_size=1, max_size=4),
    start=st.integers(1, 1000),
)
def test_the_largest_count_for_several_tiers(parts: list[tuple[float, float]], start: int) -> None:
    """Each needs a part that stays, and one for each count."""
    tried: list[int] = []
    left = room(tried, *(lambda count, a=a, b=b: a + b * count for a, b in parts))
    found = largest(left, start=start, most=10**6, falls=False)
    needed = [max(a + b * count for a, b in parts) for count in (found or 1, (found or 1) + 1)]
    assert found is not None
    assert needed[0] <= 1 < needed[1]
    assert len(tried) <= 8


def test_counts_that_are_refused_lie_between_those_that_are_not() -> None:
    """Only powers of two are accepted, and more than 64 never."""

    def left(count: int) -> dict[str, float] | None:
        return {"hbm": 1 - 5.5 / count} if count & (count - 1) == 0 and count <= 64 else None

    assert smallest_that_fits(left, start=1, most=8192) == 8
    assert smallest_that_fits(lambda count: None if count < 3 else {}, start=1, most=8192) == 3
    assert smallest_that_fits(lambda _: None, start=1, most=8192) is None


def test_what_is_not_shared_is_asked_for_few_counts() -> None:
    tried: list[int] = []
    assert smallest_that_fits(room(tried, lambda _: 3), start=1, most=8192) is None
    assert tried == [1, 3, 8192]


def test_what_stays_the_same_or_never_fits() -> None:
    always, never = room([], lambda _: 0), room([], lambda _: 2)
    assert largest(always, start=4, most=100) == 100
    assert largest(never, start=4, most=100) is None
    assert largest(room([], lambda count: count / 3), start=4, most=4) == 3
    assert smallest_that_fits(always, start=4, most=8192) == 4
    assert smallest_that_fits(never, start=1, most=8192) is None
