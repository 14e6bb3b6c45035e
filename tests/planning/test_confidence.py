"""Which real runs a result is compared with, and when two results are a tie."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, sqrt

import pytest

from simoffload.documents import Edit, parse_yaml
from simoffload.hardware import P90, Spread, TimeInput
from simoffload.planning import confidence as module
from simoffload.planning.confidence import CalibrationError, confidence, margin, ratio_sigma, tie
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.scenario import read_scenario, resolve
from simoffload.simulation import fit, simulate
from tests.cli.conftest import SCENARIO

ROWS = (
    CalibrationError("own", "zero", "fit", "decode", "memory", 34, 0.03, -0.09, 1, 4),
    CalibrationError("own", "zero", "holdout", "decode", "memory", 23, 0.04, -0.13, 1, 4),
    CalibrationError("own", "zero", "holdout", "decode", "nvme", 5, 0.13, 0.28, 1, 4),
    CalibrationError("own", "zero", "holdout", "prefill", "memory", 23, 0.05, 0.14, 1, 4),
    CalibrationError("own", "zero", "fit", "step", "nvme", 2, 0.14, 0.16, 1, 1),
    CalibrationError("own", "zero", "holdout", "step", "memory", 4, 0.06, -0.08, 1, 4),
)


@pytest.fixture(autouse=True)
def _known_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration_errors", lambda: ROWS)


@pytest.fixture(scope="module")
def drives() -> SimulationResult:
    """Of decode steps with weights on drives in the host."""
    return simulate(resolve(parse_yaml(SCENARIO, name="small.yaml")))


@pytest.fixture(scope="module")
def memory(drives: SimulationResult) -> SimulationResult:
    """The same in the host's memory, which takes as long here."""
    return replace(drives, target="dram")


def test_held_out_runs_of_the_same_work_from_the_same_place_count(
    drives: SimulationResult, memory: SimulationResult
) -> None:
    found = confidence(memory)
    assert (found.relative_error, found.runs, found.unlike, found.extrapolates) == (0.04, 23, "", False)
    assert found.sentence == (
        "±4.0 %, the mean error of 23 held-out runs of decode steps in memory on 1 to 4 GPUs, predicted with "
        "the profiles of their machines (the worst −13 %); expect more with a shipped profile"
    )
    assert confidence(replace(memory, output_length=1)).relative_error == 0.05
    assert confidence(drives).relative_error == 0.13


