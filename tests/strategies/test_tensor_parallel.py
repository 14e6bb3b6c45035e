"""Weights divided among GPUs: bytes, collectives, pipelines, and equality with a complete copy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import parse_yaml, yaml_text
from simoffload.engine import execute
from simoffload.models import (
    ModelShape,
    ModuleCost,
    Sequences,
    forward_cost,
    list_models,
    load_model,
    parameters_of,
)
from simoffload.planning.alternatives import OtherProgram
from simoffload.planning.evaluator import Evaluator
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies import strategies
from simoffload.strategies.base import memory_stages
from simoffload.strategies.divided import divide
from simoffload.strategies.memory import activation_bytes
from simoffload.strategies.passes.pass_writer import PassWriter
from simoffload.strategies.programs.transformers import SharedPlan

DENSE = [
    "llama-2-7b",
    "llama-2-70b",
    "opt-6.7b",
    "bloom-7b1",
    "qwen3-14b",
    "gemma-2-9b",
    "gemma-3-12b",
    "falcon-40b",
    "phi-3-mini",
    "gpt-neox-20b",
]
EXPERTS = [
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "deepseek-v2",
    "deepseek-v3",
    "kimi-k2",
    "gpt-oss-20b",
    "llama-4-scout",
    "llama-4-maverick",
    "glm-4.5-air",
    "phi-3.5-moe",
]


def scenario(
    model: Any = "llama-2-7b",
    *,
    batch: int = 4,
    platform: str = "dgx-a100-80g",
    nodes: int = 1,
    tokens: tuple[int, int] = (32, 4),
    **strategy: Any,
) -> LoadedScenario:
    text = {
        "name": "divided",
        "model": model,
        "platform": platform,
        "nodes": nodes,
        "workload": {"batch_size": batch, "prompt_length": tokens[0], "output_length": tokens[1]},
        "strategy": {"kind": "transformers", **strategy},
    }
    return resolve(parse_yaml(yaml_text(text), name="s.yaml"))


def simulated(model: str = "llama-2-7b", *, batch: int = 4, **strategy: Any) -> Any:
    return so.simulate(scenario(model, batch=batch, **strategy))


# -- the parts -----------------------------------------------------------------------------------


def tied(model: ModelShape) -> bool:
    return any(one.tied for module in model.modules_after for one in module.parameters)


def replicated(stage: ModelShape) -> int:
    """Parameters of norms, routers, positions, projections to and gates of one vector for all heads or
    experts, and biases that are added to a sum."""
    to_latent = ("q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate")

    def of(modules: tuple[Any, ...]) -> int:
        found = 0
        for module in modules:
            summed = ("out_proj", "o_proj", "fc2", "dense", "4h_to_h", "down_proj")
            every = module.kind in ("norm", "router") or "position" in module.name
            every = every or module.name.endswith(to_latent)
            for one in module.parameters:
                added = one.name.removesuffix("_bias").removesuffix(".bias")
                found += one.numel if every or (added != one.name and added.endswith(summed)) else 0
        return found

    return sum(count * of(modules) for modules, count in stage.outside_and_kinds())


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (4, 1), (1, 2), (4, 2)])
def test_the_parts_add_up_to_the_model(name: str, tensor: int, pipeline: int) -> None:
    """A tied head in a later stage is a copy of the embedding; each of these numbers is even."""
    model = load_model(name)
    if model.num_hidden_layers % pipeline:
        pipeline = 1
    for fused in (False, True):
        stages = divide(model, tensor=tensor, pipeline=pipeline, fused=fused).stages
        assert sum(one.num_hidden_layers for one in stages) == model.num_hidden_layers
        every = sum(map(replicated, stages))
        total = tensor * (sum(one.num_parameters for one in stages) - every) + every
        copied = model.vocab_size * model.hidden_size if tied(model) and pipeline > 1 else 0
        assert total == model.num_parameters + copied


PLANS = json.loads(Path(__file__).with_name("tp_plans.json").read_text(encoding="utf-8"))
"""``base_model_tp_plan`` of the configuration classes of transformers 5.23.0, by model_type."""
DIVIDED = {
    "colwise": {"column", "keys", "fused", "experts"},
    "packed_colwise": {"experts"},
    "packed_rowwise": {"experts"},  # of transposed matrices
    "moe_tp_experts": {"experts"},
    "rowwise": {"row", "experts"},
    "colwise_gather_output": {"column", "fused"},  # gathered to be split
    "rowwise_split_input": {"row"},
    "replicated_with_grad_allreduce": {"heads", "keys"},  # one weight for the norms of all heads
    "mla_kv_a_proj": {"whole"},
}


def test_families_are_divided_as_transformers_does() -> None:
    """Every module that its plans name, in a released shape of each family; other layers may lack it."""
    shapes = {shape.family: shape for shape in map(load_model, list_models())}
    compared = 0
    for family, plan in PLANS.items():
        found = {
            name.removesuffix(".weight"): module.parallel
            for module in shapes[family].distinct_modules
            for name in (module.name, *(one.name for one in module.parameters))
        }
        for name, style in plan.items():
            inside = name.rpartition("layers.*.")[2]
            if inside in found:
                compared += 1
                assert found[inside] in DIVIDED[style], (family, inside)
    assert compared > 100


def test_the_vocabulary_is_divided_in_equal_parts() -> None:
    """50,272 rows on 32 GPUs are 1,571 on each; those of the positions are on every GPU."""
    model = load_model("opt-6.7b")
    (part,) = divide(model, tensor=32, pipeline=1, fused=False).stages
    assert [one.num_parameters for one in part.modules_before if one.kind == "embedding"] == [
        1571 * 4096,
        2050 * 4096,
    ]
    assert part.modules_after[-1].out_features == 1571


@pytest.mark.parametrize(("tensor", "heads"), [(4, 2), (8, 1), (16, 1)])
def test_key_value_heads_are_kept_whole(tensor: int, heads: int) -> None:
    """Llama-2-70B has 8: on 16 GPUs each is kept twice, with its weights and its cache."""
    model = load_model("llama-2-70b")
    part = divide(model, tensor=tensor, pipeline=1, fused=False).stages[0]
    size = {one.name: one.out_features for one in part.layers[0]}
    assert (part.num_key_value_heads, size["self_attn.k_proj"]) == (heads, heads * 128)
    assert size["self_attn.q_proj"] == 8192 // tensor
    whole = model.kv_cache_bytes(batch=3, tokens=100)
    assert part.kv_cache_bytes(batch=3, tokens=100) == whole * heads // 8


def test_biases_of_experts_are_divided_but_those_of_a_sum() -> None:
    """gpt-oss on 8 GPUs: 2,880 is the width of the model and of an expert."""
    (part,) = divide(load_model("gpt-oss-120b"), tensor=8, pipeline=1, fused=False).stages
    (experts,) = (one for one in part.layers[0] if one.name == "mlp.experts")
    assert [(one.name.partition(".experts.")[2], one.numel) for one in experts.parameters] == [
        ("gate_up_proj", 128 * 2 * 360 * 2880),
        ("gate_up_proj_bias", 128 * 2 * 360),
        ("down_proj", 128 * 2880 * 360),
        ("down_proj_bias", 128 * 2880),
    ]
    (block,) = (one for one in part.layers[0] if one.name == "self_attn")
    assert [one.numel for one in block.parameters] == [8]


def test_norms_of_heads_are_those_of_the_own_heads() -> None:
    """Llama 4 has 40 query heads, Qwen3-30B 32, and 4 key-value heads, each of which two GPUs keep."""
    layer = divide(load_model("llama-4-scout"), tensor=8, pipeline=1, fused=False).stages[0].layers[0]
    assert [one.width for one in layer if one.name == "self_attn.qk_norm"] == [5 * 128, 128]
    layer = divide(load_model("qwen3-30b-a3b"), tensor=8, pipeline=1, fused=False).stages[0].layers[0]
    norms = {one.name: one for one in layer if one.kind == "norm"}
    assert (norms["self_attn.q_norm"].width, norms["self_attn.k_norm"].width) == (4 * 128, 128)
    assert norms["self_attn.q_norm"].num_parameters == 128


def test_heads_of_a_projection_that_are_repeated_later() -> None:
    """Falcon-40B computes 8 key-value heads and caches 128: 16 GPUs compute one each."""
    (part,) = divide(load_model("falcon-40b"), tensor=16, pipeline=1, fused=False).stages
    (projection,) = (one for one in part.layers[0] if one.name.endswith("query_key_value"))
    assert projection.out_features == 8192 // 16 + 2 * 64


def test_a_family_that_states_no_division_is_refused() -> None:
    model = load_model("llama-2-7b")
    plain = tuple(one._replace(parallel="whole") for one in model.layers[0])
    model = replace(model, groups=(model.groups[0]._replace(layers=(plain,)),))
    assert divide(model, tensor=1, pipeline=2, fused=False)
    with pytest.raises(so.InputError, match="family llama does not state how its modules are divided"):
        divide(model, tensor=2, pipeline=1, fused=False)


def test_experts_are_divided_by_their_width() -> None:
    model = load_model("mixtral-8x7b")
    (part,) = divide(model, tensor=4, pipeline=1, fused=False).stages
    one, other = (
        next(module for module in each.layers[0] if module.name == "mlp.experts") for each in (model, part)
    )
    assert other.num_parameters * 4 == one.num_parameters
    assert (other.in_features, other.out_features) == (8 * (4096 + 14336 // 4), 8 * (4096 + 2 * 14336 // 4))


def test_fused_kernels_are_fewer_and_have_the_same_weights() -> None:
    model = load_model("llama-2-7b")
    (part,) = divide(model, tensor=1, pipeline=1, fused=True).stages
    busy = [one.name for one in part.layers[0] if one.in_features or one.out_features]
    assert busy == [
        "input_layernorm",
        "self_attn.q_proj+k_proj+v_proj",
        "self_attn.attention",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj+up_proj",
        "mlp.act_fn",
        "mlp.down_proj",
    ]
    assert part.num_parameters == model.num_parameters


# -- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama-2-7b", "opt-6.7b", "mixtral-8x7b", "gemma-2-9b"])
@pytest.mark.parametrize("copies", [1, 4])
def test_one_part_is_the_whole_model(model: str, copies: int) -> None:
    """To the picosecond, and to the byte."""
    whole: Any = scenario(model, ranks=copies).plan()
    given: Any = (whole.model, whole.workload, whole.machine)
    part = SharedPlan(*given, degrees=whole.degrees, compiled=False, cache=whole.cache)
    for batch in ([Sequences(4, 32, 32)], [Sequences(4, 1, 35)]):
        one, other = (execute(plan.step(batch).schedule({})).makespan for plan in (whole, part))
        assert one == other
    assert [(one.name, one.size) for one in whole.held] == [(one.name, one.size) for one in part.held]


@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-3-12b", "gpt-oss-20b", "deepseek-v2-lite"])
@pytest.mark.parametrize("keys", [{}, {"tensor_parallel_size": 2}, {"kind": "vllm"}, {"kind": "gpt_fast"}])
def test_repeated_layers_are_those_that_all_layers_are(
    model: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the picosecond: a pass in which every layer is written."""
    plan: Any = scenario(model, **keys).plan()
    for batch in ([Sequences(2, 100, 100)], [Sequences(2, 1, 5000)]):
        short = execute(plan.step(batch).schedule({})).makespan
        with monkeypatch.context() as patch:
            patch.setattr(PassWriter, "verify", True)
            schedule = plan.step(batch).schedule({})
        ops = [(op, block.repeat) for block in schedule.blocks for op in block.ops if op.kind == "compute"]
        attend = sum(times for op, times in ops if op.label.endswith(".attention"))
        assert attend == plan.model.num_hidden_layers
        assert execute(schedule, steady_state=False).makespan == short


