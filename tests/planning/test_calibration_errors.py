"""Errors of comparable real runs, and the widths that follow from them."""

from __future__ import annotations

from math import exp, hypot, log
from typing import Any, get_args

import pytest

from simoffload.planning.errors import (
    CalibrationError,
    Comparable,
    ErrorTable,
    LimitedBy,
    RealTimes,
    calibration_errors,
    parsed,
    written,
)

TIME = Comparable("zero", "link", "own")
TENTHS = (*[0.8] * 4, *[1.0] * 5, *[1.2] * 4)
"""P10 and P90 are 0.8 and 1.2."""


def row(machine: str, *ratios: float, held_out: bool = True, **about: Any) -> RealTimes:
    return RealTimes("zero", "link", "own", machine, held_out, ratios)._replace(**about)


def of(*rows: RealTimes, time: Comparable = TIME, without: str = "") -> CalibrationError:
    return ErrorTable(rows).of(time, without=without)


def test_the_shipped_table_has_an_interval_for_every_limit() -> None:
    table = calibration_errors()
    assert parsed(written(table.rows)) == table
    for limit in get_args(LimitedBy):
        low, high = table.factors(Comparable("", limit, "estimated"))
        assert 0.2 < low <= 1 < high < 5, limit


def test_an_interval_is_that_of_nine_tenths_of_comparable_times() -> None:
    """A third more, in logarithms, for two machines; hardly more for very many."""
    for machines, wider in {1: 1, 2: 4 / 3, 3: 5 / 4, 99: 1.01}.items():
        found = of(*(row(f"m{number}", *TENTHS) for number in range(machines)))
        assert found.low == pytest.approx(0.8**wider, rel=1e-9)
        assert found.high == pytest.approx(1.2**wider, rel=1e-9)
        assert (found.runs, found.machines, found.held_out) == (13 * machines, machines, True)


def test_evidence_to_one_side_makes_an_interval_to_one_side() -> None:
    slower = of(row("a", *(one + 0.5 for one in TENTHS)))
    assert slower.low == 1
    assert slower.high == pytest.approx(1.7)
    assert (slower.mean, slower.worst) == (pytest.approx(0.32, abs=0.02), pytest.approx(1 / 1.7 - 1))


def test_a_machine_is_predicted_without_its_own_errors() -> None:
    rows = row("a", *[1.0] * 9), row("b", *[2.0] * 9)
    assert of(*rows, without="b").high == 1.0
    assert of(*rows, without="a").high == 2.0


def test_held_out_times_count_and_others_where_there_are_fewer_than_five() -> None:
    seen, held = row("a", *[1.0] * 9, held_out=False), row("b", *[1.2] * 5)
    assert (of(seen, held).runs, of(seen, held).held_out) == (5, True)
    few = held._replace(ratios=held.ratios[:4])
    assert (of(seen, few).runs, of(seen, few).held_out) == (13, False)


def test_too_few_times_are_those_of_other_runs_and_a_stated_factor_wider() -> None:
    other = row("a", *[1.1] * 9, program="fsdp")
    table = ErrorTable((other, row("b", *[3.0] * 4, evidence="shipped")))
    assert table.of(TIME)[:3] == ("", "link", "own")
    assert table.of(TIME._replace(evidence="estimated"))[:3] == ("", "link", "")
    more = ErrorTable((other, row("b", *[3.0] * 5, evidence="shipped")))
    assert more.of(TIME)[:3] == ("zero", "link", "")
    low, high = table.factors(TIME)
    assert (low, high) == pytest.approx((1 / 1.2, exp(hypot(log(1.1), log(1.2)))))


def test_another_machine_differs_as_machines_of_other_classes_do() -> None:
    """Medians of 1, 1.1, 1.2 and 1.3 have a standard deviation of 0.113 in logarithms."""
    four = [row(f"m{at}", 1 + at / 10, 0.1, 9.0) for at in range(4)]
    table = ErrorTable((*four, row("a", *[1.0] * 9, program="fsdp")))
    low, high = table.factors(Comparable("fsdp", "link", "own"))
    assert (low, high) == pytest.approx((exp(-1.2816 * 0.1127), exp(1.2816 * 0.1127)), rel=1e-3)
    assert ErrorTable(table.rows[1:]).between == pytest.approx(log(1.2)), "no class says it"
    assert 0.1 < calibration_errors().between < 0.2


@pytest.mark.parametrize("unlike", [1, 2, 5])
def test_each_thing_that_no_run_did_adds_an_error(unlike: int) -> None:
    table = ErrorTable((row("a", *[1.1] * 9),))
    assert table.factors(TIME)[0] == pytest.approx(1 / 1.2), "one machine"
    low, high = table.factors(TIME._replace(unlike=unlike))
    assert low == pytest.approx(exp(-(unlike**0.5) * log(1.4)))
    assert high == pytest.approx(exp(hypot(log(1.1), unlike**0.5 * log(1.4))))
    with_few = table.factors(TIME._replace(program="other", unlike=unlike))
    assert with_few == (low, high), "a reason counts once"
