"""GPU times of modules: biases under ZeRO-3, and attention at the speed that was measured."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from simoffload.documents import Document
from simoffload.engine import execute
from simoffload.hardware import Machine, load_platform
from simoffload.models import (
    GROWING,
    CacheForm,
    ModelShape,
    Module,
    Sequences,
    attention_kernels,
    load_model,
    module_cost,
)
from simoffload.scenario.loading import resolve
from simoffload.strategies.passes.timing import Timing, TrainingTiming
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.transformers import ResidentPlan

OPT = load_model("opt-30b")
BATCH = Sequences(16, 512, 512)
PICO = 1e-12


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_platform("dgx-h200").machine(nodes=1)


def module(model: ModelShape, name: str) -> Module:
    return next(one for one in model.layers[0] if one.name == name)


def gpu_s(machine: Machine, name: str, *, zero3: bool, model: ModelShape = OPT) -> float:
    timing = Timing(machine=machine, model=model, batch=(BATCH,), zero3=zero3)
    return timing.compute(module(model, name)) * PICO


def test_zero3_adds_the_bias_in_a_kernel_that_is_not_vectorized(machine: Machine) -> None:
    added = gpu_s(machine, "self_attn.q_proj", zero3=True) - gpu_s(machine, "self_attn.q_proj", zero3=False)
    gpu, result = machine.accelerator, 16 * 512 * OPT.hidden_size * 2
    assert gpu.strided_rate is not None
    assert added == pytest.approx(2 * result / gpu.strided_rate.value + gpu.kernel_latency_s)


def test_without_a_measured_rate_the_bias_is_added_at_that_of_memory(machine: Machine) -> None:
    gpu = machine.accelerator.model_copy(update={"strided_rate": None})
    other = replace(machine, accelerator=gpu)
    added = gpu_s(other, "self_attn.q_proj", zero3=True) - gpu_s(other, "self_attn.q_proj", zero3=False)
    result = 16 * 512 * OPT.hidden_size * 2
    assert added == pytest.approx(2 * result / gpu.hbm_rate + gpu.kernel_latency_s)


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_the_bias_of_a_flat_input_is_added_within_the_product(machine: Machine, name: str) -> None:
    assert gpu_s(machine, name, zero3=True) == gpu_s(machine, name, zero3=False)


def test_a_layer_without_bias_has_no_such_kernel(machine: Machine) -> None:
    llama = load_model("llama-3-8b")
    times = {gpu_s(machine, "mlp.up_proj", zero3=zero3, model=llama) for zero3 in (True, False)}
    assert len(times) == 1


def test_backward_sums_the_gradient_of_a_bias(machine: Machine) -> None:
    timing = TrainingTiming(machine=machine, model=OPT, batch=4, length=512, zero3=False)
    layer = module(OPT, "fc2")
    without = layer._replace(parameters=layer.parameters[:1])
    gpu, result = machine.accelerator, 4 * 512 * OPT.hidden_size * 2
    bias_s = (timing.backward(layer) - timing.backward(without)) * PICO
    assert bias_s == pytest.approx(result / gpu.hbm_rate + gpu.kernel_latency_s, rel=0.02)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_has_the_measured_share_of_its_ideal_speed(machine: Machine, attention: str) -> None:
    model = replace(OPT, attention=attention)
    gpu = machine.accelerator
    curve = gpu.fused_attention if attention == "sdpa" else gpu.eager_attention
    assert curve is not None
    name = "self_attn.attention"
    kernels = attention_kernels(model, module(model, name), BATCH)
    total = module_cost(model, module(model, name), batch=16, new_tokens=512, context=512)
    ideal = kernels.flops / gpu.matmul_rate(kernels.flops, "float16") + kernels.bytes / gpu.hbm_rate
    joined = 16 * 512 * 2 * OPT.hidden_size * 4  # keys and values, read and written
    assert gpu.join_rate is not None
    rest = total.bytes - kernels.bytes - joined
    expected = ideal / curve.at(512) + joined / gpu.join_rate.value + rest / gpu.hbm_rate
    found = gpu_s(machine, name, zero3=True, model=model)
    assert found == pytest.approx(expected + 16 * gpu.kernel_latency_s)
    assert rest > 0, "queries are scaled"


def test_attention_of_an_unmeasured_gpu_reaches_its_roofline(machine: Machine) -> None:
    gpu = machine.accelerator.model_copy(update={"fused_attention": None})
    unmeasured = replace(machine, accelerator=gpu)
    cost = module_cost(OPT, module(OPT, "self_attn.attention"), batch=16, new_tokens=512, context=512)
    roofline = max(cost.flops / gpu.matmul_rate(cost.flops, "float16"), cost.bytes / gpu.hbm_rate)
    found = gpu_s(unmeasured, "self_attn.attention", zero3=True)
    assert found == pytest.approx(roofline + 16 * gpu.kernel_latency_s)


def test_sequences_of_different_lengths_have_their_own_speed(machine: Machine) -> None:
    parts = [Sequences(8, 1, 600), Sequences(4, 512, 512)]
    name = "self_attn.attention"

    def seconds(*batch: Sequences) -> float:
        timing = Timing(machine=machine, model=OPT, batch=batch, zero3=True)
        return timing.compute(module(OPT, name)) * PICO - 16 * machine.accelerator.kernel_latency_s

    assert seconds(*parts) == pytest.approx(sum(seconds(part) for part in parts))


def test_rotation_and_most_kernels_of_norms_are_not_vectorized(machine: Machine) -> None:
    llama = load_model("llama-3-8b")
    gpu, tokens = machine.accelerator, BATCH.number * BATCH.new_tokens
    slower = replace(machine, accelerator=gpu.model_copy(update={"strided_rate": None}))
    assert gpu.strided_rate is not None
    rotated = 4096 + 1024
    kernels = (
        ("input_layernorm", 3 * 4096, 9 * 4096),
        ("self_attn.attention", 9 * rotated / 2, 10 * rotated),
    )
    for name, written, moved in kernels:
        longer = 4 * written / gpu.strided_rate.value - 2 * moved / gpu.hbm_rate
        added = gpu_s(machine, name, zero3=True, model=llama) - gpu_s(slower, name, zero3=True, model=llama)
        assert added == pytest.approx(tokens * longer)


def test_attention_of_training_has_no_cache(machine: Machine) -> None:
    timing = TrainingTiming(machine=machine, model=OPT, batch=16, length=512, zero3=True)
    layer = module(OPT, "self_attn.attention")
    assert timing.compute(layer) * PICO < gpu_s(machine, layer.name, zero3=True)


def test_backward_of_attention_has_the_speed_of_forward(machine: Machine) -> None:
    timing = TrainingTiming(machine=machine, model=OPT, batch=4, length=512, zero3=True)
    layer, gpu = module(OPT, "self_attn.attention"), machine.accelerator
    forward, backward = (
        attention_kernels(OPT, layer, Sequences(4, 512, 512), backward=backward) for backward in (False, True)
    )
    assert backward == (2.5 * forward.flops, 4.25 * forward.bytes)
    assert gpu.fused_attention is not None
    ideal = backward.flops / gpu.matmul_rate(backward.flops, "float16") + backward.bytes / gpu.hbm_rate
    scaled = 2 * 2 * 4 * 512 * OPT.hidden_size  # [B] read and written in forward, twice in backward
    expected = ideal / gpu.fused_attention.at(512) + scaled * 2 / gpu.hbm_rate
    assert timing.backward(layer) * PICO == pytest.approx(expected + 32 * gpu.kernel_latency_s)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_experts_in_float16_are_launched_one_by_one(name: str) -> None:
    """Each expert costs its part of an operation, more with tokens than without."""
    machine = load_platform("dgx-h100").machine(nodes=1)
    batch = (Sequences(2, 1, 64),)
    times = {}
    for dtype in ("bfloat16", "float16"):
        model = load_model({"name": name, "dtype": dtype})
        (experts, *_) = (one for one in model.distinct_modules if one.parallel == "experts")
        timing = Timing(machine=machine, model=model, batch=batch, zero3=True)
        times[dtype] = timing.launch_s(experts)
    chosen = model.touched_share(experts, 2) * model.num_experts
    added = 2 * (1.47 * chosen + 0.32 * (model.num_experts - chosen)) * machine.host.deepspeed.operation.value
    assert times["float16"] - times["bfloat16"] == pytest.approx(added)


MISTRAL = load_model(
    {
        "family": "mistral",
        "num_hidden_layers": 2,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "sliding_window": 4096,
        "dtype": "bfloat16",
    }
)


def attention_s(machine: Machine, model: ModelShape, *, context: int, cache: CacheForm = GROWING) -> float:
    """Return the time of attention in a decode step of 16 sequences."""
    batch = (Sequences(16, 1, context),)
    timing = Timing(machine=machine, model=model, batch=batch, zero3=False, cache=cache)
    return timing.compute(module(model, "self_attn.attention")) * PICO


def test_a_full_sliding_layer_is_joined_element_by_element(machine: Machine) -> None:
    """It keeps a view of the last tokens. On an H100 both tensors of such a layer took 806 us, 0.67 TB/s
    (docs/measurements/kv-cache.md); one that is not full is joined as fast as memory allows."""
    gpu = machine.accelerator
    assert gpu.join_rate is not None
    full, short = (attention_s(machine, MISTRAL, context=context) for context in (4097, 4096))
    traffic = 2 * 16 * 4096 * 2 * 8 * 128 * 2  # keys and values, read and written
    slower = traffic / gpu.join_rate.value - traffic / gpu.hbm_rate
    assert full - short == pytest.approx(slower)
    assert traffic / gpu.join_rate.value == pytest.approx(806e-6, rel=0.01)


def test_a_cache_that_left_the_gpu_is_contiguous_again(machine: Machine) -> None:
    offloaded = CacheForm(offloaded=True)
    full, short = (attention_s(machine, MISTRAL, context=at, cache=offloaded) for at in (4097, 4096))
    assert full == short


def test_eager_attention_repeats_shared_heads(machine: Machine) -> None:
    """Each copy of 268 million elements took 550 us alone and 576 us in a model (H100)."""
    gpu = machine.accelerator
    llama = replace(load_model("llama-3.1-8b"), attention="eager")
    without = replace(llama, num_key_value_heads=32)
    batch = (Sequences(16, 1, 4096),)

    def seconds(model: ModelShape) -> float:
        timing = Timing(machine=machine, model=model, batch=batch, zero3=False)
        return timing.compute(module(llama, "self_attn.attention")) * PICO

    assert gpu.strided_rate is not None
    copies = 2 / 3 * 2 * 2 * 16 * 32 * 4096 * 256 / gpu.strided_rate.value
    assert copies / 2 == pytest.approx(550e-6, rel=0.06)
    # All heads with keys of their own: the same reads, four times the cache to join, and no copies.
    joined = 2 * 2 * 16 * 4096 * (32 - 8) * 256 / gpu.hbm_rate
    assert seconds(llama) - seconds(without) == pytest.approx(copies - joined, rel=0.02)
    fused = replace(llama, attention="sdpa")
    assert seconds(fused) < seconds(llama) - copies


def test_training_counts_no_repeated_heads(machine: Machine) -> None:
    llama = replace(load_model("llama-3.1-8b"), attention="eager")
    timing = TrainingTiming(machine=machine, model=llama, batch=2, length=512, zero3=False)
    assert timing._repeat_s(module(llama, "self_attn.attention"), Sequences(2, 512, 512)) == 0


@pytest.mark.parametrize("sequences", [8, 32])
def test_generate_copies_the_experts_of_each_token(sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of ``generate`` are limited by copies of weights, and prompts are as in other passes.

    Recorded: 8 layers of Mixtral on an H200, prompts of 128 tokens (docs/measurements/h200-2026-11-29e).
    """
    model = {"name": "mixtral-8x7b", "num_hidden_layers": 8, "dtype": "bfloat16", "routing": "uniform"}
    work = {"kind": "inference", "batch_size": sequences, "prompt_length": 128, "output_length": 13}
    data = {"name": "x", "platform": "h200-1gpu-vm", "model": model, "workload": work}
    batches = ([Sequences(sequences, 128, 128)], [Sequences(sequences, 1, 129)])

    def seconds() -> list[float]:
        plan = resolve(Document("", {**data, "strategy": {"kind": "transformers"}})).plan()
        assert isinstance(plan, InferencePlan)
        copied = [one.size for one in plan.held if one.name == "experts copied for each token"]
        assert copied == ([2 * sequences * 3 * 4096 * 14336 * 2] if plan.generates else [])
        return [execute(plan.step(batch).schedule({})).makespan * PICO for batch in batches]

    prompt, step = seconds()
    monkeypatch.setattr(ResidentPlan, "generates", False)
    other_prompt, grouped = seconds()
    assert prompt == other_prompt
    assert step > 2 * grouped
    record = Path(__file__).parents[2] / "docs/measurements/h200-2026-11-29e/eager-runs.json.gz"
    runs = json.loads(gzip.decompress(record.read_bytes()))["runs"]
    run = next(one for one in runs if one["name"] == f"mixtral-8x7b, batch {sequences}, prompt 128")
    steps = [later - one for row in run["generate"] for one, later in pairwise(row["stamps"][1:])]
    assert step == pytest.approx(median(steps), rel=0.2)
