"""Kernels of compiled serving: how many there are, how long they take, and what the host adds."""

from __future__ import annotations

import csv
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import Edit, parse_yaml
from simoffload.hardware import Attended, AttentionSizes, decode_work, prefill_work
from simoffload.models import Sequences
from simoffload.planning.confidence import confidence
from simoffload.results.inference import InferenceResult
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies.passes.timing import FusedTiming
from validation.serving import serving_steps

_SCENARIO = """\
name: served
model: {{name: {model}{more}}}
platform: {platform}
workload: {{kind: inference, batch_size: {batch}, prompt_length: {prompt}, output_length: {output}}}
strategy: {{kind: {kind}, enforce_eager: {eager}, max_cudagraph_capture_size: {most}}}
"""


def scenario(model: str, quantization: str = "", **keys: Any) -> LoadedScenario:
    more = f", quantization: {quantization}" if quantization else ""
    served = {"kind": "vllm", "eager": "false", "most": "null"}
    given = {"platform": "dgx-h100", "batch": 1, "prompt": 512, "output": 3, **served, **keys}
    return resolve(parse_yaml(_SCENARIO.format(model=model, more=more, **given), name="served.yaml"))


def simulated(model: str, quantization: str = "", **keys: Any) -> InferenceResult:
    result = so.simulate(scenario(model, quantization, **keys))
    assert isinstance(result, InferenceResult)
    return result


def timing(model: str, quantization: str = "", *, tokens: int = 1, context: int = 512) -> FusedTiming:
    plan: Any = scenario(model, quantization).plan()
    found = plan.stage_timings[0].timing((Sequences(1, tokens, context),))
    assert isinstance(found, FusedTiming)
    return found


# -- numbers of kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "steps"), [(2, 0), (4, 4), (8, 12)])
def test_a_ring_of_more_gpus_has_more_steps(gpus: int, steps: int) -> None:
    """9.1 us between two, and 0.47 us for each of the 2 (n - 1) steps beyond their two."""
    found = scenario("llama-3.1-8b").machine.gather(0, gpus, compiled=True)
    assert found.latency == pytest.approx(9.1e-6 + steps * 0.47e-6)


@pytest.mark.parametrize(
    ("model", "quantization", "kernels"),
    [
        ("llama-3.1-8b", "", 11),
        ("qwen3-30b-a3b", "", 17),
        ("gpt-oss-20b", "mxfp4", 17),
        ("llama-3.1-8b", "fp8", 12),
        ("deepseek-v2-lite", "", 24),
    ],
)
def test_kernels_of_a_layer_are_counted_by_family(model: str, quantization: str, kernels: int) -> None:
    """As in traces of vLLM 0.25.1: 11 in a layer of Llama, 17 in one of gpt-oss, 18 with a copy in one of
    Qwen3-30B."""
    found = timing(model, quantization)
    layer, _ = max(found._model.kinds, key=lambda kind: kind[1])
    worked = [one for one in layer if found.compute(one)]
    assert sum(map(found.kernels, worked)) == kernels


def test_steps_are_whole_graphs_short_prefills_pieces_and_long_ones_none() -> None:
    def graphs(
        number: int, new: int, context: int, *, model: str = "llama-3.1-8b", most: str = "null"
    ) -> str:
        plan: Any = scenario(model, most=most).plan()
        found: str = plan.timings.timing((Sequences(number, new, context),)).graphs
        return found

    assert graphs(8, 1, 600) == "whole"
    assert graphs(1, 512, 512) == "pieces"
    assert graphs(2, 512, 512) == "none"
    assert graphs(2, 512, 512, model="gpt-oss-20b") == "pieces"
    assert graphs(2, 513, 513, model="gpt-oss-20b") == "none"
    assert graphs(2, 512, 512, most="1024") == "pieces"
    assert graphs(1, 512, 512, most="256") == "none"
    assert graphs(256, 1, 600, most="256") == "whole"
    assert graphs(257, 1, 600, most="256") == "none"


def test_without_graphs_the_host_launches_every_kernel() -> None:
    """``--enforce-eager``: a decode step takes at least the launches of 11 kernels and the call of attention
    in each of 32 layers."""
    eager = scenario("llama-3.1-8b", eager="true")
    costs = eager.machine.host.compiled_costs
    launches = 32 * (11 * costs.kernel.value + costs.attention.value)
    assert launches < (so.simulate(eager).tpot_s or 0.0) < 1.5 * launches
    assert (simulated("llama-3.1-8b").tpot_s or launches) < launches