def test_every_layer_sums_twice_over_the_ring() -> None:
    """And once for the embedding; each GPU receives 2 (n - 1) / n of 4 x 4096 numbers of 2 B."""
    plan: Any = scenario(tensor_parallel_size=4).plan()
    step = plan.step([Sequences(4, 1, 40)]).schedule({})
    sums = [(op.size, block.repeat) for block in step.blocks for op in block.ops if op.kind == "all-reduce"]
    assert sum(times for _, times in sums) == 2 * 32 + 1
    assert {size for size, _ in sums} == {round(4 * 4096 * 2 * 2 * 3 / 4)}
    (gathered,) = (op for block in step.blocks for op in block.ops if op.kind == "gather")
    assert gathered.size == 4 * 32000 * 2 * 3 // 4


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-2-9b", "falcon-7b"])
def test_fused_kernels_keep_no_scores(model: str) -> None:
    """Transformers' eager attention would need three tensors of 2,048 x 2,048 scores for each head."""
    (part,) = divide(load_model(model), tensor=1, pipeline=1, fused=True).stages
    assert (part.attention, part.softcapped, part.traits.half_softmax) == ("sdpa", False, False)
    tokens: Any = {"batch": 8, "tokens": 2048}
    scores = 8 * part.num_attention_heads * 2048**2 * 8
    assert activation_bytes(part, **tokens, fused=True) < scores / 2
    assert activation_bytes(load_model(model), **tokens) > scores


