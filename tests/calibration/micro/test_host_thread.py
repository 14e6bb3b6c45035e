"""The costs of a host thread: those of the reference host times a factor, as far as small models determine
them."""

from __future__ import annotations

import copy
import random
from math import hypot, log
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.hardware import HOST_SPREAD
from simoffload.units import parse_seconds
from simoffload_calibrate.host_costs import COSTS, REAL_MODELS, TRAINING, Observation, of_real_models
from simoffload_calibrate.micro import fit_programs
from simoffload_calibrate.micro.fit_parts import Fitted
from simoffload_calibrate.micro.fit_programs import ThreadFit, fit_thread
from simoffload_calibrate.reference import REFERENCE_PROBE, ReferenceCost, reference_costs
from simoffload_calibrate.small_models import held_back_cases, small_cases
from tests.calibration.micro import machine
from tests.calibration.micro.machine import FACTOR, record
from validation.reference_costs import pooled


@pytest.fixture
def raw() -> dict[str, Any]:
    return copy.deepcopy(record(gpus=1))


def fitted(raw: dict[str, Any]) -> ThreadFit:
    found = fit_thread(raw, machine.base())
    assert found is not None
    return found


def seconds(one: Fitted) -> float:
    return parse_seconds(one.value)


def test_a_slower_host_takes_longer_for_everything(raw: dict[str, Any]) -> None:
    thread = fitted(raw)
    assert thread.factor == pytest.approx(FACTOR, rel=0.01)
    inference, training = thread.costs()
    for key, value in of_real_models(machine.COSTS).items():
        if key not in TRAINING:
            assert seconds(inference[key]) == pytest.approx(value, rel=0.02), key
    assert inference["hook"].measured
    assert inference["coalesced_call"].value == "75 us", "an estimate of 50 us, times the factor"
    assert not training["backward_call"].measured, "no training was measured"
    backward = reference_costs()["backward_call"].value * 1.12
    assert seconds(training["backward_call"]) == pytest.approx(FACTOR * backward, rel=0.01)
    assert training["graph"].value == pytest.approx(reference_costs()["graph"].value, abs=1e-3), "a share"


def test_several_ranks_show_what_gathering_costs() -> None:
    thread = fitted(record(gpus=2))
    collective = thread.costs()[0]["collective_call"]
    assert collective.measured
    assert seconds(collective) == pytest.approx(machine.COSTS["collective_call"] * REAL_MODELS, rel=0.05)


def test_a_quiet_host_shows_its_own_proportions(raw: dict[str, Any]) -> None:
    """Hooks that take 1.2 times as long are hooks, not a slower host."""
    costs = machine.COSTS | {"hook": 1.2 * machine.COSTS["hook"]}
    raw["sections"]["hooks"]["runs"] = [machine.timed(case, costs) for case in small_cases(1)]
    inference, _ = fitted(raw).costs()
    assert seconds(inference["hook"]) / REAL_MODELS == pytest.approx(costs["hook"], rel=0.06)
    assert seconds(inference["linear_call"]) / REAL_MODELS == pytest.approx(costs["linear_call"], rel=0.06)


def test_a_noisy_host_keeps_the_proportions_of_the_reference(raw: dict[str, Any]) -> None:
    """Each model is measured at another moment, at which the host takes one to two times as long."""
    moments = random.Random(5)
    for run in raw["sections"]["hooks"]["runs"]:
        slower = moments.uniform(1.0, 2.0)
        run["passes"][0]["seconds"] *= slower
        trace = run["traces"]["decode 1"]
        trace["seconds"] *= slower
        for key in ("fetch", "fetched", "launched", "released"):
            trace["modules"][key] = [slower * time for time in trace["modules"][key]]
    thread = fitted(raw)
    assert FACTOR < thread.factor < 2 * FACTOR
    assert 0.1 < thread.factor_spread < 0.4
    for key, one in thread.costs()[0].items():
        if key in COSTS:
            expected = of_real_models(machine.COSTS)[key] / FACTOR * thread.factor
            assert seconds(one) == pytest.approx(expected, rel=0.12), key