def test_the_quoted_error_is_that_of_profiles_of_the_same_origin(
    memory: SimulationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval does not change: it has the spreads of the machine's numbers apart."""
    shipped = CalibrationError("shipped", "zero", "holdout", "decode", "memory", 23, 0.09, -0.36, 1, 4)
    sigma = confidence(memory).sigma
    monkeypatch.setattr(module, "calibration_errors", lambda: (*ROWS, shipped))
    found = confidence(memory)
    assert (found.relative_error, found.sigma) == (0.09, sigma)
    assert found.sentence == (
        "±9.0 %, the mean error of 23 held-out runs of decode steps in memory on 1 to 4 GPUs, predicted with "
        "shipped profiles (the worst −36 %)"
    )
    assert (found.to_dict()["profile"], found.to_dict()["worst"]) == ("shipped", -0.36)
    spreads = {TimeInput.HOST: Spread(0.05, True, "host/own")}
    own = confidence(replace(memory, provenance=replace(memory.provenance, spreads=spreads)))
    assert own.relative_error == 0.04
    assert own.sentence.endswith("predicted with the profiles of their machines (the worst −13 %)")


@pytest.mark.parametrize(("optimizer", "error", "part"), [("nvme", 0.14, "fit"), ("dram", 0.06, "holdout")])
def test_runs_that_were_in_view_count_where_there_are_no_others(
    optimizer: str, error: float, part: str
) -> None:
    found = confidence(fit(read_scenario("xinnor/llama-1b", overrides=[f"strategy.optimizer={optimizer}"])))
    assert (found.relative_error, found.row.part) == (error, part)
    assert ("on 1 GPU, all known when the model was developed" in found.sentence) is (part == "fit")


def test_of_storage_over_a_network_nothing_is_known_but_the_least() -> None:
    found = confidence(fit(read_scenario("ddn/bloom-7b1")))
    assert found.relative_error == 0.13
    assert found.to_dict()["known"] is False
    assert found.sentence.startswith("unknown: no real run used a parallel filesystem; expect more than ±")


def test_real_runs_are_of_zero() -> None:
    found = confidence(fit(read_scenario("ddn/bloom-7b1").on("resident")))
    assert (found.unlike, found.relative_error) == ("used transformers", 0.04)


def test_of_checkpoints_nothing_is_known_but_the_least() -> None:
    result = fit(read_scenario("checkpoint/phi-3-mini"))
    assert isinstance(result, CheckpointResult)
    assert confidence(result).unlike == "saved a checkpoint"
    assert confidence(result).relative_error == 0.14


def test_beyond_the_calibrated_range_is_said(memory: SimulationResult) -> None:
    found = confidence(replace(memory, extrapolations=("8 ranks on a host",)))
    assert found.extrapolates
    text = "; this prediction is beyond the calibrated range, where errors may be larger"
    assert found.sentence.endswith(text)


def test_two_results_are_a_tie_if_the_interval_of_their_ratio_contains_1(
    drives: SimulationResult, memory: SimulationResult
) -> None:
    """From drives and from memory, without spreads of inputs: sigma is 1.2533 x sqrt(0.13² + 0.04²)."""
    drives, memory = exact(drives), exact(memory)
    least = exp(P90 * hypot(0.13, 0.04))
    assert margin(drives, memory) == pytest.approx(least - 1)
    assert tie(drives, memory)
    assert tie(slower(memory, 0.999 * least), drives)
    assert not tie(slower(memory, 1.001 * least), drives)
    assert not tie(drives, slower(memory, 1.001 * least))


def test_errors_of_one_model_in_one_place_of_one_machine_mostly_cancel(memory: SimulationResult) -> None:
    """sigma is 1.2533 x 4 % x sqrt(2 - 2 x 0.8); of another model nothing cancels."""
    one = exact(memory)
    assert ratio_sigma(one, one) == pytest.approx(0.04 * sqrt(0.4))
    assert ratio_sigma(one, replace(one, model="other")) == pytest.approx(0.04 * sqrt(2))


def exact(result: SimulationResult) -> SimulationResult:
    """On a machine whose numbers have no spread, judged by its decode steps."""
    return replace(result, asked="tpot_s", provenance=replace(result.provenance, spreads={}))


def slower(result: SimulationResult, times: float) -> SimulationResult:
    """Both parts of its time so many times as long."""
    assert isinstance(result, InferenceResult)
    assert result.prefill is not None
    prefill = result.prefill._replace(time_ps=round(result.prefill.time_ps * times))
    return replace(result, prefill=prefill, decode_total_s=result.decode_total_s * times)


def test_what_does_not_fit_ties_with_nothing(drives: SimulationResult) -> None:
    nothing = fit(read_scenario("ddn/bloom-176b", overrides=["strategy.weights=gpu"]))
    with pytest.raises(ValueError, match="only a scenario that fits has a time"):
        tie(drives, nothing)


@pytest.mark.parametrize(
    ("cache", "unlike"),
    [
        ({"tier": "dram"}, ""),
        ({"format": "int4"}, "used transformers"),
        ({"tier": "hbm", "format": "int4"}, "used transformers"),
        (
            {"tier": "dram", "implementation": "streamed"},
            "used transformers with kv_cache.implementation: streamed",
        ),
    ],
)
def test_runs_with_the_cache_in_host_memory_stand_for_no_other_cache(
    cache: dict[str, str], unlike: str
) -> None:
    scenario = read_scenario("ddn/bloom-7b1").on("resident")
    edits = [Edit.at(f"strategy.kv_cache.{key}", value) for key, value in cache.items()]
    assert confidence(fit(scenario.edited(*edits))).unlike == unlike