@pytest.mark.parametrize(("name", "stages"), [("gemma-3-12b", 16), ("gpt-oss-20b", 3), ("llama-4-scout", 16)])
def test_stages_have_the_windows_of_their_layers(name: str, stages: int) -> None:
    """Cache and attention of the stages add up to those of the model, though no two may have as many."""
    model = load_model(name)
    parts = divide(model, tensor=1, pipeline=stages, fused=False).stages
    size: Any = {"batch": 2, "tokens": 20_000}
    assert sum(one.kv_cache_bytes(**size) for one in parts) == model.kv_cache_bytes(**size)
    costs = [forward_cost(one, batch=2, new_tokens=1, context=20_000) for one in (*parts, model)]
    assert sum(one.flops for one in costs[:-1]) == pytest.approx(costs[-1].flops, rel=1e-12)


def test_a_latent_cache_is_read_itself() -> None:
    """In a decode step each GPU reads 576 elements of each position, not keys and values of its heads."""
    plan: Any = scenario("deepseek-v3", batch=32, tensor_parallel_size=8, kind="vllm").plan()
    (stage,), (timings,) = plan.divided.stages, plan.stage_timings
    (attention,) = (one for one in stage.layers[-1] if one.kind == "attention")
    (expansion,) = (one for one in stage.layers[-1] if one.name == "self_attn.kv_b_proj")

    def cost(module: Any, new_tokens: int, context: int) -> ModuleCost:
        found: ModuleCost = timings.timing((Sequences(32, new_tokens, context),)).cost(module)
        return found

    more = cost(attention, 1, 4097).bytes - cost(attention, 1, 4096).bytes
    assert more == 32 * 576 * 2
    more = cost(attention, 1, 4097).flops - cost(attention, 1, 4096).flops
    assert more == 32 * 16 * (2 * (576 + 512) + 5)
    assert cost(expansion, 1, 4096) == cost(expansion, 1, 512)
    assert cost(expansion, 512, 512).flops == 2 * 32 * 512 * 512 * 16 * 256
    # In the prefill nothing is absorbed: products of heads of 192 and 128 elements.
    assert cost(attention, 512, 512).flops == 32 * 16 * 512 * 513 // 2 * (2 * 320 + 5)


