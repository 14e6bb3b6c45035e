"""The inverse question agrees with closed forms, with fine sweeps, and notices what lies in the middle."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from math import ceil, floor

import pytest

import simoffload as so
from simoffload.documents import parse_yaml
from simoffload.errors import InputError, SimulationError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.reach import Reach, quantity_at, reach
from simoffload.report.from_reach import reach_document
from simoffload.scenario import LoadedScenario, resolve
from simoffload.simulation import simulate
from tests.examples import one_in
from tests.planning.advise.conftest import STORAGE_BOUND, loaded

SERVED, SHORT = "serving/llama-3.1-70b", ("workload.output_length=2",)
DRIVE = 'profiles."raid/raid0-4x-pm1733-3.84tb"'


SMALL_SHARE = """\
name: too small a share
model: llama-3.1-8b
platform: rtx-4090-desktop
workload: {batch_size: 1, prompt_length: 4096, output_length: 4}
strategy: {kind: vllm, gpu_memory_utilization: 0.6}
"""


def metric(scenario: LoadedScenario, path: str, index: int, name: str) -> float | None:
    """A metric with a value of a number, simulated apart from any search; None where it does not fit."""
    evaluator = Evaluator(scenario)
    quantity = quantity_at(evaluator, path)
    try:
        result = simulate(scenario.edited(*quantity.edits(quantity.written(index))))
    except InputError:
        return None
    return result.metrics().get(name)


def up(value: float) -> float:
    """The next number of three significant digits."""
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(value))


def down(value: float) -> float:
    return float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal_from_float(value))


def number(found: Reach) -> float:
    """The value that was found, without its unit."""
    assert found.value is not None
    return float(found.value.value.partition(" ")[0].replace(",", ""))


# -- closed forms --------------------------------------------------------------------------------

Form = Callable[[float], float]
RATES: list[tuple[str, str, str, float, float, float]] = [
    # A time is a + b / rate as long as nothing else becomes the bottleneck: two slow rates give a and b.
    ("serving/llama-3.1-70b", "profiles.samsung-980-pro-2tb.read", "tpot", 70, 700, 100),
    ("deepnvme/bloom-176b", "profiles.azure-nc-h100-v5-3.5tb.read", "tpot", 0.1, 1, 60),
    ("llama-cpp/gpt-oss-120b", "profiles.gb10.hbm_bandwidth", "tpot", 10, 100, 0.05),
    ("mooncake/qwen3-8b", "profiles.h800-sxm.hbm_bandwidth", "tpot", 10, 100, 0.1),
    ("checkpoint/phi-3-mini", "profiles.azure-nd-h200-v5-3.5tb.write", "save", 0.05, 0.2, 10),
]


@pytest.mark.parametrize(("name", "path", "slo", "slow", "fast", "limit"), RATES)
def test_a_rate_is_that_of_the_closed_form(
    name: str, path: str, slo: str, slow: float, fast: float, limit: float
) -> None:
    scenario = so.load_scenario(name, overrides=SHORT if name == SERVED else ())
    quantity = quantity_at(Evaluator(scenario), path)
    times = [metric(scenario, path, quantity.index(rate), f"{slo}_s") or 0 for rate in (slow, fast)]
    bytes_ = (times[0] - times[1]) / (1 / slow - 1 / fast)
    least = bytes_ / (limit - (times[0] - bytes_ / slow))
    found = reach(scenario, slo=f"{slo}={limit}s", by=path)
    assert found.rises
    assert number(found) == up(least)


def test_a_rate_is_the_bytes_over_the_time_that_is_left() -> None:
    """Of a layer-by-layer read without overlap the bytes are those that the scenario reads for a token."""
    scenario = so.load_scenario(SERVED, overrides=SHORT)
    path, rate = "profiles.samsung-980-pro-2tb.read", 0.5e9
    result = simulate(scenario.edited(*quantity_at(Evaluator(scenario), path).edits("500 MB/s")))
    assert result.step is not None
    read = next(share for share in result.step.shares if share.cause.tier == "nvme")
    rest = result.metrics()["tpot_s"] - read.size / rate  # type: ignore[operator]
    found = reach(scenario, slo="tpot=80s", by=path)
    assert number(found) == up(read.size / (80 - rest) / 1e6)


def test_a_batch_is_that_of_its_throughput() -> None:
    """Every step takes as long as the storage, whatever the batch."""
    scenario = so.load_scenario("ddn/bloom-7b1")
    step = simulate(scenario).metrics()["tpot_s"]
    assert step is not None
    found = reach(scenario, slo="decode_tokens_per_s=500", by="workload.batch_size")
    assert number(found) == ceil(500 * step / 8)


def test_the_memory_is_what_is_needed() -> None:
    scenario = loaded(STORAGE_BOUND, "strategy.weights=dram")
    needed = next(use.needed for use in so.fit(scenario).capacity if use.tier == "dram")
    found = reach(scenario, slo="ttft=1h", by="profiles.dgx-a100-1tib.memory_capacity")
    assert number(found) * 2**40 == pytest.approx(up(needed / 2**40) * 2**40)
    assert found.below is not None
    assert found.below.status == "does not fit"


def test_drives_are_as_many_as_hold_the_weights() -> None:
    scenario = so.load_scenario("ddn/bloom-mod-2", overrides=["strategy.weights=raid"])
    use = next(use for use in so.fit(scenario).capacity if use.tier == "raid")
    found = reach(scenario, slo="tpot=10h", by=f"{DRIVE}.count", within="1..64")
    assert number(found) == ceil(use.needed / (use.capacity / 4))


@pytest.mark.parametrize("rate", [7, 8.4])
def test_the_least_batch_of_flexgen_may_be_in_fewer_parts(rate: float) -> None:
    """Batches count that are no multiple of the GPU batch, and those of one part far from the present one."""
    scenario = so.load_scenario("flexgen/opt-30b")
    evaluator = Evaluator(scenario)
    quantity = quantity_at(evaluator, "workload.batch_size")
    assert quantity.edits(59)[1].value == 2  # refused, and not in one part that is too large
    found = reach(scenario, slo=f"tokens_per_s={rate}", by="workload.batch_size")
    least = int(number(found))
    for count in (*range(least // 2, least - 4, 4), *range(least - 4, least + 1)):
        edits = quantity.edits(count)
        kept = evaluator.fits(*edits) and evaluator.answer(*edits)[1].metrics()["tokens_per_s"] >= rate
        assert kept == (count == least), count


@pytest.mark.parametrize("name", ["ddn/bloom-7b1", "zero-inference-2022/opt-30b"])
def test_the_largest_batch_and_context_are_those_that_fit(name: str) -> None:
    scenario = so.load_scenario(name)
    held = so.largest(scenario)
    found = reach(scenario, slo="tpot=10h", by="workload.batch_size")
    assert number(found) == held.batch.most
    assert found.above is not None
    assert found.above.status == "does not fit"
    found = reach(scenario, slo="tpot=10h", by="workload.prompt_length", within="1..100000")
    assert number(found) == min(held.context.edits[0].value, 100000)


def test_a_latency_may_be_at_most_what_is_left_of_the_time() -> None:
    scenario, path = so.load_scenario("mooncake/qwen3-8b"), "profiles.h800-sxm.compiled.kernel_latency"
    quantity = quantity_at(Evaluator(scenario), path)
    long, longer = (metric(scenario, path, quantity.index(one), "tpot_s") or 0 for one in (100, 1000))
    kernels = (longer - long) / 900
    found = reach(scenario, slo="tpot=200ms", by=path)
    assert not found.rises
    assert number(found) == down(100 + (0.2 - long) / kernels)


def test_accumulated_steps_take_as_long_as_so_many_passes() -> None:
    scenario, path = so.load_scenario("fsdp/llama-3.1-8b"), "workload.gradient_accumulation_steps"
    once, twice = (metric(scenario, path, count, "step_s") or 0 for count in (100, 200))
    found = reach(scenario, slo="step=60s", by=path)
    assert number(found) == floor(100 + (60 - once) / (twice - once) * 100)


# -- fine sweeps ---------------------------------------------------------------------------------

SWEPT: list[tuple[str, str, str, int, int]] = [
    ("ddn/bloom-7b1", "workload.batch_size", "tokens_per_s=500", 40, 52),
    ("zenflow/qwen2.5-1.5b", "workload.batch_size", "tokens_per_s=4000", 1, 16),
    ("gpt-fast/llama-2", "strategy.tensor_parallel_size", "tpot=6ms", 1, 10),
    ("fsdp/llama-3.1-8b", "workload.sequence_length", "step=9s", 10625, 10645),
    ("mooncake/qwen3-8b", "workload.prompt_length", "ttft=50ms", 10306, 10326),
    ("zero-offload-2020/gpt2-10b", "workload.batch_size", "step=18s", 1, 12),
    ("serving/qwen3-235b-a22b", "strategy.num_gpus", "tpot=24s", 1, 4),
    ("xinnor/llama-2b", "workload.gradient_accumulation_steps", "step=4s", 1, 8),
    ("zero-inference-2022/opt-30b", "workload.batch_size", "tokens_per_s=20", 100, 130),
]


@pytest.mark.parametrize(("name", "path", "slo", "low", "high"), one_in(2, SWEPT))
def test_counts_are_those_of_a_fine_sweep(name: str, path: str, slo: str, low: int, high: int) -> None:
    scenario = so.load_scenario(name)
    found = reach(scenario, slo=slo, by=path, within=f"{low}..{high}")
    (level,) = found.service
    kept = []
    for count in range(low, high + 1):
        value = metric(scenario, path, count, level.metric.name)
        ratio = level.limit / value if value and level.metric.larger else (value or 1e9) / level.limit
        kept += [count] if value and ratio <= 1 else []
    assert kept, "the sweep reaches it"
    assert len(kept) < high - low + 1, "and not with every value"
    assert found.least is not None
    assert found.most is not None
    assert (found.least.value, found.most.value) == (f"{kept[0]:,}", f"{kept[-1]:,}")


def test_a_rate_is_that_of_a_fine_sweep() -> None:
    scenario, path = so.load_scenario("deepnvme/bloom-176b"), "profiles.azure-nc-h100-v5-3.5tb.read"
    found = reach(scenario, slo="tpot=35s", by=path)
    quantity = quantity_at(Evaluator(scenario), path)
    at = quantity.index(number(found))
    times = [metric(scenario, path, index, "tpot_s") or 0 for index in range(at - 5, at + 5)]
    assert [time <= 35 for time in times] == [False] * 5 + [True] * 5


# -- what no single direction reaches ------------------------------------------------------------


def test_two_service_levels_leave_the_middle() -> None:
    """Throughput needs a large batch and the time per token a small one; both ends miss one of them."""
    scenario = so.load_scenario("zero-offload-2020/gpt2-10b")
    found = reach(scenario, slo=["samples_per_s=0.5", "step=20s"], by="workload.batch_size")
    assert found.below is not None
    assert found.above is not None
    assert found.least is not None
    assert found.most is not None
    assert 1 < int(found.least.value) <= int(found.most.value) < 1000
    assert all(one.kept for one in (found.least, found.most))
    assert not any(one.kept for one in (found.below, found.above))


def test_a_narrow_middle_is_found() -> None:
    scenario = so.load_scenario("mooncake/qwen3-8b", overrides=["workload.output_length=2"])
    path = "workload.batch_size"
    rate, time = (metric(scenario, path, 13, name) for name in ("tokens_per_s", "ttft_s"))
    found = reach(scenario, slo=[f"tokens_per_s={rate}", f"ttft={time} s"], by=path, within="1..40")
    assert found.value is not None
    assert found.value.value == "13"


def test_what_no_value_reaches_says_what_stands_in_the_way() -> None:
    scenario = so.load_scenario("serving/llama-3.1-70b")
    found = reach(scenario, slo="tpot=1s", by="strategy.num_gpus")
    assert not found.reached
    assert found.value is None
    assert found.best.value == "2"
    assert found.above is not None
    assert "the platform has 2 GPUs" in found.above.why
    assert found.matters


def test_what_changes_nothing_is_said() -> None:
    found = reach("ddn/bloom-7b1", slo="tpot=1ms", by=f"{DRIVE}.count")
    assert not found.reached
    assert not found.matters
    assert found.best.value == found.now.value == "4"


def test_a_value_without_the_metric_does_not_keep_it() -> None:
    """One token that is generated has a time to the first token and none for a token after it."""
    found = reach("ddn/bloom-7b1", slo="tpot=800ms", by="workload.output_length", within="1..64")
    assert found.least is not None
    assert found.below is not None
    assert (found.least.value, found.below.value) == ("2", "1")
    assert (found.below.status, found.below.why) == ("missed", "there is no tpot")
    only = reach(
        so.load_scenario("ddn/bloom-7b1", overrides=["workload.output_length=1"]),
        slo="tpot=800ms",
        by="workload.batch_size",
    )
    assert not only.reached
    assert "there is no tpot" in reach_document(only).verdicts[0]


def test_values_between_one_that_does_not_fit_and_one_that_is_refused_are_tried() -> None:
    """vLLM's share of memory is at most 1, and the range goes to a thousand times the present value."""
    scenario = resolve(parse_yaml(SMALL_SHARE, name="small.yaml"))
    share = "strategy.gpu_memory_utilization"
    found = reach(scenario, slo="tpot=100ms", by=share)
    assert found.least is not None
    assert found.least == reach(scenario, slo="tpot=100ms", by=share, within="0.1..1").least


