"""What a result hangs on, and in which range it lies."""

from __future__ import annotations

from math import hypot, log

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.planning import explanation as module
from simoffload.planning.confidence import confidence
from simoffload.planning.explanation import ASSUMED, Sensitivity, SensitivityRow, sensitivity, uncertainty
from simoffload.planning.profile_parameters import ProfileParameter, edit_of, scaled
from simoffload.scenario import LoadedScenario, load_scenario, resolve
from simoffload.simulation import simulate
from tests.cli.conftest import SCENARIO


@pytest.fixture(scope="module")
def small() -> LoadedScenario:
    return resolve(parse_yaml(SCENARIO, name="small.yaml"))


@pytest.fixture(scope="module")
def found(small: LoadedScenario) -> Sensitivity:
    return sensitivity(small)


def test_each_row_is_what_a_scenario_with_that_number_gives(
    small: LoadedScenario, found: Sensitivity
) -> None:
    for row in (found.rows[0], found.rows[-1]):
        for factor, time in ((0.9, row.low), (1.1, row.high)):
            one = scaled(row.number, factor)
            if time is not None:
                assert one is not None
                other = small.edited(edit_of(row.number.profile, row.number.key, one[0]))
                assert simulate(other).compared_s == time


def test_the_largest_comes_first_and_every_number_is_accounted_for(
    small: LoadedScenario, found: Sensitivity
) -> None:
    swings = [row.swing for row in found.rows]
    assert swings == sorted(swings, reverse=True)
    assert swings[-1] > 0
    statements = ("wiring", "slots", "gpudirect_storage")  # no numbers
    rendered = sum(one.key.startswith(statements) for one in small.machine.inputs())
    counted = len(found.rows) + found.without_effect + found.left_out
    assert counted == len(small.machine.inputs()) - rendered
    assert len(found.to_frame()) == len(found.rows) == len(found.to_dict()["rows"])


def test_faster_is_better_and_longer_is_worse(found: Sensitivity) -> None:
    elasticities = {(row.number.profile, row.number.key): row.elasticity for row in found.rows}
    assert elasticities["host/dgx-a100-1tib", "deepspeed.hook"] > 0
    assert elasticities["drive/samsung-pm1733-3.84tb", "read"] < 0
    assert sum(elasticities.values()) < 1


def test_a_result_that_is_one_number_has_its_elasticity() -> None:
    """Nearly all of a step is reading at the rate of the drives, which their efficiency multiplies."""
    slow = "profiles={raid0-4x-pm1733-3.84tb: {read_efficiency: 0.01}}"
    found = sensitivity(load_scenario("ddn/bloom-7b1", overrides=[slow, "strategy.weights=raid"]))
    first, second = found.rows[:2]
    assert {first.number.key, second.number.key} == {"read", "read_efficiency"}
    assert first.elasticity == pytest.approx(-1, abs=0.02)
    assert first.low is not None
    assert first.high is not None
    assert first.elasticity == pytest.approx(log(first.high / first.low) / log(1.1 / 0.9))


def test_what_does_not_fit_has_nothing_to_explain() -> None:
    with pytest.raises(InputError, match="so that it has no time to explain: hbm needs"):
        sensitivity(load_scenario("ddn/bloom-176b", overrides=["strategy.weights=gpu"]))


# -- the range ----------------------------------------------------------------------------------


def row(
    key: str,
    elasticity: float,
    origin: str,
    *,
    source: str = "",
    residual: float | None = None,
    profile: str = "host/a",
) -> SensitivityRow:
    number = ProfileParameter(profile, key, "1 s", origin, source or key, residual)
    return SensitivityRow(number, None, None, elasticity, abs(elasticity) / 10)


def ranged(found: Sensitivity, *rows: SensitivityRow) -> module.Uncertainty:
    return uncertainty(Sensitivity(found.result, 0.1, rows, 0, 0))


def test_doubts_about_inputs_add_up_by_their_squares(found: Sensitivity) -> None:
    """0.5 x 30 %, 0.4 x 5 % and 1 x 3 % are sqrt(15² + 2² + 3²) = 15.4 %."""
    one = ranged(found, row("a", 0.5, "estimate"), row("b", -0.4, "spec"), row("c", 1.0, "measured"))
    assert [(term.keys, pytest.approx(term.contribution)) for term in one.terms] == [
        (("a",), 0.15),
        (("c",), 0.03),
        (("b",), 0.02),
    ]
    assert one.of_inputs == pytest.approx(hypot(0.15, 0.02, 0.03))
    assert one.relative == pytest.approx(hypot(one.of_inputs, confidence(found.result).relative_error))
    assert one.low * one.high == pytest.approx(one.time**2)
    assert one.high / one.time == pytest.approx(1 + one.relative)
    assert one.to_dict()["assumed"] == ASSUMED == {"estimate": 0.3, "spec": 0.05, "measured": 0.03}


def test_what_comes_from_one_estimate_is_wrong_together(found: Sensitivity) -> None:
    """Three times 0.1 x 30 % are 9 %, not 5.2 %; of another profile it is another estimate."""
    rows = [row(key, 0.1, "estimate", source="scaled from an H200") for key in "abc"]
    other = row("d", 0.1, "estimate", source="scaled from an H200", profile="host/b")
    first, second = ranged(found, *rows, other).terms
    assert (first.keys, first.contribution) == (("a", "b", "c"), pytest.approx(0.09))
    assert (second.keys, second.contribution) == (("d",), pytest.approx(0.03))
    specs = [row(key, 0.1, "spec", source="one data sheet") for key in "abc"]
    assert len(ranged(found, *specs).terms) == 3


def test_a_fit_that_is_worse_than_measurements_are_has_its_residual(found: Sensitivity) -> None:
    poor, good = row("a", 1.0, "measured", residual=0.2), row("b", 1.0, "measured", residual=0.01)
    assert [term.contribution for term in ranged(found, poor, good).terms] == [0.2, 0.03]


def test_the_range_of_a_result_has_its_largest_doubts(found: Sensitivity) -> None:
    one = uncertainty(found)
    assert one.time == found.result.compared_s
    assert len(one.largest) == 3
    assert one.largest[0].contribution >= one.largest[2].contribution > 0
    assert one.low < one.time < one.high