def test_launches_cost_nothing_in_cuda_graphs() -> None:
    eager, compiled = (simulated(kind=kind) for kind in ("transformers", "vllm"))
    assert eager.bottleneck == "host thread"
    assert compiled.bottleneck == "GPU compute"
    assert compiled.tpot_s < eager.tpot_s / 1.7


def test_the_stages_of_a_decode_step_follow_each_other() -> None:
    """Two stages together take as long as one GPU, and send the hidden states once."""
    one, two = (simulated(pipeline_parallel_size=size, kind="vllm") for size in (1, 2))
    assert two.tpot_s == pytest.approx(one.tpot_s, rel=0.01)
    assert two.tpot_s > one.tpot_s
    causes = {one["cause"]: one["exposed_ps"] for one in two.to_dict()["passes"][-1]["time_by_cause"]}
    assert causes["stage to stage"] > 20e6, "20 us of latency"


def test_a_prefill_goes_through_the_stages_in_micro_batches() -> None:
    """Four of equal duration t take (4 + 4 - 1) t / 4 of the time of one GPU, and a little for sending."""
    at_once: dict[str, Any] = {"kind": "vllm", "max_num_batched_tokens": 16_384}
    plan: Any = scenario(batch=8, pipeline_parallel_size=4, **at_once).plan()
    batches = plan.micro_batches(plan.forward("prefill", 2048, 2048))
    assert batches == [(Sequences(2, 2048, 2048),)] * 4
    assert plan.micro_batches(plan.forward("decode 1", 1, 33)) == [(Sequences(8, 1, 33),)]
    long = plan.step([Sequences(8, 2048, 2048)])
    alone: Any = scenario(batch=8, kind="vllm").plan()
    ratio = (
        execute(long.schedule({})).makespan
        / execute(alone.step([Sequences(8, 2048, 2048)]).schedule({})).makespan
    )
    assert ratio == pytest.approx(7 / 16, rel=0.1)