def test_all_reduces_of_an_engine_are_kernels() -> None:
    """They are within the graphs of short prefills, and in long ones launched as any kernel; not as by
    transformers, whose wrappers take 0.5 ms of the host each."""
    for prompt, most in ((512, 1.0), (2048, 0.7)):
        one, two = (
            simulated("llama-3.1-8b", kind=f"vllm, tensor_parallel_size: {gpus}", prompt=prompt)
            for gpus in (1, 2)
        )
        assert 0.5 < (two.ttft_s or 0.0) / (one.ttft_s or 1.0) < most


@pytest.mark.parametrize("model", ["llama-3.1-8b", "opt-6.7b", "bloom-7b1", "pythia-6.9b", "falcon-7b"])
def test_fp8_quantizes_the_input_of_the_product_behind_attention(model: str) -> None:
    """Whatever the family calls it; norms and activations quantize the inputs of the other products."""

    def kernels(quantization: str) -> int:
        found = timing(model, quantization)
        layer, _ = max(found._model.kinds, key=lambda kind: kind[1])
        return sum(map(found.kernels, layer))

    assert kernels("fp8") - kernels("") == 1


def test_an_activation_that_a_product_contains_takes_no_time() -> None:
    found = timing("gpt-oss-20b", "mxfp4", tokens=2048, context=2048)
    layer, _ = max(found._model.kinds, key=lambda kind: kind[1])
    assert [found.compute(one) for one in layer if one.kind == "activation" and one.share < 1] == [0]


# -- times ----------------------------------------------------------------------------------------


def test_the_host_is_the_floor_of_a_prefill_of_experts() -> None:
    """From 513 to 2,048 tokens it takes the same time, since the host launches kernels one by one."""
    short, longer, four = (simulated("qwen3-30b-a3b", prompt=one).ttft_s for one in (512, 513, 2048))
    assert longer > 2 * short
    assert four == pytest.approx(longer, rel=0.01)


def test_experts_in_mxfp4_are_launched_by_python() -> None:
    """Its Triton kernels take the host 1.9 ms a layer where their call was measured alone: 24 layers."""
    assert 0.04 < simulated("gpt-oss-20b", "mxfp4", prompt=512, most="256").ttft_s < 0.08
    assert simulated("gpt-oss-20b", "mxfp4", prompt=512).ttft_s < 0.02


def test_a_decode_step_waits_for_the_next_one_to_be_prepared() -> None:
    """A model whose kernels take less time than the host's part of a step: 72 operations."""
    host = scenario("opt-125m").machine.host
    assert simulated("opt-125m").tpot_s == pytest.approx(host.compiled_costs.step.value, rel=0.2)


def test_the_host_works_for_every_sequence_of_a_step() -> None:
    """Scheduling and output, also where the kernels of a step would end before."""
    costs = scenario("opt-125m").machine.host.compiled_costs
    one, many = (simulated("opt-125m", batch=number, prompt=16).tpot_s or 0.0 for number in (1, 129))
    assert many - one == pytest.approx(128 * costs.sequence.value, rel=0.1)


def test_tokens_of_a_prefill_are_taken_when_the_next_step_is_prepared() -> None:
    """Where the host limits it: asynchronous scheduling launches the next step first, if there is one; each
    token of a prompt is hashed and found or allocated."""
    costs = scenario("opt-125m").machine.host.compiled_costs
    last, more = (simulated("opt-125m", prompt=64, output=output).ttft_s for output in (1, 2))
    assert more - last == pytest.approx(costs.step.value + costs.sequence.value, rel=0.1)
    longer = simulated("opt-125m", prompt=320, output=1).ttft_s
    assert longer - last == pytest.approx(256 * costs.prompt_token.value, rel=0.2)


def parts_of(found: FusedTiming, kind: str, name: str = "") -> float:
    """The time of the modules of a layer of a kind [s]."""
    layer = max(found._model.kinds, key=lambda one: one[1])[0]
    chosen = [one for one in layer if one.kind == kind and one.name.endswith(name)]
    assert chosen
    return sum(map(found.compute, chosen)) / 1e12


def of_batch(model: str, *batch: Sequences) -> FusedTiming:
    plan: Any = scenario(model).plan()
    found = plan.stage_timings[0].timing(batch)
    assert isinstance(found, FusedTiming)
    return found