def test_one_late_module_does_not_count(raw: dict[str, Any]) -> None:
    for run in raw["sections"]["hooks"]["runs"]:
        columns = run["traces"]["decode 1"]["modules"]
        for key in ("launched", "released"):
            columns[key][20] += 5000.0  # an interrupt of 5 ms in one module
        for key in ("fetch", "fetched", "launched", "released"):
            columns[key][21:] = [time + 5000.0 for time in columns[key][21:]]
    hook = fitted(raw).costs()[0]["hook"]
    assert seconds(hook) == pytest.approx(machine.COSTS["hook"] * REAL_MODELS, rel=0.03)


def test_the_quiet_quarter_of_all_rounds_counts(raw: dict[str, Any]) -> None:
    """The section has the quiet half of the passes; the rounds have all of them, enough for a quartile."""
    runs = raw["sections"]["hooks"]["runs"]
    slow = [
        {**run, "passes": [{**one, "seconds": 2 * one["seconds"]} for one in run["passes"]]} for run in runs
    ]
    rounds = [
        {"section": "hooks_decode", "found": {"runs": one}}
        for one in (slow, runs, slow, runs, slow, slow, runs, runs)
    ]
    raw["sections"]["hooks"]["runs"] = slow
    assert fitted(raw | {"rounds": rounds}).factor == pytest.approx(FACTOR, rel=0.02)


def test_probes_of_two_speeds_widen_the_factor_and_every_cost(raw: dict[str, Any]) -> None:
    level = reference_costs()[REFERENCE_PROBE].value
    probes = [
        {"calls": {"launch": dict.fromkeys(("p10", "p25", "p50", "p75", "p90"), times * level)}}
        for times in (1.0, 2.0)
    ]
    quiet, noisy = fitted(raw), fitted(raw | {"probes": probes})
    assert noisy.factor == quiet.factor
    assert quiet.factor_spread < 0.1
    assert noisy.factor_spread == pytest.approx(log(2) / 2)
    inference, training = noisy.costs()
    assert min(one.spread or 0.0 for key, one in (inference | training).items() if key != "graph") > 0.34
    share = quiet.costs()[1]["graph"].spread
    assert training["graph"].spread == share, "a share does not depend on the host's speed"


def test_a_few_steps_give_the_factor_alone(raw: dict[str, Any]) -> None:
    raw["sections"]["hooks"]["runs"] = raw["sections"]["hooks"]["runs"][:3]
    thread = fitted(raw)
    assert thread.factor == pytest.approx(FACTOR, rel=0.01)
    assert "only 3 steps were measured" in thread.summary()
    hook = thread.costs()[0]["hook"]
    assert not hook.measured, "the reference's times the factor"
    assert hook.spread == pytest.approx(hypot(reference_costs()["hook"].spread, thread.factor_spread))


def test_models_held_back_test_the_fit(raw: dict[str, Any]) -> None:
    costs = {key: 0.8 * value for key, value in machine.COSTS.items()}
    raw["sections"]["hooks"]["held_back"] = [machine.timed(case, costs) for case in held_back_cases(1)]
    thread = fitted(raw)
    assert thread.held_back["decode"][0] == pytest.approx(0.25, abs=0.02)
    assert "error of the small models held back from the fit: decode +25%" in thread.summary()


def test_without_small_models_the_probes_give_the_factor(raw: dict[str, Any]) -> None:
    del raw["sections"]["hooks"]
    level = 2 * reference_costs()[REFERENCE_PROBE].value
    calls = {"launch": dict.fromkeys(("p10", "p25", "p50", "p75", "p90"), level)}
    thread = fitted(raw | {"probes": [{"calls": calls}]})
    assert thread.factor == pytest.approx(2.0)
    assert "the factor is from 1 probes, because no small model was measured" in thread.summary()
    hook = reference_costs()["hook"].value
    assert seconds(thread.costs()[0]["hook"]) == pytest.approx(2 * hook * REAL_MODELS, rel=1e-3)
    assert fit_thread(raw, machine.base()) is None


def deviating(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, key: str, times: float
) -> dict[str, ReferenceCost]:
    """Let one cost be so many times the reference's, and return a reference that allows it to be."""
    wide = reference_costs()
    wide = {**wide, key: wide[key]._replace(spread=2.0)}
    monkeypatch.setattr(fit_programs, "reference_costs", lambda: wide)
    costs = machine.COSTS | {key: times * machine.COSTS[key]}
    raw["sections"]["hooks"]["runs"] = [machine.timed(case, costs) for case in small_cases(1)]
    return wide