def test_replicas_have_their_own_batches_and_rings() -> None:
    """Two replicas of two GPUs do twice the work in the same time."""
    one, two = (simulated(tensor_parallel_size=2, ranks=2 * size) for size in (1, 2))
    assert (two.ranks, two.gpus, two.replicas) == (4, 4, 2)
    assert two.tpot_s == one.tpot_s
    assert two.decode_tokens_per_s == 2 * one.decode_tokens_per_s


def test_parts_need_less_memory() -> None:
    needed = [
        {
            one["name"]: one["bytes"]
            for one in so.fit(scenario("llama-2-70b", **sizes)).to_dict()["capacity"][0]["terms"]
        }
        for sizes in ({}, {"tensor_parallel_size": 8}, {"pipeline_parallel_size": 4})
    ]
    whole, eighth, stage = needed
    model = load_model("llama-2-70b")
    norms = (2 * 80 + 1) * 8192 * 2
    assert whole["weights"] == model.weight_bytes
    assert eighth["weights"] == (model.weight_bytes - norms) // 8 + norms
    assert stage["weights"] == parameters_of(model.layers[0]) * 20 * 2 + 32000 * 8192 * 2 + 8192 * 2
    assert eighth["key-value cache"] * 8 == stage["key-value cache"] * 4 == whole["key-value cache"]


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"tensor_parallel_size": 3}, "tensor_parallel_size.*3 GPUs cannot divide 32 attention heads"),
        ({"pipeline_parallel_size": 5}, "pipeline_parallel_size.*5 stages cannot divide 32 layers.*1, 2, 4"),
        ({"tensor_parallel_size": 16}, "ranks.*16 ranks, but the platform has 8 GPUs"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        (
            {"tensor_parallel_size": 2, "ranks": 3},
            "3 ranks make no whole copies of 2 GPUs each; leave ranks out",
        ),
        ({"kind": "vllm", "tensor_parallel_size": 2, "ranks": 3}, "which is 2, not 3; leave ranks out"),
    ],
)
def test_degrees_that_do_not_divide_are_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(so.InputError, match=words):
        scenario(**sizes).plan()


def test_another_tier_is_refused() -> None:
    with pytest.raises(so.InputError, match="stay in the GPUs; what can be elsewhere: cache=TIER"):
        scenario(tensor_parallel_size=2).on("dram")


def test_replicated_key_value_heads_are_reported() -> None:
    found = scenario("llama-2-70b", nodes=2, tensor_parallel_size=16).plan()
    assert found.warnings == ("each of 8 key-value heads is kept by 2 GPUs, as there are 16",)


# -- commands ------------------------------------------------------------------------------------


def test_it_states_what_to_type() -> None:
    command = scenario(tensor_parallel_size=2, pipeline_parallel_size=2, kind="vllm").exports()
    text = command["vllm-serve.sh"]
    assert "vllm serve llama-2-7b" in text
    assert "--tensor-parallel-size 2 \\\n  --pipeline-parallel-size 2" in text
    assert "--enforce-eager" not in text
    assert "--gpu-memory-utilization" not in text
    eager = scenario(tensor_parallel_size=2).exports()["tensor_parallel.py"]
    assert 'distributed_config=DistributedConfig(tp_plan="auto")' in eager
    compile(eager, "tensor_parallel.py", "exec")


@pytest.mark.parametrize("model", ["opt-6.7b", "bloom-7b1", "falcon-40b", "gpt-oss-20b"])
def test_what_transformers_does_not_divide_is_a_what_if(model: str) -> None:
    """Its configuration has no base_model_tp_plan; one GPU needs none."""
    divided = scenario(model, tensor_parallel_size=2)
    assert "transformers does not divide layers" in divided.plan().facts.hypothetical
    assert divided.exports() == {}
    assert scenario(model).plan().facts.hypothetical == ""


def test_transformers_would_write_files_of_gguf_in_full() -> None:
    for name, files in (("q4_k_m", []), ("int4-g128", ["tensor_parallel.py"])):
        model: Any = {"name": "llama-2-7b", "quantization": name}
        assert list(scenario(model, tensor_parallel_size=2).exports()) == files


