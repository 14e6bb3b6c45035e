"""At which price a verdict about two answers turns round."""

from __future__ import annotations

from typing import Literal, NamedTuple

from simoffload.planning.costs.economics import Economics

__all__ = ["FIRST", "SECOND", "Flip", "flips"]

FIRST, SECOND = "all that the first buys", "all that the second buys"


class Flip(NamedTuple):
    """A price at which two answers come to the same."""

    what: str
    """The price that is varied, all others fixed: "accelerator/l40s", "memory per GB"."""
    now: float
    at: float
    """Where both cost the same."""
    first_cheaper_above: bool
    """Whether the first answer is the cheaper one above it."""


class _Line(NamedTuple):
    """Cost of a unit of work as a function of one price: at zero, and for each unit of it."""

    fixed: float
    slope: float


def flips(first: Economics, second: Economics, *, electricity: bool = True) -> tuple[Flip, ...]:
    """For each price where one of two answers pays it more often per unit of work, where both cost the same.

    The cost of a token (or checkpoint) is (purchase / hours + worn drives + electricity per hour) x its
    time, a line in each price; without ``electricity`` it is hardware alone, as in returns on invested
    hardware. The whole purchase of either counts as a price, too (``FIRST``, ``SECOND``). Prices at which
    the lines do not meet at or above zero are left out. The nearest to today's price comes first.
    """
    found = []
    for what, now in _prices(first, second):
        mine, other = (
            _line(one, what == whole or what, now, electricity=electricity)
            for one, whole in ((first, FIRST), (second, SECOND))
        )
        if mine is None or other is None or mine.slope == other.slope:
            continue
        at = (other.fixed - mine.fixed) / (mine.slope - other.slope)
        if at >= 0:
            found.append(Flip(what, now, at, first_cheaper_above=mine.slope < other.slope))
    return tuple(sorted(found, key=lambda flip: abs(flip.at - flip.now) / (flip.now or 1.0)))


def _prices(first: Economics, second: Economics) -> list[tuple[str, float]]:
    """All prices of two answers, and the sums of each, by name."""
    single = {figure.what: figure.value for one in (first, second) for figure in one.bill.prices}
    sums = {FIRST: first.purchase or 0.0, SECOND: second.purchase or 0.0}
    return [*single.items(), *sums.items()]


def _line(one: Economics, what: str | Literal[True], now: float, *, electricity: bool) -> _Line | None:
    """``what`` is a price, or True for the whole purchase; None where nothing is known."""
    if one.energy is None or one.purchase is None:
        return None
    hours = one.energy.time_s / 3600 / one.units
    per_h = (one.metrics()["electricity_per_h"] or 0.0) if electricity else 0.0
    paid = 1.0 if what is True else one.bill.paid(what)
    again = sum(worn.paid_per_h for worn in one.replacements if worn.price == what)
    per_h += sum(worn.per_h for worn in one.replacements if worn.price != what)
    slope = paid / one.hours + again
    return _Line(((one.purchase - paid * now) / one.hours + per_h) * hours, slope * hours)
