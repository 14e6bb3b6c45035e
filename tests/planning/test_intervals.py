"""Intervals of times whose parts are known: everything here can be calculated by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, hypot, sqrt
from pathlib import Path

import pytest

from simoffload.documents import parse_yaml
from simoffload.hardware import DEFAULT_SPREADS, P90, Spread, TimeInput, load_platform, machine_spreads
from simoffload.planning import confidence as module
from simoffload.planning.confidence import CalibrationError, confidence, ratio_sigma
from simoffload.report.sections.performance import how_sure
from simoffload.results import Group, InferenceResult, PassResult, Share
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.training import TrainingResult
from simoffload.scenario import read_scenario, resolve
from simoffload.schedule import Cause
from simoffload.simulation import fit, simulate
from tests.cli.conftest import SCENARIO

MEAN = {"decode": 0.04, "prefill": 0.05, "step": 0.06}
ROWS = tuple(
    CalibrationError("own", "zero", "holdout", work, "memory", 20, mean, 0.1, 1, 4)  # type: ignore[arg-type]
    for work, mean in MEAN.items()
)
MODEL = MEAN["decode"]
SPREADS = {
    TimeInput.HOST: Spread(0.2, False, "host/a"),
    TimeInput.COPIES: Spread(0.1, False, "pcie/a"),
    TimeInput.GPU: Spread(0.05, False, "accelerator/a"),
}
CAUSES: Mapping[str, tuple[Cause, Group]] = {
    TimeInput.HOST: (Cause("host-thread"), "host"),
    TimeInput.COPIES: (Cause("host-to-gpu"), "transfers"),
    TimeInput.GPU: (Cause("gpu-compute"), "GPU"),
    TimeInput.CPU: (Cause("cpu-adam"), "host"),
    TimeInput.OVERFLOW_CHECK: (Cause("cpu-overflow-check"), "host"),
}
MS = 10**9


@pytest.fixture(autouse=True)
def _known_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration_errors", lambda: ROWS)


@pytest.fixture(scope="module")
def simulated() -> InferenceResult:
    result = simulate(resolve(parse_yaml(SCENARIO, name="small.yaml")))
    assert isinstance(result, InferenceResult)
    return replace(result, target="dram", first_pass=None, extrapolations=())


def test_transfers_between_gpus_use_links() -> None:
    share = Share(Cause("gpu-to-gpu", gpus=(0, 1)), "transfers", MS, MS, "")
    assert module._part(share, CAUSES) == TimeInput.LINKS


def test_a_copy_to_a_gpu_with_a_number_is_a_copy() -> None:
    share = Share(Cause("host-to-gpu", gpus=(1,)).of_cache("dram"), "transfers", MS, MS, "")
    assert module._part(share, CAUSES) == TimeInput.COPIES


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
        provenance=replace(result.provenance, spreads=SPREADS),
    )


def test_a_host_bound_step_is_as_uncertain_as_the_host(simulated: InferenceResult) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, host_thread=100)
    found = confidence(generated(simulated, whole, whole, 7))
    assert found.sigma == pytest.approx(hypot(0.2, MODEL))
    (term,) = found.terms()
    assert (term.part, term.share, term.contribution) == (TimeInput.HOST, 1, 0.2)
    assert found.caution == (
        "100 % of this time is the host thread's, whose speed was not measured on this machine (±20 %); "
        "simoffload calibrate micro measures it"
    )


@pytest.mark.parametrize(("origin", "measured"), [("measured", True), ("estimate", False)])
def test_a_measured_factor_is_the_speed_of_estimated_costs(
    origin: str, measured: bool, repository: Path
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
    found = machine_spreads(machine, ranks=1, host_costs=costs)[TimeInput.HOST]
    assert found.measured == measured
    assert found.value == max(one.spread or 0.0 for one in (*costs, host.host_factor))


def test_a_step_bound_by_copies_ignores_the_host(simulated: InferenceResult) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, copies=100)
    found = confidence(generated(simulated, whole, whole, 7))
    assert found.sigma == pytest.approx(hypot(0.1, MODEL))
    assert found.caution == ""


def test_shares_weigh_the_spreads_of_inputs(simulated: InferenceResult) -> None:
    """40 % host, 60 % copies: 8 %, 6 % and the model are independent."""
    assert simulated.prefill
    whole = a_pass(simulated.prefill, host_thread=40, copies=60)
    found = confidence(generated(simulated, whole, whole, 7))
    assert found.sigma == pytest.approx(hypot(0.08, 0.06, MODEL))
    assert [term.part for term in found.terms()] == [TimeInput.HOST, TimeInput.COPIES]
    assert found.origin == "host thread ±8.0 %, copies ±6.0 %, model ±4.0 %"


def test_the_overflow_check_is_cpu_work_unless_its_rate_is_less_certain(simulated: InferenceResult) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, CPU_work=60, CPU_overflow_check=40)
    result = generated(simulated, whole, whole, 7)
    adam = SPREADS | {TimeInput.CPU: Spread(0.1, True, "host/a")}
    check = adam | {TimeInput.OVERFLOW_CHECK: Spread(0.3, False, "host/a")}
    for spreads, sigma in ((adam, hypot(0.1, MODEL)), (check, hypot(0.06, 0.12, MODEL))):
        found = confidence(replace(result, provenance=replace(result.provenance, spreads=spreads)))
        assert found.sigma == pytest.approx(sigma)


@pytest.mark.parametrize(
    ("platform", "spread"),
    [
        ("validation/measured/fit/h100-n/platform.yaml", (0.30, False)),
        ("validation/measured/fit/h100-r/platform.yaml", None),
        ("dgx-h200", None),
    ],
)
def test_an_assumed_rate_of_the_overflow_check_is_an_estimate(
    platform: str, spread: tuple[float, bool] | None, repository: Path
) -> None:
    """The first machine has measured rates of Adam alone, the second also of the check; on the third both are
    as uncertain as any estimate."""
    known = repository / platform if "/" in platform else platform
    machine = load_platform(known).machine(nodes=1)
    found = machine_spreads(machine, ranks=1, host_costs=()).get(TimeInput.OVERFLOW_CHECK)
    assert (found and found[:2]) == spread


def test_a_measured_host_needs_no_caution(simulated: InferenceResult) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, host_thread=100)
    result = generated(simulated, whole, whole, 7)
    measured = SPREADS | {TimeInput.HOST: Spread(0.05, True, "host/own")}
    found = confidence(replace(result, provenance=replace(result.provenance, spreads=measured)))
    assert (found.caution, found.sigma) == ("", pytest.approx(hypot(0.05, MODEL)))


def test_errors_of_passes_of_one_machine_add_up(simulated: InferenceResult) -> None:
    """A prefill of 300 ms, all copies, and seven host-bound steps of 100 ms: all errors are weighted by
    time."""
    assert simulated.prefill
    prefill, step = a_pass(simulated.prefill, copies=300), a_pass(simulated.prefill, host_thread=100)
    found = confidence(generated(simulated, prefill, step, 7))
    model = 0.3 * MEAN["prefill"] + 0.7 * MEAN["decode"]
    assert found.sigma_of("e2e_s") == pytest.approx(hypot(0.7 * 0.2, 0.3 * 0.1, model))
    assert found.sigma_of("ttft_s") == pytest.approx(hypot(0.1, MEAN["prefill"]))
    assert found.sigma_of("tpot_s") == pytest.approx(hypot(0.2, MODEL))
    assert found.sigma == found.sigma_of("e2e_s")


def test_intervals_are_lognormal_and_those_of_rates_are_reciprocal(simulated: InferenceResult) -> None:
    assert simulated.prefill
    whole = a_pass(simulated.prefill, host_thread=100)
    result = generated(simulated, whole, whole, 7)
    found = confidence(result)
    low, high = found.interval("tpot_s")
    assert low == pytest.approx(0.1 * exp(-P90 * found.sigma))
    assert high == pytest.approx(0.1 * exp(P90 * found.sigma))
    work = result.batch_size * result.replicas
    assert found.interval("decode_tokens_per_s") == pytest.approx((work / high, work / low))
    assert found.intervals().keys() == result.metrics().keys() - {"first_pass_s"}


def test_what_has_no_times_has_no_intervals() -> None:
    found = confidence(fit(read_scenario("ddn/bloom-7b1")))
    assert (found.intervals(), found.terms(), found.caution) == ({}, (), "")
    with pytest.raises(KeyError):
        found.interval("tpot_s")


def test_the_same_error_of_an_input_cancels_in_a_ratio(simulated: InferenceResult) -> None:
    """40 % and 100 % host on one machine: only the difference counts; a host of its own counts in full."""
    assert simulated.prefill
    some, all_ = (
        a_pass(simulated.prefill, host_thread=40, GPU=60),
        a_pass(simulated.prefill, host_thread=100),
    )
    one, two = generated(simulated, some, some, 7), generated(simulated, all_, all_, 7)
    model = MODEL * sqrt(2 - 2 * 0.8)
    assert ratio_sigma(one, two) == pytest.approx(hypot(0.6 * 0.2, 0.6 * 0.05, model))
    other = SPREADS | {TimeInput.HOST: Spread(0.2, False, "host/b")}
    two = replace(two, provenance=replace(two.provenance, spreads=other))
    assert ratio_sigma(one, two) == pytest.approx(hypot(0.4 * 0.2, 1.0 * 0.2, 0.6 * 0.05, model))


def test_a_shipped_machine_has_the_spreads_of_its_kind(simulated: InferenceResult) -> None:
    known = simulated.provenance.spreads
    assert known[TimeInput.HOST] == Spread(
        DEFAULT_SPREADS[TimeInput.HOST].other, False, known[TimeInput.HOST].source
    )
    assert known[TimeInput.HOST].source.startswith("host/")


def test_phases_of_training_are_less_certain_than_steps() -> None:
    result = simulate(read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=dram"]))
    assert isinstance(result, TrainingResult)
    found = confidence(result)
    assert found.of_model("forward_s") == pytest.approx(1.2 * found.of_model("step_s"))
    assert found.intervals().keys() == result.declared.keys()


def test_a_checkpoint_has_intervals_of_saving_and_restoring() -> None:
    result = simulate(read_scenario("checkpoint/phi-3-mini"))
    assert isinstance(result, CheckpointResult)
    assert confidence(result).intervals().keys() == {
        *("save_s", "blocking_s", "bytes_per_s", "restore_s", "restore_bytes_per_s")
    }


def test_the_confidence_of_training_names_the_step() -> None:
    result = simulate(read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=dram"]))
    found = confidence(result).to_dict()
    assert (found["metric"], found["p10"], found["p90"]) == ("step_s", *confidence(result).interval("step_s"))
    assert how_sure(result).sentences[0].startswith("80 % interval of the time per step: ")