@pytest.mark.parametrize(("key", "error"), [("linear_call", 0.09), ("fetch_wait", 0.07)])
def test_all_else_is_fitted_again_without_a_cost_that_is_not_believed(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, key: str, error: float
) -> None:
    """With what else was fitted beside it, decode steps would be 32 and 17 % too fast."""
    deviating(raw, monkeypatch, key, 6 if key == "fetch_wait" else 5)
    fit = fitted(raw).fit
    assert fit is not None
    assert fit.residuals["decode"][0] < error
    assert fit.values[key] == pytest.approx(fit.factor * reference_costs()[key].value, rel=1e-3)


def test_a_cost_that_is_not_believed_is_an_estimate(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a prior so wide that the times alone decide, hooks take six times as long as on the reference."""
    wide = deviating(raw, monkeypatch, "hook", 6)
    thread = fitted(raw)
    assert "hook deviated by more than a factor of 4" in thread.summary()
    inference, _ = thread.costs()
    hook, linear = inference["hook"], inference["linear_call"]
    assert (linear.measured, hook.measured, hook.residual) == (True, False, None)
    assert hook.spread == pytest.approx(hypot(2.0, thread.factor_spread))
    assert linear.spread is not None
    assert linear.spread < 1.0
    known = wide["hook"].value * REAL_MODELS
    assert seconds(hook) == pytest.approx(thread.factor * known, rel=1e-3)


def test_an_impossible_factor_is_not_believed(raw: dict[str, Any]) -> None:
    for run in raw["sections"]["hooks"]["runs"]:
        run["passes"][0]["seconds"] *= 10
    thread = fitted(raw)
    assert (thread.factor, thread.believed) == (1.0, False)
    assert thread.factor_spread == HOST_SPREAD, "of a host nobody measured"
    assert not thread.costs()[0]["hook"].measured
    assert "the costs are those of the reference host" in thread.summary()
    del raw["sections"]["hooks"]
    level = 15 * reference_costs()[REFERENCE_PROBE].value
    calls = {"launch": dict.fromkeys(("p10", "p25", "p50", "p75", "p90"), level)}
    probed = fitted(raw | {"probes": [{"calls": calls}]})
    assert (probed.factor, probed.believed) == (1.0, False)
    assert "probes took 15 times as long as on the reference host" in probed.summary()


def test_other_modules_than_the_models_are_refused(raw: dict[str, Any]) -> None:
    for column in raw["sections"]["hooks"]["runs"][0]["traces"]["decode 1"]["modules"].values():
        del column[-1]
    with pytest.raises(InputError, match="modules were called, but the model has"):
        fit_thread(raw, machine.base())


def test_machines_are_pooled_whatever_their_speed() -> None:
    """Twelve models on two quiet machines and one that is twice as slow: costs and factors."""
    chance = random.Random(3)
    start = {key: one.value for key, one in reference_costs().items() if key in COSTS}
    costs = {key: value * chance.uniform(0.8, 1.25) for key, value in start.items()}
    counts = [[chance.randint(0, 30) for _ in COSTS] for _ in range(60)]

    def steps(factor: float) -> list[Observation]:
        slow = {key: value * (1.0 if key == "graph" else factor) for key, value in costs.items()}
        made = [Observation(f"model {n}", "decode", 1, 1.0, 0.0, 0.0, row) for n, row in enumerate(rows)]
        return [one._replace(seconds=one.predicted(slow)) for one in made]

    rows = [machine.counted(row, COSTS) for row in counts]
    pool = pooled({"a": steps(0.9), "b": steps(1 / 0.9), "slow": steps(2.0)}, start)
    assert pool.factors["slow"] / pool.factors["a"] == pytest.approx(2 / 0.9, rel=0.01)
    assert max(pool.spreads.values()) < 0.2, "less than the spread with which the iteration begins"
    for key in ("checkpoint", "reduce_call", "pass_overhead"):
        assert pool.costs[key] / pool.costs["hook"] == pytest.approx(costs[key] / costs["hook"], rel=0.1)