def test_attention_is_read_in_the_tables_of_a_gpu() -> None:
    """Steps by all sequences together, and prompts beside them without the latency of more kernels."""
    steps, prompt = (Sequences(60, 1, 4000), Sequences(4, 1, 6000)), Sequences(1, 1500, 2000)
    found = of_batch("llama-3.1-8b", *steps)
    gpu = found.machine.accelerator
    sizes = AttentionSizes(32, 8, 128, None, 2)
    decoding = decode_work([Attended(60, 1, 4000), Attended(4, 1, 6000)], sizes, least_rows=64)
    assert (decoding.rows, decoding.outputs, decoding.inputs) == (4125, 512, 128)
    assert decoding.traffic == 256 * (64 * 4125 * 16 + 64 * (64 + 32))
    table = gpu.kernels.decode_table
    assert table is not None
    rotated = 2 * 40 * 128 * 2 / gpu.hbm_rate
    seconds = gpu.table_s(table, decoding, dtype=found._model.dtype)
    assert parts_of(found, "attention") == pytest.approx(seconds + 64 * rotated, rel=1e-6)

    alone = parts_of(of_batch("llama-3.1-8b", prompt), "attention")
    both = parts_of(of_batch("llama-3.1-8b", *steps, prompt), "attention")
    together = seconds + 64 * rotated + alone
    assert together - 4 * 3 * gpu.kernels.kernel_latency.value < both < together


def test_a_window_limits_the_keys_of_prompts_and_steps() -> None:
    full, short = (AttentionSizes(64, 8, 64, window, 2) for window in (None, 128))
    one = [Attended(2, 1000, 3000)]
    assert prefill_work(one, full).rows == 3000 - 500 + 64
    assert prefill_work(one, short).rows == 128 + 128
    assert prefill_work(one, full).outputs == 2 * 8 * ceil(1000 * 8 / 128)
    assert decode_work([Attended(3, 1, 3000)], short, least_rows=64).rows == 128


def test_experts_are_read_in_the_table_of_a_gpu() -> None:
    """128 experts with 8 of 2,048 tokens each, half a layer of Qwen3-30B."""
    found = of_batch("qwen3-30b-a3b", Sequences(1, 2048, 2048))
    gpu = found.machine.accelerator
    table = gpu.kernels.experts("")
    assert table is not None
    share = table.share(rows=128, outputs=768, inputs=128, padded=True)
    ideal = parts_of(found, "linear", ".experts") * share
    weights, flops = 128 * 3 * 2048 * 768 * 2, 6 * 2048 * 8 * 2048 * 768
    moved = weights + 2 * 2048 * 8 * (2 * 2048 + 3 * 768)
    alone = moved / 3.35e12, flops / (989e12 * 0.866)
    bytes_and_work = (alone[0] ** 3 + alone[1] ** 3) ** (1 / 3)
    assert ideal == pytest.approx(bytes_and_work + 4 * 2.9e-6, rel=0.01)


def test_grouped_products_depend_on_the_rows_of_each_expert() -> None:
    """Those of a layer of Mixtral with 2,048 tokens take 3.2 ms on an H100, of Qwen3-30B 0.6 ms, with the
    tokens sorted."""
    for model, tokens, measured in (("mixtral-8x7b", 2048, 3202e-6), ("qwen3-30b-a3b", 2048, 586e-6)):
        found = timing(model, tokens=tokens, context=tokens)
        layer, _ = found._model.kinds[-1]
        experts = sum(found.compute(one) for one in layer if one.parallel == "experts") / 1e12
        assert experts == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("tokens", "measured"), [(1, 51e-6), (8, 135e-6), (64, 196e-6), (2048, 995e-6)])
def test_experts_in_mxfp4_are_read_and_multiplied_as_measured(tokens: int, measured: float) -> None:
    """Both products of the experts of gpt-oss-20b on an H100, and the three kernels that sort the tokens."""
    found = timing("gpt-oss-20b", "mxfp4", tokens=tokens, context=tokens + 1)
    layer, _ = found._model.kinds[-1]
    experts = sum(found.compute(one) for one in layer if one.parallel == "experts") / 1e12
    assert experts == pytest.approx(measured, rel=0.3)


def test_fewer_bits_cost_a_latency_of_their_own_kernels() -> None:
    """A step of Llama-3.1-8B with 4 bits takes 4.1 ms on an H100 and 6.5 with 16: not a quarter."""
    plain, four = (simulated("llama-3.1-8b", one).tpot_s for one in ("", "int4-g128"))
    assert plain is not None
    assert four is not None
    assert 1.4 < plain / four < 1.9


