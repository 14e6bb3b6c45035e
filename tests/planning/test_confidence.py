"""Which real runs a result is compared with, and when two results are a tie."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, sqrt

import pytest

from simoffload.documents import Edit, parse_yaml
from simoffload.extensions.storage.result import CheckpointResult
from simoffload.hardware import P90
from simoffload.planning import confidence as module
from simoffload.planning.confidence import confidence, margin, ratio_sigma, tie
from simoffload.planning.errors import ErrorTable, LimitedBy, RealTimes
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.scenario import read_scenario, resolve
from simoffload.simulation import fit, simulate
from tests.cli.conftest import SCENARIO


def times(program: str, limit: LimitedBy, error: float, *, held_out: bool = True) -> RealTimes:
    """Times that were an error longer or shorter than predicted."""
    ratios = (1 - error,) * 3 + (1 + error,) * 3
    return RealTimes(program, limit, "estimated", "machine", held_out, ratios)


TABLE = ErrorTable(
    (
        times("zero", "host", 0.2),
        times("fsdp", "CPU", 0.1, held_out=False)._replace(evidence="shipped"),
        *(times("other", limit, 0.3) for limit in ("storage", "GPU", "CPU")),
    )
)


@pytest.fixture(autouse=True)
def _known_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration_errors", lambda: TABLE)


@pytest.fixture(scope="module")
def drives() -> SimulationResult:
    """Of decode steps with weights on drives in the host."""
    return simulate(resolve(parse_yaml(SCENARIO, name="small.yaml")))


@pytest.fixture(scope="module")
def memory(drives: SimulationResult) -> SimulationResult:
    """The same in the host's memory, which takes as long here."""
    return replace(drives, target="dram")


def test_runs_of_the_program_with_the_same_limit_count(
    drives: SimulationResult, memory: SimulationResult
) -> None:
    found = confidence(memory)
    assert found.decided_by()[0] == "host thread"
    assert (found.program, found.row.program, found.runs, found.unlike) == ("zero", "zero", 6, "")
    assert found.sentence == (
        f"±{found.relative_error * 100:.1f} %, the mean error of 6 held-out times of DeepSpeed ZeRO on 1 "
        "machine, limited by the host thread and predicted with estimates (the worst +25 %)"
    )
    assert confidence(drives).to_dict()["limit"] == "host"


def test_runs_that_were_in_view_are_said_to_have_been() -> None:
    found = confidence(simulate(read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=dram"])))
    assert (found.comparable().limit, found.row.program) == ("CPU", "")
    assert found.sentence.startswith("too few real runs were like it; expect more than ±")
    assert ", some of them in view" in replace(found, program="fsdp").sentence


def test_of_storage_over_a_network_nothing_is_known_but_the_least() -> None:
    found = confidence(fit(read_scenario("ddn/bloom-7b1")))
    assert found.to_dict()["known"] is False
    assert found.comparable()[1:] == ("storage", "estimated", 1)
    assert found.sentence.startswith("unknown: no real run used a parallel filesystem; expect more than ±")


def test_programs_without_real_runs_have_the_errors_of_all() -> None:
    found = confidence(fit(read_scenario("flexgen/opt-30b")))
    assert (found.program, found.unlike) == ("", "used FlexGen")


def test_of_checkpoints_nothing_is_known_but_the_least() -> None:
    result = fit(read_scenario("checkpoint/phi-3-mini"))
    assert isinstance(result, CheckpointResult)
    assert (confidence(result).program, confidence(result).unlike) == ("", "saved a checkpoint")


def test_beyond_the_calibrated_range_is_said(memory: SimulationResult) -> None:
    found = confidence(replace(memory, extrapolations=("8 ranks on a host",)))
    assert found.extrapolates
    text = "; this prediction is beyond the calibrated range, where errors may be larger"
    assert found.sentence.endswith(text)


def test_two_results_are_a_tie_if_the_interval_of_their_ratio_contains_1(
    drives: SimulationResult, memory: SimulationResult
) -> None:
    """Of two machines, so that nothing cancels."""
    other = replace(memory, platform="other")
    sigma = hypot(confidence(drives).sigma, confidence(other).sigma)
    least = exp(P90 * sigma)
    assert margin(drives, other) == pytest.approx(least - 1)
    assert tie(drives, other)
    assert tie(slower(other, 0.999 * least), drives)
    assert not tie(slower(other, 1.001 * least), drives)
    assert not tie(drives, slower(other, 1.001 * least))


def test_errors_of_one_model_on_one_machine_mostly_cancel(memory: SimulationResult) -> None:
    sigma = confidence(memory).sigma
    assert ratio_sigma(memory, memory) == pytest.approx(sigma * sqrt(0.4))
    assert ratio_sigma(memory, replace(memory, model="other")) == pytest.approx(sigma * sqrt(1.2))


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
        ({"tier": "hbm"}, ""),
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
