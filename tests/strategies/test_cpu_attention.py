"""Attention on the CPU over a cache in host memory: bytes, times and memory by hand."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest

import simoffload as so
from simoffload.models import Sequences, load_model
from simoffload.planning.evaluator import Evaluator
from simoffload.scenario import LoadedScenario
from simoffload.strategies.base import memory_stages
from simoffload.strategies.cache.cache_updates import cpu_attention, cpu_rate
from tests.strategies import scenarios
from tests.strategies.scenarios import ON_CPU

BATCH, PROMPT = 16, 512
SHAPES = {
    "opt-30b": (48, 7168, 7168, 56),
    "bloom-7b1": (30, 4096, 4096, 32),
    "llama-2-7b": (32, 4096, 4096, 32),
    "llama-2-70b": (80, 8192, 1024, 64),
}
"""Layers, elements of queries, elements of keys, and heads of queries."""


def described(*, model: str = "opt-30b", **keys: Any) -> dict[str, Any]:
    work = {"batch_size": BATCH, "prompt_length": PROMPT, "platform": "lambda-vector-a6000"}
    strategy = {"kind": "deepspeed", **keys.pop("strategy", {"weights": "dram"})}
    shape = {"name": model, "attention": "eager", "dtype": "float16"}
    return {**work, "model": shape, "strategy": strategy, "cache": ON_CPU, **keys}


def scenario(**keys: Any) -> LoadedScenario:
    return scenarios.scenario(**described(**keys))


def moved(found: LoadedScenario, *, new: int, context: int) -> tuple[int, int]:
    """Bytes of keys, values, queries and results that a pass copies to host memory, and to the GPU."""
    back, there = scenarios.moved(found, ", pageable", new=new, context=context)
    return there, back


def attended(found: LoadedScenario, batch: int, context: int) -> Any:
    """Return the work of a layer in a decode step."""
    return layer_work(found, batch, context).attended


def layer_work(found: LoadedScenario, batch: int, context: int) -> Any:
    plan: Any = found.plan()
    return cpu_attention(plan.cache, found.model, [Sequences(batch, 1, context)])


# -- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", SHAPES)
def test_a_step_sends_the_new_token_and_gets_the_result(model: str) -> None:
    """Keys, values and the query in single precision leave with a mask or with ALiBi; the result comes back,
    from OPT in 16 bit."""
    layers, width, keys, heads = SHAPES[model]
    context = PROMPT + 1
    mask = BATCH * context * (2 if not model.startswith("bloom") else 4 * heads + 1)
    there = 2 * BATCH * keys * 2 + BATCH * width * 4 + mask
    back = BATCH * width * (2 if model.startswith("opt") else 4)
    assert moved(scenario(model=model), new=1, context=context) == (layers * there, layers * back)


@pytest.mark.parametrize("model", SHAPES)
def test_keys_and_values_of_a_prompt_leave_once(model: str) -> None:
    layers, _, keys, _ = SHAPES[model]
    found = scenario(model=model)
    assert moved(found, new=PROMPT, context=PROMPT) == (layers * 2 * BATCH * PROMPT * keys * 2, 0)


def test_without_blocking_the_gpu_casts_before_the_copy() -> None:
    """As much again crosses PCIe, except of BLOOM, whose buffer is in 16 bit."""
    for model, factor in (("opt-30b", 2), ("llama-2-70b", 2), ("bloom-7b1", 1)):
        layers, _, keys, _ = SHAPES[model]
        found = scenario(model=model, cache={**ON_CPU, "asynchronous": True, "pin_memory": True})
        stored, _ = moved(found, new=PROMPT, context=PROMPT)
        assert stored == factor * layers * 2 * BATCH * PROMPT * keys * 2


# -- times ---------------------------------------------------------------------------------------


def test_the_cpu_reads_keys_and_values_once() -> None:
    """OPT, whose buffer is in single precision: 32 threads read 0.31 of 28 GB/s each in products, up to
    143.4 GB/s together; scores are read or written eight times by loops."""
    found, context = scenario(model="opt-30b"), 540
    work = layer_work(found, BATCH, context)
    products = 2 * BATCH * context * 7168 * 4
    others = 8 * BATCH * 56 * context * 4 + 2 * BATCH * 7168 * (2 + 4)
    assert work.attended == (products + others, 0, 0, products)
    rate = 1 / sqrt((1 / (32 * 0.31 * 28e9)) ** 2 + (1 / 143.4e9) ** 2)
    loops = 1 / sqrt((1 / (32 * 28e9)) ** 2 + (1 / 143.4e9) ** 2)
    expected = work.attended.traffic / (products / rate + others / loops)
    assert cpu_rate(found.machine, work.attended, ranks=1) == pytest.approx(expected, rel=1e-6)


def test_a_buffer_in_16_bit_is_cast_in_every_step() -> None:
    """BLOOM: 2 B are read and 4 written in new memory, then 4 are read by the product."""
    found, context, batch = scenario(model="bloom-7b1"), 540, 64
    work = attended(found, batch, context)
    elements = 2 * batch * context * 4096
    scores, own = 9 * batch * 32 * context * 4, 2 * batch * 4096 * (2 + 2)
    assert work == (elements * (2 + 4 + 4) + scores + own, elements * 4, elements * 4, elements * 4)


def test_grouped_queries_repeat_the_cache() -> None:
    """Llama-2-70B reads eight heads and writes 64 in new memory, which the product then reads."""
    found, context, batch = scenario(model="llama-2-70b"), 540, 64
    work = attended(found, batch, context)
    kept, repeated = 2 * batch * context * 1024 * 4, 2 * batch * context * 8192 * 4
    scores, own = 8 * batch * 64 * context * 4, 2 * batch * 1024 * (2 + 4)
    assert work == (kept + 2 * repeated + scores + own, repeated, repeated, repeated)


def test_small_tensors_use_their_memory_again() -> None:
    """glibc keeps blocks of up to 32 MiB."""
    found = scenario(model="bloom-7b1")
    for batch, new in ((1, 0), (16, 2 * 16 * 540 * 4096 * 4)):
        assert attended(found, batch, 540).new == new


def test_the_host_waits_for_the_cpu() -> None:
    """With weights on the GPU a step is the sum of copies, work of the CPU and everything else."""
    keys: dict[str, Any] = {"model": "llama-2-7b", "strategy": {"weights": "hbm"}, "steps": 1}
    found = scenario(**keys)
    inside, outside = (scenarios.decode(**described(**keys, cache=cache)) for cache in (None, ON_CPU))
    work = layer_work(found, BATCH, PROMPT + 1)
    cpu = 32 * work.attended.traffic / cpu_rate(found.machine, work.attended, ranks=1)
    copied = 32 * (sum(work.sent) + work.returned) / 10e9
    assert outside.time_s > cpu + copied
    assert outside.time_s < cpu + copied + inside.time_s + 32 * 5 * 100e-6


def test_weights_in_pageable_memory_do_not_overlap_with_the_cpu() -> None:
    """Both occupy the host thread."""
    strategy = {
        "weights": "dram",
        "ds_config": {"zero_optimization": {"stage": 3, "offload_param": {"pin_memory": False}}},
    }
    keys: dict[str, Any] = {"model": "llama-2-7b", "strategy": strategy, "steps": 1}
    found, step = scenario(**keys), scenarios.decode(**described(**keys))
    work = layer_work(found, BATCH, PROMPT + 1)
    cpu = 32 * work.attended.traffic / cpu_rate(found.machine, work.attended, ranks=1)
    weights = (found.model.weight_bytes - 2 * 32000 * 4096) / 12.9e9
    assert step.time_s > cpu + weights


# -- memory --------------------------------------------------------------------------------------


def terms(**keys: Any) -> dict[tuple[str, str], tuple[int, bool]]:
    (stage,) = memory_stages(scenario(**keys).plan())
    return {(one.tier, one.name): (one.size, one.pinned) for one in stage.terms}


@pytest.mark.parametrize("model", SHAPES)
def test_the_buffer_has_room_for_the_longest_context(model: str) -> None:
    """In single precision for OPT and Llama, which keep grouped heads as they are; in 16 bit for BLOOM."""
    layers, _, keys, _ = SHAPES[model]
    found, element = terms(model=model), 2 if model.startswith("bloom") else 4
    size = 2 * layers * BATCH * (PROMPT + 3) * keys * element
    assert found["dram", "key-value cache"] == (size, False)
    assert found["hbm", "keys and values of a layer"] == (2 * BATCH * PROMPT * keys * 2, False)
    assert ("hbm", "key-value cache") not in found


def test_a_pinned_buffer_is_a_power_of_two() -> None:
    """One tensor of OPT, two of BLOOM."""
    for model, tensors in (("opt-30b", 1), ("bloom-7b1", 2)):
        found = terms(model=model, cache={**ON_CPU, "pin_memory": True})
        size, pinned = found["dram", "key-value cache"]
        assert pinned
        each = 1 << (size // tensors - 1).bit_length()
        assert found["dram", "rounding of the pinned cache"] == (tensors * each - size, True)


def test_what_fits_the_published_machine() -> None:
    """The published batches fit 256 GiB, and the next ones of the same sweep do not in single precision."""
    kinds = {"kv": "zero-inference-2023/opt-30b-kv"}
    found = [
        so.simulate(so.load_scenario(kinds["kv"], overrides=[f"workload.batch_size={batch}"])).capacity
        for batch in (96, 160)
    ]
    assert [next(one.fits for one in uses if one.tier == "dram") for uses in found] == [True, False]


# -- what to type, and mistakes ------------------------------------------------------------------


def test_the_command_is_that_of_the_example() -> None:
    found = scenario(cache={**ON_CPU, "pin_memory": True, "asynchronous": True}).exports()
    assert found["zero-inference.sh"].splitlines()[-1] == (
        "deepspeed --num_gpus 1 run_model.py --model opt-30b --batch-size 16 --prompt-len 512 "
        "--gen-len 4 --pin-memory 1 --cpu-offload --kv-offload --pin_kv_cache --async_kv_offload"
    )
    stored = so.load_scenario("zero-inference-2023/opt-30b-kv").on("nvme").exports()["zero-inference.sh"]
    assert stored.endswith("--disk-offload --offload-dir /mnt/nvme --kv-offload\n")
    quantized = {
        "quantized_initialization": {"num_bits": 4, "group_size": 64, "group_dim": 1, "symmetric": False}
    }
    four = scenario(
        strategy={"ds_config": {"zero_optimization": {"stage": 3}, "weight_quantization": quantized}}
    )
    assert " --quant_bits 4 --kv-offload" in four.exports()["zero-inference.sh"]
    assert "zero-inference.sh" not in scenario(cache=None).exports()


LLAMA = {"name": "llama-2-7b", "attention": "eager", "dtype": "float16"}


@pytest.mark.parametrize(
    ("rope", "obstacle"),
    [
        ({}, ""),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ""),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ""),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, ""),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling of type yarn"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_scaling with rope_theta",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling of type llama3"),
    ],
)
def test_what_transformers_4_32_refuses_of_llama(rope: dict[str, Any], obstacle: str) -> None:
    code = load_model({**LLAMA, **rope}).traits.cpu_attention
    assert code is not None
    assert code.obstacle == obstacle


def test_it_is_proposed_only_for_what_it_loads() -> None:
    for model, proposed in (("llama-3-8b", True), ("llama-3.1-8b", False), ("llama-3.2-1b", False)):
        found = scenario(model=model, cache=None)
        others = Evaluator(found).changes("cache")
        assert any("attention on the CPU" in one.description for one in others) == proposed
