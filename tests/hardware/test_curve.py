"""Interpolation between measured points."""

from __future__ import annotations

import pytest

from simoffload.hardware import Curve

PAIR = Curve(((1_000_000, 4_000_000_000), (100_000_000, 12_000_000_000)))


@pytest.mark.parametrize(
    ("size", "rate"),
    [
        (1, 4_000_000_000),
        (1_000_000, 4_000_000_000),
        (10_000_000, 8_000_000_000),  # half of the way in decades
        (100_000_000, 12_000_000_000),
        (10**15, 12_000_000_000),
    ],
)
def test_rate_is_linear_in_the_logarithm_of_the_size(size: int, rate: int) -> None:
    assert PAIR.rate(size) == rate


def test_flat_curve_is_the_same_everywhere() -> None:
    assert {Curve.flat(7).rate(size) for size in (1, 2, 10**12)} == {7}


def test_rate_is_never_zero() -> None:
    assert Curve(((1, 0.25),)).rate(1) == 1
