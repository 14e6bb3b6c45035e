"""vLLM's offloading of weights: what stays in host memory, and when it crosses the link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import yaml_text
from simoffload.models import Sequences, load_model
from simoffload.planning.confidence import confidence
from simoffload.scenario import LoadedScenario
from simoffload.strategies.base import memory_stages, target
from tests.strategies import scenarios

GIB = 1 << 30
LAYER = 2 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
"""[B] of a layer of Llama-2-7B."""


def scenario(
    *, model: str = "llama-2-7b", platform: str = "dgx-a100-80g", prompt: int = 32, **strategy: Any
) -> LoadedScenario:
    keys = {"model": model, "platform": platform, "batch_size": 1, "prompt_length": prompt}
    return scenarios.scenario(**keys, strategy={**scenarios.VLLM, **strategy})


def simulated(**strategy: Any) -> Any:
    return so.simulate(scenario(**strategy))


def copies(**strategy: Any) -> list[tuple[str, int]]:
    """Label and size of all that one decode step moves from host memory."""
    schedule = scenario(**strategy).plan().step([Sequences(1, 1, 33)]).schedule({})  # type: ignore[attr-defined]
    return [
        (op.label, op.size)
        for block in schedule.blocks
        for _ in range(block.repeat)
        for op in block.ops
        if op.kind == "copy"
    ]


def test_offloading_nothing_changes_nothing() -> None:
    """To the picosecond and to the byte."""
    one, other = (so.simulate(scenario(**keys)).to_dict() for keys in ({}, {"cpu_offload_gb": 0}))
    assert one["passes"] == other["passes"]
    assert [tier["needed_bytes"] for tier in one["capacity"]] == [
        tier["needed_bytes"] for tier in other["capacity"]
    ]


def test_the_verdict_names_host_memory_only_where_it_is_used() -> None:
    assert simulated(cpu_offload_gb=1).placement_words == "{} in GPU and host memory"
    assert simulated().placement_words == "{} in the GPU"


def test_without_graphs_kernels_are_the_same_but_launched_one_by_one() -> None:
    """vLLM merges and fuses with ``--enforce-eager`` too."""
    graphs, eager = (scenario(cpu_offload_gb=1, enforce_eager=flag).plan() for flag in (False, True))
    compiling = {"CUDA graphs", "activations"}  # compiling has the embedding as an input
    with_graphs, without = (
        [one for one in memory_stages(plan)[0].terms if one.name not in compiling] for plan in (graphs, eager)
    )
    assert with_graphs == without
    assert [one.name for one in graphs.modules] == [one.name for one in eager.modules]  # type: ignore[attr-defined]
    slower, faster = (simulated(enforce_eager=flag) for flag in (True, False))
    assert slower.tpot_s > faster.tpot_s
    hidden: Any = so.simulate(scenario(kind="transformers"))
    assert slower.tpot_s < hidden.tpot_s, "fewer kernels than transformers launches"


def test_the_budget_is_spent_in_order() -> None:
    """Two whole layers, and of the third as many tensors as begin within 1 GiB: the last may exceed it."""
    moved = copies(cpu_offload_gb=1)
    assert sum(size for _, size in moved[: len(moved) // 3]) <= LAYER
    total = sum(size for _, size in moved)
    assert GIB <= total < GIB + 2 * 4096 * 11008 * 2
    assert [label for label, _ in moved][:3] == [
        "input_layernorm",
        "self_attn.q_proj+k_proj+v_proj",
        "self_attn.o_proj",
    ]


def test_kernels_take_the_longer_of_their_time_and_the_transfer() -> None:
    """The step takes the transfers, one after the other, and what runs between them; not the sum of both."""
    found = simulated(cpu_offload_gb=100)
    step = found.to_dict()["passes"][-1]
    exposed = {one["cause"]: one["exposed_ps"] for one in step["time_by_cause"]}
    busy = simulated().tpot_s
    machine = scenario().machine
    path = machine.host_to_device(0, pinned=True)
    link = 32 * LAYER / (path.curve.points[-1][1] * machine.accelerator.reads.rate_share.value)
    assert exposed["weights read in host memory"] * 1e-12 > 0.95 * found.tpot_s
    assert link < found.tpot_s < link + busy
    assert found.bottleneck == "weights read in host memory"


def read(tokens: int, *, keys: dict[str, Any], sequences: int = 1) -> dict[str, int]:
    """Bytes that a pass of some tokens of each sequence reads in host memory, by module."""
    plan: Any = scenario(**keys).plan()
    schedule = plan.step([Sequences(sequences, tokens, max(tokens, 33))]).schedule({})
    found: dict[str, int] = {}
    for block in schedule.blocks:
        for op in block.ops:
            if op.kind == "copy":
                found[op.label] = found.get(op.label, 0) + op.size * block.repeat
    return found


H200: dict[str, Any] = {"model": "llama-3.1-8b", "platform": "dgx-h200", "cpu_offload_gb": 8}


@pytest.mark.parametrize(("tokens", "times"), [(1, 1), (256, 1), (257, 2), (512, 2), (2048, 8), (8192, 32)])
def test_products_read_weights_again_for_every_tile_of_tokens(tokens: int, times: int) -> None:
    """256 tokens on Hopper; the weight of a norm is read for every token."""
    once, found = read(1, keys=H200), read(tokens, keys=H200)
    for label, size in once.items():
        assert found[label] == size * (tokens if "layernorm" in label else times), label


def test_decode_steps_of_a_batch_read_products_once() -> None:
    once, found = read(1, keys=H200), read(1, keys=H200, sequences=16)
    assert found["mlp.down_proj"] == once["mlp.down_proj"]


def test_experts_are_read_again_for_every_tile_of_their_own_tokens() -> None:
    """2,048 tokens of Mixtral are 512 for each of eight experts, 4 tiles of at most 128."""
    mixtral: dict[str, Any] = {"model": "mixtral-8x7b", "platform": "dgx-h200", "cpu_offload_gb": 1000}
    experts = (
        2
        * next(
            one for one in load_model("mixtral-8x7b").layers[0] if one.name == "mlp.experts"
        ).num_parameters
    )
    assert read(2048, keys=mixtral)["mlp.experts"] == 32 * 4 * experts
    plan: Any = scenario(**mixtral | {"cpu_offload_gb": 30}, prompt=4096).plan()
    (prefill,) = (one.schedule({}) for one in plan.phases if one.kind == "prefill")
    assert plan.weight_moves == round(scenarios.bytes_of(prefill, "copy") / plan.pinned.size) == 8


def test_a_prefill_from_host_memory_as_on_an_h200() -> None:
    """vLLM 0.25.1, 8 GiB of Llama-3.1-8B: a decode step 171 ms, 2,048 tokens 1.424 s."""
    found = so.simulate(scenario(**H200, prompt=2048))
    assert isinstance(found, so.InferenceResult)
    assert found.tpot_s == pytest.approx(0.1707, rel=0.05)
    assert found.ttft_s == pytest.approx(1.424, rel=0.05)
    low, high = found.intervals()["ttft_s"]
    assert low < 1.424 < high
    (warning,) = found.warnings
    assert warning.startswith(
        "a prefill brings weights in host memory over the link 8 times, again for every 256"
    )
    assert found.prefill_weight_moves == 8
    copied = so.simulate(
        scenario(model="llama-3.1-8b", platform="dgx-h200", offload_group_size=2, prompt=2048)
    )
    assert isinstance(copied, so.InferenceResult)
    assert copied.prefill_weight_moves == 1
    assert copied.ttft_s is not None
    assert copied.ttft_s < 0.3


def test_only_routed_experts_are_read() -> None:
    """One token of Mixtral goes to two of eight."""
    layer = load_model("mixtral-8x7b").layers[0]
    experts = 2 * next(one for one in layer if one.name == "mlp.experts").num_parameters
    moved = copies(model="mixtral-8x7b", cpu_offload_gb=1000)
    assert [size for label, size in moved if label == "mlp.experts"] == [experts // 4] * 32


@pytest.mark.parametrize(
    ("group", "number", "step", "layers"), [(4, 1, 1, 8), (8, 2, 2, 8), (3, 1, 1, 10), (1, 1, 2, 32)]
)
def test_the_last_layers_of_groups_are_copied_once(group: int, number: int, step: int, layers: int) -> None:
    options = {"offload_group_size": group, "offload_num_in_group": number, "offload_prefetch_step": step}
    assert copies(**options) == [("layer", LAYER)] * layers
    terms = {
        one.name: one.size for one in memory_stages(scenario(**options).plan())[0].terms if one.tier == "hbm"
    }
    model = load_model("llama-2-7b")
    assert terms["weights"] == model.weight_bytes - layers * LAYER
    assert terms["prefetch slots"] == step * LAYER


def test_a_copy_begins_when_its_slot_is_released() -> None:
    """With one slot and every layer offloaded, copies and kernels alternate; with two they overlap.

    T_group = max(W / BW, (G - 1) t) + t for one slot.
    """
    one, two = (simulated(offload_group_size=1, offload_prefetch_step=step) for step in (1, 2))
    inside = simulated()
    assert one.tpot_s > two.tpot_s
    assert one.tpot_s - two.tpot_s == pytest.approx(inside.tpot_s, rel=0.15)
    long, short = (simulated(offload_group_size=size).tpot_s for size in (4, 8))
    assert long == pytest.approx(2 * short, rel=0.05), "half as many bytes, which take longest"


def test_host_memory_is_pinned_and_counted_for_every_gpu() -> None:
    whole, parts = (
        memory_stages(scenario(cpu_offload_gb=1, **sizes).plan())[0].terms
        for sizes in ({}, {"tensor_parallel_size": 2, "data_parallel_size": 2})
    )
    (one,), (four,) = (
        [term for term in terms if term[:2] == ("dram", "weights")] for terms in (whole, parts)
    )
    assert one.pinned
    assert four.pinned
    assert GIB <= one.size < 1.2 * GIB
    assert 4 * GIB <= four.size < 4.4 * GIB


def test_merged_layers_are_one_tensor_each() -> None:
    """Of Llama-2-70B: queries, keys and values 168 MB, gate and up 940 MB, o 134 MB (a power of two), down
    470 MB, two norms of 16 KiB (powers of two)."""
    terms = memory_stages(scenario(model="llama-2-70b", cpu_offload_gb=1000).plan())[0].terms
    (rounding,) = (one.size for one in terms if one.name == "rounding of pinned allocations")
    joined, gate_up, down = 8192 * (8192 + 2048) * 2, 2 * 8192 * 28672 * 2, 8192 * 28672 * 2
    each = (1 << 28) - joined + (1 << 30) - gate_up + (1 << 29) - down
    assert rounding == 80 * each


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpu_offload_gb": 1, "offload_group_size": 2}, "offload_group_size.*set one to 0"),
        ({"offload_group_size": 2, "offload_num_in_group": 3}, "offload_num_in_group.*3 is more than"),
        ({"offload_group_size": 16, "offload_prefetch_step": 3}, "offload_prefetch_step.*only 2 of the 32"),
        ({"offload_group_size": 40}, "offload_group_size.*only 0 of the 32 layers"),
        ({"cpu_offload_gb": -1}, "cpu_offload_gb"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(so.InputError, match=words):
        scenario(**options).plan()


def test_targets_are_where_it_can_be() -> None:
    found = scenario(cpu_offload_gb=2)
    assert target(found.on("dram").plan()) == "dram"
    assert target(found.on("hbm").plan()) == "hbm"
    assert target(found.on("hbm").on("dram").plan()) == "dram"
    with pytest.raises(so.InputError, match="only prefetched layers can be elsewhere"):
        found.on("raid")


def test_it_states_what_to_type() -> None:
    uva = scenario(cpu_offload_gb=2.5, tensor_parallel_size=2).exports()["vllm-serve.sh"]
    assert "--tensor-parallel-size 2" in uva
    assert "--cpu-offload-gb 2.5" in uva
    groups = scenario(offload_group_size=4).exports()["vllm-serve.sh"]
    assert "--offload-group-size 4 --offload-num-in-group 1" in groups.replace(" \\\n ", "")


def test_fit_offloads_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml_text(scenario(model="llama-2-70b").document.data))
    assert main(["fit", str(path)]) == 3
    assert "strategy.cpu_offload_gb=" in capsys.readouterr().out


def test_options_of_groups_without_groups_are_told() -> None:
    (warning,) = scenario(cpu_offload_gb=4, offload_num_in_group=3).plan().warnings
    assert "offload_num_in_group has no effect without offload_group_size" in warning
    assert not scenario(cpu_offload_gb=4).plan().warnings
    assert not scenario(offload_group_size=4, offload_num_in_group=2).plan().warnings


@pytest.mark.parametrize(
    ("strategy", "unlike", "group"),
    [
        ({"cpu_offload_gb": 8}, "", "vllm (others)"),
        ({}, "", "vllm"),
        ({"offload_group_size": 4}, "served prefetched layers", "vllm (others)"),
        ({"cpu_offload_gb": 8, "enforce_eager": True}, "launched fused kernels one by one", "vllm (others)"),
    ],
)
def test_weights_in_place_were_compared_and_prefetched_ones_were_not(
    strategy: dict[str, Any], unlike: str, group: str
) -> None:
    found = confidence(so.fit(scenario(model="llama-3.1-8b", platform="h200-1gpu-vm", **strategy)))
    assert (found.unlike, found.program) == (unlike, group)
