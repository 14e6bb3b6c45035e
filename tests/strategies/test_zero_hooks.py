"""Hooks of ZeRO-3 on a small model: what is fetched when, and passes in which every layer is written."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.documents import Document
from simoffload.hardware import load_platform
from simoffload.models import Module, Sequences, load_model
from simoffload.recent import Recent
from simoffload.scenario import resolve
from simoffload.schedule import Op, Schedule
from simoffload.strategies import Phase
from simoffload.strategies.cache.cache_updates import AttentionOnCpu, cpu_attention
from simoffload.strategies.cache.kv_cache import KvCache
from simoffload.strategies.passes.pass_writer import PassWriter, StagePass, parts_of
from simoffload.strategies.passes.timing import PassTimings
from simoffload.strategies.programs import zero_inference
from simoffload.strategies.programs.zero_inference import InferenceLayers, ZeroInferencePlan

LAYERS = 60
MODEL = {"family": "llama", "num_hidden_layers": LAYERS, "hidden_size": 1024, "num_attention_heads": 8}
MODEL |= {"num_key_value_heads": 2, "intermediate_size": 4096, "vocab_size": 32000, "dtype": "float16"}
MIXTURE = MODEL | {"family": "mixtral", "num_local_experts": 4, "expert_layout": "separate"}
WORK = {"kind": "inference", "batch_size": 2, "prompt_length": 64, "output_length": 3}
MILLION = 10**6


def small(*, model: dict[str, Any] = MODEL, **keys: Any) -> ZeroInferencePlan:
    """Return a plan with ``keys`` of the strategy, or of ``zero_optimization`` where they begin so."""
    zero = {key: keys.pop(key) for key in list(keys) if key.startswith(("stage3", "overlap", "zero_"))}
    offload = {"offload_param": {"buffer_count": 12, "buffer_size": 10**8}}
    zero = {"stage": 3, "stage3_max_live_parameters": 40 * MILLION, **offload} | zero
    strategy = {"kind": "deepspeed", "weights": "dram", "ds_config": {"zero_optimization": zero}} | keys
    tree = {"name": "s", "platform": "dgx-a100", "model": model, "workload": WORK, "strategy": strategy}
    plan = resolve(Document("", tree)).plan()
    assert isinstance(plan, ZeroInferencePlan)
    return plan


def operations(schedule: Schedule) -> list[Op]:
    return [op for block in schedule.blocks for op in block.ops * block.repeat]


def size(module: Module) -> int:
    return sum(size for one in module.parameters for _, size in one.stored_tensors(2))


def test_without_a_trace_each_module_is_fetched_before_its_kernels() -> None:
    plan = small()
    ops = operations(plan.schedule(plan.forward("first", 64, 64, first=True)))
    modules = [*plan.model.modules_before, *plan.model.layers[0] * LAYERS, *plan.model.modules_after]
    owned = [(one.name, size(one)) for one in modules if one.hooked and size(one)]
    assert [(op.label, op.size) for op in ops if op.kind == "copy"] == owned
    assert plan.schedule(plan.decode_step(1)).streams == ("host", "copy", "comm", "compute", "io")


@pytest.mark.parametrize(("bucket", "live"), [(0, 20), (5, 20), (20, 20), (200, 20), (5, 1000), (200, 1000)])
def test_no_more_is_fetched_ahead_than_the_settings_allow(bucket: int, live: int) -> None:
    keys: dict[str, Any] = {"stage3_prefetch_bucket_size": bucket * MILLION}
    keys |= {"stage3_max_live_parameters": live * MILLION, "stage3_param_persistence_threshold": 0}
    plan = small(**keys)
    owned = {one.name: size(one) for one in plan.modules if one.hooked}
    largest, copied, needed, most = 2 * plan.model.largest_parameter, 0, 0, 0
    for op in operations(plan.schedule(plan.decode_step(1))):
        if op.kind == "copy":
            copied += op.size
            assert op.size <= 2 * bucket * MILLION + largest
        if op.kind == "compute":
            most = max(most, copied - needed)
            needed += owned.get(op.label, 0)
            assert needed <= copied
    assert copied == needed == 2 * plan.model.num_parameters
    assert most <= (2 * live * MILLION if bucket else 0) + largest


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "gpus": {"weights": "hbm", "ranks": 4},
    "ranks": {"ranks": 2, "stage3_prefetch_bucket_size": 30 * MILLION},
    "no overlap": {"overlap_comm": False, "ranks": 2, "deepspeed_version": "0.8.3"},
    "storage": {"weights": "raid"},
    "storage and ranks": {"weights": "raid", "ranks": 2, "deepspeed_version": "0.9.1"},
    "persistent": {"stage3_param_persistence_threshold": 2 * MILLION},
    "reused": {"stage3_max_reuse_distance": 10**8},
    "packed": {"ranks": 2, "zero_quantized_weights": True},
    "experts": {"model": MIXTURE, "deepspeed_version": "0.17.6"},
    "leaf modules": {"model": MIXTURE, "deepspeed_version": "0.19.8"},
    "offloaded cache": {"kv_cache": {"tier": "dram"}},
    "static cache": {"kv_cache": {"tier": "dram", "implementation": "static"}},
    "cache streamed from host memory": {"kv_cache": {"tier": "dram", "implementation": "streamed"}},
    "blocks by layer": {"kv_cache": {"connector": {"tier": "raid", "prefix": 32, "layerwise": True}}},
    "quantized cache": {"kv_cache": {"format": "int4"}},
    "divided": {"tensor_parallel_size": 2, "ranks": 2},
    "streamed cache": {"kv_cache": {"tier": "raid", "implementation": "streamed"}, "weights": "raid"},
    "attention on the CPU": {"kv_cache": {"tier": "dram", "implementation": "cpu_attention"}},
    "blocks of a connector": {"kv_cache": {"connector": {"tier": "dram", "prefix": 32}}},
}


@pytest.mark.parametrize("keys", SETTINGS.values(), ids=SETTINGS)
def test_a_pass_is_that_in_which_every_layer_is_written(keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, short = [], small(**keys).layered.shortest()
    assert short is not None or keys.get("model") is MIXTURE
    for _ in range(2):
        plan = small(**keys)
        passes = [one.schedule({}) for one in plan.phases[:2] if isinstance(one, Phase)]
        passes.append(plan.schedule(plan.decode_step(2)))
        found.append([(operations(one), one._replace(blocks=())) for one in passes])
        monkeypatch.setattr(zero_inference, "_TEMPLATES", Recent())
        monkeypatch.setattr(InferenceLayers, "shortest", lambda *_, **__: None)
    assert found[0] == found[1]


def test_gpus_that_share_a_layer_attend_with_their_own_heads() -> None:
    whole, half = small(), small(tensor_parallel_size=2, ranks=2)
    attention = [one.name for one in whole.modules].index("self_attn.attention")
    assert half.modules[attention].name == "self_attn.attention"
    times = [one.durations(one.forward("decode", 1, 40_000))[attention] for one in (whole, half)]
    assert 1.6 < times[0] / times[1] < 2  # masks and sums are not divided


def test_attention_on_the_cpu_is_a_hook_of_any_program() -> None:
    model, batch = load_model(MODEL), (Sequences(2, 1, 65),)
    machine = load_platform("dgx-a100").machine(nodes=1)
    timings = PassTimings(machine=machine, model=model, modules=model.distinct_modules, zero3=False)
    work = cpu_attention(cache := KvCache(tier="dram", implementation="cpu_attention"), model, batch)
    out = PassWriter(name="pass", machine=machine, hooks=(AttentionOnCpu(cache, (model,)),))
    ops = operations(out.write([StagePass(parts_of(model), timings.timing(batch), batch)]))
    assert [op.size for op in ops if op.kind == "cpu"] == [work.attended.traffic] * LAYERS
    assert sum(op.size for op in ops if op.kind == "copy") == LAYERS * (sum(work.sent) + work.returned)