def test_vllm_fills_as_much_as_is_needed() -> None:
    """More than 92 % of the memory, its default, must be asked for."""
    fills: dict[str, Any] = {"tensor_parallel_size": 2, "kind": "vllm"}
    full = scenario("llama-2-70b", batch=1160, **fills)
    assert not so.fit(full).fits
    more = scenario("llama-2-70b", batch=1160, **fills, gpu_memory_utilization=0.97)
    assert so.fit(more).fits
    assert "--gpu-memory-utilization 0.97" in more.exports()["vllm-serve.sh"]


def test_fit_divides_among_more_gpus(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml_text(scenario("llama-2-70b", kind="vllm").document.data))
    assert main(["fit", str(path)]) == 3
    assert "strategy.tensor_parallel_size=2" in capsys.readouterr().out


# -- the baseline of a comparison ----------------------------------------------------------------


def offloaded(platform: str = "dgx-a100-80g", model: str = "llama-2-7b", **keys: Any) -> LoadedScenario:
    config = {"zero_optimization": {"offload_param": {"buffer_size": 600_000_000}}}
    zero = {"kind": "deepspeed", "weights": "dram", "ds_config": config}
    return scenario(model, platform=platform, **{"batch": 2, "tokens": (16, 3), **zero, **keys})


def test_compare_adds_the_same_sequences_served_from_hbm() -> None:
    """Of eight replicas in one batch, last; the requested rows are those without it."""
    scenario = offloaded(ranks=8)
    found = so.compare(scenario, ["dram", "raid"])
    alone = so.compare_scenarios(so.on_targets(scenario, ["dram", "raid"]))
    assert list(found.results) == ["dram", "raid", "vllm"]
    for label, result in alone.results.items():
        assert found.results[label].result.to_dict() == result.result.to_dict()
        assert found.ratio(label) == alone.ratio(label)
    added: Any = found.results["vllm"]
    assert (added.gpus, added.replicas, added.batch_size) == (8, 1, 16)
    assert "8 GPUs hold the weights together" in added.warnings[0]
    assert found.ranking[0] == "vllm"


def test_as_many_gpus_as_needed_hold_the_weights() -> None:
    """70 billion parameters need two of 80 GB; one label for each platform."""
    found = so.compare(offloaded(model="llama-2-70b"), ["dram", "dgx-h100:dram", "dgx-h100:raid"])
    added = {label: result.gpus for label, result in found.results.items() if "vllm" in label}
    assert added == {"vllm": 2, "dgx-h100:vllm": 2}


def test_one_gpu_is_a_baseline() -> None:
    found = so.compare(offloaded(platform="h100-2nvme"), ["dram"])
    assert list(found.results) == ["dram", "vllm"]
    assert "one GPU holds the weights" in found.results["vllm"].warnings[0]


@pytest.mark.parametrize(
    ("scenario", "degrees"),
    [
        (offloaded("l40s-server", "llama-3.1-70b", ranks=3), (4, 1)),
        (offloaded("dgx-h100", "deepseek-v3", nodes=2, ranks=16), (16, 1)),
        (offloaded("dgx-h100", "kimi-k2", nodes=4, ranks=32), (16, 1)),
        (offloaded("dgx-h100", "bloom-176b", nodes=2, ranks=16), (8, 2)),
        (offloaded("dgx-a100-80g", "opt-30b", ranks=6), (2, 3)),
    ],
    ids=[
        "a number that divides the heads",
        "61 layers",
        "32 parts would cut blocks of FP8",
        "stages",
        "stages on a host",
    ],
)
def test_a_division_that_works_is_found(scenario: LoadedScenario, degrees: tuple[int, int]) -> None:
    """Two stages need a number of layers that is even, six parts one of heads that six divides."""
    edits = OtherProgram("vllm", scenario.scenario.strategy.gpus, "").baseline(Evaluator(scenario))
    section = edits[0].value
    assert (section["tensor_parallel_size"], section["pipeline_parallel_size"]) == degrees
    assert so.simulate(scenario.edited(*edits)).fits


def test_a_baseline_leaves_the_memory_that_vllm_leaves() -> None:
    """1,900 sequences would fill 95 % of two GPUs; vLLM uses 92 %."""
    work = offloaded(model="llama-2-70b", batch=1900)
    found = so.compare(work, ["dram"])
    assert found.results["vllm"].gpus == 4