def test_a_value_that_the_engine_cannot_run_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(scenario: LoadedScenario, **options: object) -> object:
        if scenario.scenario.workload.batch_size > 40:  # type: ignore[union-attr]
            raise SimulationError("too many sequences")
        return simulate(scenario, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("simoffload.planning.evaluator.simulate", stopping)
    found = reach("ddn/bloom-7b1", slo="tpot=1s", by="workload.batch_size", within="1..64")
    assert found.most is not None
    assert found.above is not None
    assert (found.most.value, found.above.value, found.above.why) == ("40", "41", "too many sequences")


def test_dependent_keys_follow() -> None:
    found = reach("zenflow/qwen2.5-1.5b", slo="tokens_per_s=4000", by="workload.batch_size")
    assert found.value is not None
    assert "strategy.ds_config.train_batch_size=auto" in found.value.options


def test_a_curve_changes_by_a_factor() -> None:
    found = reach(
        "zero-inference-2022/opt-30b", slo="tpot=5s", by="profiles.gen3.host_to_device", within="0.5..8"
    )
    assert found.value is not None
    assert found.rises
    assert "points" in found.value.options[0]


def test_options_give_the_value() -> None:
    found = reach("ddn/bloom-7b1", slo="tokens_per_s=500", by="workload.batch_size")
    assert found.value is not None
    result = so.simulate(so.load_scenario("ddn/bloom-7b1", overrides=found.value.options))
    assert found.value.result is not None
    assert result.metrics() == found.value.result.metrics()
    assert (result.metrics()["tokens_per_s"] or 0) >= 500


def test_options_name_a_profile_as_the_scenario_does() -> None:
    """An id alone and ``kind/id`` in one section are refused as the same profile."""
    changed = ("profiles.desktop-ddr4-64gb.memory_capacity=96 GiB",)
    scenario = so.load_scenario(SERVED, overrides=changed)
    found = reach(scenario, slo="tpot=15s", by="profiles.desktop-ddr4-64gb.memory_capacity")
    assert found.value is not None
    result = so.simulate(so.load_scenario(SERVED, overrides=(*changed, *found.value.options)))
    assert found.value.result is not None
    assert result.metrics() == found.value.result.metrics()


def test_plain_values() -> None:
    found = so.reach("ddn/bloom-7b1", slo="tpot=1s", by="workload.batch_size").to_dict()
    assert found["schema"] == "simoffload/reach/1"
    assert found["reached"]
    assert found["value"]["set"] == ["workload.batch_size=661"]
    assert found["beyond"]["status"] == "does not fit"
    assert found["trials"][0]["value"] == "1"


@pytest.mark.parametrize(
    ("path", "within", "overrides", "nearest", "beyond"),
    [
        ("profiles.dgx-a100-1tib.memory_capacity", "10 GiB..640 GiB", "strategy.weights=dram", "0.625", ""),
        ("strategy.ranks", None, "strategy.weights=hbm", "8", "with 9: refused, 9 ranks, but the platform"),
    ],
)
def test_where_nothing_fits_the_limit_of_the_nearest_value_is_told(
    path: str, within: str | None, overrides: str, nearest: str, beyond: str
) -> None:
    scenario = so.load_scenario("ddn/bloom-mod-2", overrides=[overrides])
    found = reach(scenario, slo="tpot=1s", by=path, within=within)
    (verdict,) = reach_document(found).verdicts
    assert found.best.value.startswith(nearest)
    assert f"; nearest, with {found.best.value}: {found.best.why}" in verdict
    assert beyond in verdict
    assert verdict.count(" needs ") == 1


def test_large_rates_are_written_with_separators() -> None:
    quantity = quantity_at(Evaluator(so.load_scenario(SERVED)), "profiles.samsung-980-pro-2tb.read")
    _, high = quantity.ends(None)
    assert (quantity.text(high), quantity.written(high)) == ("7,000,000 MB/s", "7000000 MB/s")
    assert quantity.now_text == "7,000 MB/s"
