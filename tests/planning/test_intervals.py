"""What decides the interval of a time whose parts are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log, sqrt
from pathlib import Path

import pytest

from simoffload.documents import parse_yaml
from simoffload.extensions.storage.result import CheckpointResult
from simoffload.hardware import P90, InputSource, TimeInput, input_sources, load_platform
from simoffload.planning import confidence as module
from simoffload.planning.confidence import confidence, ratio_sigma
from simoffload.planning.errors import ErrorTable, RealTimes
from simoffload.report.sections.performance import how_sure
from simoffload.results import Group, InferenceResult, PassResult, Share
from simoffload.results.training import TrainingResult
from simoffload.scenario import read_scenario, resolve
from simoffload.schedule import Cause
from simoffload.simulation import fit, simulate
from tests.cli.conftest import SCENARIO

ENDS = {"host": (0.9, 1.5), "link": (0.9, 1.1), "GPU": (1.0, 1.2), "CPU": (0.8, 1.3), "storage": (0.7, 1.1)}
TABLE = ErrorTable(
    tuple(
        RealTimes("zero", limit, "shipped", f"{limit} {number}", True, (low,) * 5 + (high,) * 5)  # type: ignore[arg-type]
        for limit, (low, high) in ENDS.items()
        for number in range(300)
    )
)
"""Errors on so many machines that P10 and P90 are those of the runs."""
SOURCES = {
    TimeInput.HOST: InputSource("shipped", "host/a"),
    TimeInput.COPIES: InputSource("shipped", "pcie/a"),
    TimeInput.GPU: InputSource("shipped", "accelerator/a"),
}
CAUSES: Mapping[str, tuple[Cause, Group]] = {
    TimeInput.HOST: (Cause("host-thread"), "host"),
    TimeInput.COPIES: (Cause("host-to-gpu"), "transfers"),
    TimeInput.GPU: (Cause("gpu-compute"), "GPU"),
    TimeInput.CPU: (Cause("cpu-adam"), "host"),
}
MS = 10**9


@pytest.fixture(autouse=True)
def _known_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration_errors", lambda: TABLE)


@pytest.fixture(scope="module")
def simulated() -> InferenceResult:
    result = simulate(resolve(parse_yaml(SCENARIO, name="small.yaml")))
    assert isinstance(result, InferenceResult)
    return replace(result, target="dram", first_pass=None, extrapolations=())


@pytest.mark.parametrize(
    ("share", "part"),
    [
        (Share(Cause("gpu-to-gpu", gpus=(0, 1)), "transfers", MS, MS, ""), TimeInput.LINKS),
        (Share(Cause("host-to-gpu", gpus=(1,)).of_cache("dram"), "transfers", MS, MS, ""), TimeInput.COPIES),
        (Share(Cause("host-to-gpu", memory="pageable"), "transfers", MS, MS, ""), TimeInput.PAGEABLE),
        (Share(Cause("in-place"), "transfers", MS, MS, ""), TimeInput.COPIES),
        (Share(Cause("cpu-overflow-check"), "host", MS, MS, ""), TimeInput.CPU),
        (Share(Cause("read", "raid"), "storage", MS, MS, ""), "raid"),
    ],
)
def test_what_decides_the_time_of_a_cause(share: Share, part: str) -> None:
    assert module._part(share, SOURCES) == part


def a_pass(like: PassResult, **times: int) -> PassResult:
    """A pass with the given exposed times [ms] by input."""
    shares = tuple(
        Share(*CAUSES[part.replace("_", " ")], time * MS, time * MS, "") for part, time in times.items()
    )
    return like._replace(time_ps=sum(times.values()) * MS, shares=shares)


def generated(
    result: InferenceResult, prefill: PassResult, decode: PassResult, steps: int
) -> InferenceResult:
    """A generation of equal decode steps."""
    return replace(
        result,
        prefill=prefill,
        decode=(decode,),
        decode_total_s=steps * decode.time_s,
        output_length=steps + 1,
        provenance=replace(result.provenance, sources=SOURCES),
    )


def test_the_input_that_takes_most_of_a_time_decides(simulated: InferenceResult) -> None:
    """A prefill of 300 ms, all copies, and seven host-bound steps of 100 ms: all of the time is 70 % host."""
    assert simulated.prefill
    prefill, step = a_pass(simulated.prefill, copies=300), a_pass(simulated.prefill, host_thread=60, GPU=40)
    found = confidence(generated(simulated, prefill, step, 7))
    for metric, limit in {"ttft_s": "link", "tpot_s": "host", "e2e_s": "host"}.items():
        assert found.comparable(metric).limit == limit
        assert found.factors(metric) == pytest.approx(ENDS[limit], rel=0.01)
    assert found.shares("e2e_s") == pytest.approx({"host thread": 0.42, "copies": 0.3, "GPU": 0.28})
    assert found.decided_by("ttft_s") == (TimeInput.COPIES, SOURCES[TimeInput.COPIES])
    assert found.sigma == found.sigma_of("e2e_s")


def test_intervals_of_rates_are_the_reciprocals_of_those_of_times(simulated: InferenceResult) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, host_thread=100)
    result = generated(simulated, whole, whole, 7)
    found = confidence(result)
    low, high = found.interval("tpot_s")
    assert (low, high) == pytest.approx((0.09, 0.15), rel=0.01)
    assert found.sigma_of("tpot_s") == pytest.approx(log(high / low) / (2 * P90))
    work = result.batch_size * result.replicas
    assert found.interval("decode_tokens_per_s") == pytest.approx((work / high, work / low))
    assert found.intervals().keys() == result.metrics().keys() - {"first_pass_s"}
    assert found.caution == (
        "100 % of this time is the host thread's, whose speed was not measured on this machine; simoffload "
        "calibrate micro measures it"
    )
    assert found.origin == "host thread, 100 % of the time, measured on machines of the kind"


@pytest.mark.parametrize(("elsewhere", "evidence"), [(False, "own"), (True, "same kind")])
def test_numbers_of_the_user_are_of_the_machine_itself_or_of_another_one(
    simulated: InferenceResult, elsewhere: bool, evidence: str
) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, host_thread=100)
    result = generated(simulated, whole, whole, 7)
    sources = SOURCES | {TimeInput.HOST: InputSource("own", "host/own")}
    found = confidence(
        replace(result, provenance=replace(result.provenance, sources=sources)), elsewhere=elsewhere
    )
    assert found.comparable().evidence == evidence
    assert found.caution == ""


@pytest.mark.parametrize(("origin", "evidence"), [("measured", "own"), ("estimate", "estimated")])
def test_a_measured_factor_is_the_speed_of_estimated_costs(
    origin: str, evidence: str, repository: Path
) -> None:
    """Of a host with probes alone, or with a few small models, only the factor is measured."""
    machine = load_platform(repository / "validation/measured/fit/h200-a/platform.yaml").machine(nodes=1)
    host = machine.host
    estimates = {
        key: getattr(host.deepspeed, key).model_copy(update={"origin": "estimate"})
        for key in ("linear_call", "hook")
    }
    assert host.host_factor
    update = {
        "deepspeed": host.deepspeed.model_copy(update=estimates),
        "host_factor": host.host_factor.model_copy(update={"origin": origin}),
    }
    machine = replace(machine, host=host.model_copy(update=update))
    costs = (machine.host.deepspeed.linear_call, machine.host.deepspeed.hook)
    assert input_sources(machine, ranks=1, host_costs=costs)[TimeInput.HOST].evidence == evidence


@pytest.mark.parametrize(
    ("platform", "ranks", "evidence"),
    [
        ("h200-1gpu-vm", 1, {"host thread": "shipped", "copies": "shipped", "CPU work": "shipped"}),
        ("dgx-h200", 1, {"host thread": "estimated", "copies": "shipped", "CPU work": "estimated"}),
        ("dgx-h200", 4, {"copies": "estimated"}),
        ("validation/measured/fit/h100-n/platform.yaml", 1, {"CPU work": "own", "copies": "own"}),
    ],
)
def test_what_shipped_and_own_machines_rest_on(
    platform: str, ranks: int, evidence: Mapping[str, str], repository: Path
) -> None:
    machine = load_platform(repository / platform if "/" in platform else platform).machine(nodes=1)
    costs = (machine.host.deepspeed.linear_call, machine.host.deepspeed.hook)
    found = input_sources(machine, ranks=ranks, host_costs=costs)
    assert {part: found[part].evidence for part in evidence} == evidence


def test_what_has_no_times_has_no_intervals() -> None:
    found = confidence(fit(read_scenario("ddn/bloom-7b1")))
    assert (found.intervals(), found.shares(), found.caution) == ({}, {}, "")
    with pytest.raises(KeyError):
        found.interval("tpot_s")


def test_errors_of_one_machine_cancel_in_a_ratio(simulated: InferenceResult) -> None:
    """Mostly of one model with one limit, less with another limit or model, not at all with another host."""
    assert simulated.prefill
    host, copies = a_pass(simulated.prefill, host_thread=100), a_pass(simulated.prefill, copies=100)
    one, two = generated(simulated, host, host, 7), generated(simulated, copies, copies, 7)
    sigma, other = (confidence(result).sigma for result in (one, two))
    assert ratio_sigma(one, one) == pytest.approx(sigma * sqrt(2 - 2 * 0.8))
    assert ratio_sigma(one, replace(one, model="other")) == pytest.approx(sigma * sqrt(2 - 2 * 0.4))
    mixed = sqrt(sigma**2 + other**2 - 2 * 0.4 * sigma * other)
    assert ratio_sigma(one, two) == pytest.approx(mixed)
    assert ratio_sigma(one, replace(one, platform="other")) == pytest.approx(sigma * sqrt(2))


def test_a_checkpoint_has_intervals_of_saving_and_restoring() -> None:
    result = simulate(read_scenario("checkpoint/phi-3-mini"))
    assert isinstance(result, CheckpointResult)
    assert confidence(result).intervals().keys() == {
        *("save_s", "blocking_s", "bytes_per_s", "restore_s", "restore_bytes_per_s")
    }


def test_the_confidence_of_training_names_the_step() -> None:
    result = simulate(read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=dram"]))
    assert isinstance(result, TrainingResult)
    assert confidence(result).intervals().keys() == result.declared.keys()
    found = confidence(result).to_dict()
    assert (found["metric"], found["p10"], found["p90"]) == ("step_s", *confidence(result).interval("step_s"))
    assert how_sure(result).sentences[0].startswith("80 % interval of the time per step: ")