@pytest.mark.parametrize(
    ("scenario", "targets"),
    [(offloaded(), ["hbm"]), (offloaded(model="bloom-176b", platform="dgx-a100", ranks=8), ["dram"])],
    ids=["nothing is offloaded", "too large"],
)
def test_without_need_or_room_nothing_is_added(scenario: LoadedScenario, targets: list[str]) -> None:
    assert list(so.compare(scenario, targets).results) == targets


def test_scenarios_that_are_compared_as_they_are_get_no_baseline() -> None:
    assert list(so.compare_scenarios({"one": offloaded()}).results) == ["one"]


SERVED: dict[str, dict[str, Any]] = {
    "compiled": {"kind": "vllm"},
    "eager": {"kind": "vllm", "enforce_eager": True},
    "stages": {"kind": "vllm", "pipeline_parallel_size": 2},
}


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (2, 4), (4, 2)])
@pytest.mark.parametrize("way", SERVED)
def test_vllm_caches_the_heads_that_falcon_projects(way: str, tensor: int, heads: int) -> None:
    """Eight of 128; transformers repeats them for every query."""
    found = scenario("falcon-40b", tensor_parallel_size=tensor, **SERVED[way]).plan()
    (stage,) = memory_stages(found)
    (cache,) = (one.size for one in stage.terms if one.name == "key-value cache")
    tokens, layers = 48, 60 if way != "stages" else 30
    assert cache == 4 * tokens * layers * 2 * heads * 64 * 2


def test_each_gpu_has_a_head_of_those_that_falcon_projects() -> None:
    (part,) = divide(load_model("falcon-40b").as_served(), tensor=16, pipeline=1, fused=True).stages
    assert part.kv_cache_bytes(batch=1, tokens=1) == 60 * 2 * 64 * 2


def test_a_step_of_falcon_in_vllm_reads_the_heads_that_are_projected() -> None:
    """As long as that of a model of grouped queries of the same size."""
    keys: dict[str, Any] = {"tensor_parallel_size": 8, "kind": "vllm"}
    grouped, all_heads = (
        scenario(model, batch=64, **keys).plan()  # type: ignore[var-annotated]
        for model in ("falcon-40b", {"name": "falcon-40b", "num_kv_heads": 128})
    )
    times = [
        sum(
            time
            for time, module in zip(one.durations(one.forward("decode", 1, 2000)), one.modules, strict=True)
            if module.kind == "attention"
        )
        for one in (grouped, all_heads)
    ]
    assert times[0] < times[1] / 7


def test_gpus_that_divide_the_heads_that_falcon_projects() -> None:
    with pytest.raises(
        so.InputError, match="128 attention heads and 8 key-value heads equally; use 1, 2, 4, 8, 16"
    ):
        scenario("falcon-40b", tensor_parallel_size=3, kind="vllm").plan()


# -- programs ------------------------------------------------------------------------------------


def test_every_program_has_the_name_that_people_use() -> None:
    """Checkpoints alone are no program, and neither is the choice of one."""
    named = {one.model_fields["kind"].default: one.traits.title for one in strategies()}
    assert {kind: title for kind, title in named.items() if kind not in ("best", "checkpoint")} == {
        "deepspeed": "DeepSpeed ZeRO",
        "fsdp": "FSDP",
        "accelerate": "Accelerate",
        "transformers": "transformers",
        "vllm": "vLLM",
        "gpt_fast": "gpt-fast",
        "llama_cpp": "llama.cpp",
        "flexgen": "FlexGen",
    }


def test_nothing_of_gpt_fast_says_vllm() -> None:
    """It takes as long as vLLM's kernels, and serves no streams."""
    found = scenario(kind="gpt_fast", tensor_parallel_size=8)
    plan: Any = found.plan()
    texts = (*(one.name + one.remedy for one in plan.held), *plan.warnings, *found.exports())
    result: Any = so.simulate(found)
    assert not any("vllm" in text.lower() for text in (*texts, result.placement_name, *result.advice))
    assert result.tpot_s == simulated(kind="vllm", tensor_parallel_size=8).tpot_s
    assert (plan.serving_limits, plan.facts.cache_blocks, result.evidence) == (None, None, "")
    with pytest.raises(so.InputError, match=r"connector: gpt-fast has no connector"):
        scenario(kind="gpt_fast", kv_cache={"connector": {"tier": "dram", "prefix": 16}}).plan()