def test_steps_in_view_are_predicted_within_a_tenth() -> None:
    steps = [one for one in serving_steps() if one.part == "fit"]
    assert len(steps) > 10
    missed = {(one.model, one.work) for one in steps if abs(one.error) >= 0.1 or not one.inside}
    assert missed == {("qwen3-30b-a3b", "prefill"), ("gpt-oss-20b", "prefill")}, "docs/limits.md says so"


# -- intervals ------------------------------------------------------------------------------------


def width(result: InferenceResult, metric: str = "tpot_s") -> float:
    """Factor either way of the 80 % interval."""
    low, high = confidence(result).interval(metric)
    return sqrt(high / low)


def test_what_was_not_compared_has_a_wider_interval() -> None:
    """Real runs are of single H100 and H200; of an A100 there is none, and still less with experts, fewer
    bits, several GPUs and many sequences."""
    one = [simulated("llama-3.1-8b", platform=name) for name in ("h100-1gpu-vm", "dgx-a100")]
    near, far, farthest = map(width, (*one, five_unknowns()))
    assert 1.05 < near < 1.3
    assert far >= 1.4
    assert 2.1 < farthest < 2.6


def five_unknowns() -> InferenceResult:
    """Another GPU, a format, experts, several GPUs and many sequences."""
    keys: dict[str, Any] = {"kind": "vllm, tensor_parallel_size: 2", "batch": 128}
    return simulated("qwen3-30b-a3b", "int4-g128", platform="dgx-a100-80g", **keys)


def test_clauses_of_what_no_real_run_did_are_each_true() -> None:
    gpu = "on NVIDIA A100 SXM4 80 GB"
    assert confidence(five_unknowns()).unlike == (
        f"served a model {gpu}; none served weights as int4-g128 {gpu}; none served experts {gpu}; "
        f"none served from several GPUs; none served 128 sequences at once {gpu}"
    )


_FILES = {"h100": "h100-1gpu-vm", "h200": "h200-1gpu-vm"}


@pytest.mark.parametrize("gpu", _FILES)
def test_no_recorded_run_is_unknown(gpu: str, repository: Path) -> None:
    """The table of what real runs did has all rows of the records, and no sentence denies one of them."""
    most: dict[tuple[str, str, str], int] = {}
    for path in (repository / "validation" / "serving").glob(f"{gpu}-vllm-0.25*.csv"):
        for row in csv.DictReader(path.read_text("utf-8").splitlines()):
            key = row["model"], row["quantization"], row["cpu_offload_gb"]
            most[key] = max(most.get(key, 1), int(row["batch"]))
    assert len(most) >= 4
    for (model, quantization, offloaded), batch in most.items():
        loaded = scenario(model, quantization, platform=_FILES[gpu], batch=batch)
        if offloaded:
            strategy = {"kind": "vllm", "cpu_offload_gb": int(offloaded)}
            loaded = loaded.edited(Edit(("strategy",), strategy))
        found = confidence(so.fit(loaded))
        dense = model in ("llama-3.1-8b", "qwen3-14b") and not (quantization or offloaded)
        group = "vllm" if dense else "vllm (others)"
        assert (found.unlike, found.program) == ("", group), (model, quantization, offloaded)


@pytest.mark.parametrize(
    ("model", "quantization", "keys", "unlike"),
    [
        ("qwen3-30b-a3b", "fp8", {"platform": "h200-1gpu-vm"}, "served experts as fp8 on {}"),
        ("qwen3-30b-a3b", "int4-g128", {"platform": "h100-1gpu-vm"}, "served experts as int4-g128 on {}"),
        ("llama-3.1-8b", "fp8", {"platform": "h100-1gpu-vm"}, "served weights as fp8 on {}"),
        ("llama-3.1-8b", "", {"platform": "h100-1gpu-vm", "batch": 256}, ""),
        (
            "llama-3.1-8b",
            "",
            {"platform": "h100-1gpu-vm", "batch": 257},
            "served 257 sequences at once on {}",
        ),
    ],
)
def test_what_no_recorded_run_served_is_said(
    model: str, quantization: str, keys: dict[str, Any], unlike: str
) -> None:
    """Measured rates of kernels are no real runs."""
    loaded = scenario(model, quantization, **keys)
    found = confidence(so.fit(loaded))
    assert found.unlike == unlike.format(loaded.machine.accelerator.name)
