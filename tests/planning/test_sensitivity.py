"""Which inputs a result depends on."""

from __future__ import annotations

from math import log

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.planning.explanation import Sensitivity, sensitivity
from simoffload.planning.profile_parameters import edit_of, scaled
from simoffload.scenario import LoadedScenario, read_scenario, resolve
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


def test_times_that_hardly_matter_are_only_raised(found: Sensitivity) -> None:
    once = {row.number.text.rpartition(" ")[2]: row for row in found.rows if None in (row.low, row.high)}
    assert {"us": once["us"].low, "GB/s": once["GB/s"].high} == {"us": None, "GB/s": None}
    assert min(once["us"].high or 0.0, once["GB/s"].low or 0.0) > (found.result.compared_s or 0.0)


def test_a_result_that_is_one_number_has_its_elasticity() -> None:
    """Nearly all of a step is reading at the rate of the drives, which their efficiency multiplies."""
    slow = "profiles={raid0-4x-pm1733-3.84tb: {read_efficiency: 0.01}}"
    few = ["strategy.weights=raid", "strategy.ranks=2", "workload.output_length=2"]
    found = sensitivity(read_scenario("ddn/bloom-7b1", overrides=[slow, *few]))
    first, second = found.rows[:2]
    assert {first.number.key, second.number.key} == {"read", "read_efficiency"}
    assert first.elasticity == pytest.approx(-1, abs=0.02)
    assert first.low is not None
    assert first.high is not None
    assert first.elasticity == pytest.approx(log(first.high / first.low) / log(1.1 / 0.9))


def test_what_does_not_fit_has_nothing_to_explain() -> None:
    with pytest.raises(InputError, match="so that it has no time to explain: hbm needs"):
        sensitivity(read_scenario("ddn/bloom-176b", overrides=["strategy.weights=gpu"]))


# -- the range ----------------------------------------------------------------------------------
