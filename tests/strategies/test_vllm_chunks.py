"""Prefills that vLLM computes in chunks, and what its engine leaves of a GPU's memory for the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import yaml_text
from simoffload.models import Sequences
from simoffload.planning.sizing import largest
from simoffload.report.sections.capacity import capacity
from simoffload.scenario import LoadedScenario
from simoffload.strategies.programs.vllm_engine import VllmEngine, block_bytes, graph_sizes
from tests.strategies import scenarios

GIB = 1 << 30


def scenario(
    *,
    model: Any = "llama-3.1-8b",
    platform: str = "dgx-h200",
    batch: int = 1,
    prompt: int = 2048,
    output: int = 2,
    **strategy: Any,
) -> LoadedScenario:
    shape = {"name": model, "dtype": "bfloat16"} if isinstance(model, str) else model
    work = {"batch_size": batch, "prompt_length": prompt, "output_length": output}
    return scenarios.scenario(
        model=shape, platform=platform, **work, strategy={**scenarios.COMPILED, **strategy}
    )


def simulated(**keys: Any) -> Any:
    return so.simulate(scenario(**keys))


def fitted(**keys: Any) -> Any:
    return so.fit(scenario(**keys))


LONG: dict[str, Any] = {
    "model": {"name": "llama-3.1-70b", "dtype": "bfloat16", "quantization": "fp8"},
    "platform": "dgx-h100",
    "prompt": 131_000,
    "output": 72,
    "tensor_parallel_size": 2,
}


@pytest.mark.parametrize(("stored", "batch"), [(None, 1), ("fp8", 3)])
def test_activations_are_those_of_a_chunk(stored: str | None, batch: int) -> None:
    """On two H100 one sequence of 128k tokens fits with a cache in 16 bit, three with one in 8 bit: all
    activations of a prompt at once, 14.6 GiB, would leave room for one in either."""
    cache = {"kv_cache": {"format": stored}} if stored else {}
    for size, fits in ((batch, True), (batch + 1, False)):
        assert fitted(**LONG, batch=size, **cache).fits == fits
    (tier, *_) = fitted(**LONG).capacity
    (activations,) = (term.size for term in tier.terms if term.name == "activations")
    assert activations < 1.25 * GIB  # half of the embedding, an input of the compiler


def test_weights_outside_hbm_come_with_every_chunk() -> None:
    """128k tokens in 16 chunks of 8,192: the bytes of 16 decode steps."""
    long = {
        "kind": "vllm",
        "offload_group_size": 4,
        "prompt": 131_000,
        "max_num_batched_tokens": 8192,
    }
    found = simulated(**long)
    assert (found.prefill_chunks, found.prefill_weight_moves) == (16, 16)
    sizes = [
        next(one.size for one in each.shares if one.cause_text == "host to GPU")
        for each in (found.prefill, found.decode[0])
    ]
    assert sizes[0] == 16 * sizes[1]
    assert any("over the link 16 times, once for each of 16 chunks" in one for one in found.warnings)
    once = simulated(**{**long, "max_num_batched_tokens": 131_072})
    assert once.prefill_chunks == 1
    assert not once.warnings


def test_attention_sees_earlier_chunks() -> None:
    """In two chunks the products are the same, and attention has the same pairs of tokens."""
    whole, halves = (simulated(prompt=8192, max_num_batched_tokens=size) for size in (8192, 4096))
    assert (whole.prefill_chunks, halves.prefill_chunks) == (1, 2)
    assert halves.ttft_s == pytest.approx(whole.ttft_s, rel=0.1)
    second = scenario(prompt=8192).plan().step([Sequences(1, 4096, 8192)]).schedule({})  # type: ignore[attr-defined]
    first = scenario(prompt=8192).plan().step([Sequences(1, 4096, 4096)]).schedule({})  # type: ignore[attr-defined]
    assert _compute(second) > _compute(first)
    prefill = next(one for one in scenario(prompt=8192, max_num_batched_tokens=4096).plan().phases)
    assert _compute(prefill.schedule({})) == _compute(first) + _compute(second)  # type: ignore[union-attr]


def _compute(schedule: Any) -> int:
    return sum(
        op.fixed * block.repeat for block in schedule.blocks for op in block.ops if op.kind == "compute"
    )


def test_prompts_are_packed_as_by_vllm() -> None:
    """A chunk begins with the rest of the prompt that the one before could not complete."""
    chunks = VllmEngine(1000).chunks([Sequences(5, 400, 400)])
    assert chunks == [
        (Sequences(2, 400, 400), Sequences(1, 200, 200)),
        (Sequences(1, 200, 400), Sequences(2, 400, 400)),
    ]
    assert VllmEngine(1000).chunks([Sequences(1, 2500, 3000)]) == [
        (Sequences(1, 1000, 1500),),
        (Sequences(1, 1000, 2500),),
        (Sequences(1, 500, 3000),),
    ]
    mixed = [Sequences(3, 1, 50), Sequences(1, 1000, 1000)]
    assert VllmEngine(1000).chunks(mixed) == [
        (Sequences(3, 1, 50), Sequences(1, 997, 997)),
        (Sequences(1, 3, 1000),),
    ]
    assert VllmEngine(1000).chunks([Sequences(1000, 1, 50)]) == [(Sequences(1000, 1, 50),)]


@pytest.mark.parametrize(
    "more", [{}, {"kind": "vllm", "offload_group_size": 4}, {"pipeline_parallel_size": 2}]
)
def test_equal_chunks_are_written_once(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the picosecond as if each was written, and the last, smaller one is right as well."""
    keys = {"batch": 19, "prompt": 2048, "max_num_batched_tokens": 4096} | more
    short = simulated(**keys)
    assert short.prefill_chunks == 10
    plan: Any = scenario(**keys).plan()
    batches = plan.micro_batches

    def all_differ(_plan: Any, one: Any) -> Any:
        nothing = Sequences(0, 1, 1)
        return [batch if at % 2 else (*batch, nothing) for at, batch in enumerate(batches(one))]

    monkeypatch.setattr(type(plan), "micro_batches", all_differ)
    long = simulated(**keys)
    assert long.prefill.time_ps == short.prefill.time_ps


@pytest.mark.parametrize(
    ("platform", "tokens"),
    [
        ("mi300x-8gpu", 16_384),
        ("dgx-h200", 8192),
        ("dgx-h100", 8192),
        ("dgx-a100-80g", 2048),
        ("rtx-4090-desktop", 2048),
        ("dgx-spark", 2048),
    ],
)
def test_tokens_at_once_depend_on_the_card(platform: str, tokens: int) -> None:
    plan: Any = scenario(platform=platform, model="llama-3.2-1b").plan()
    assert plan.engine.tokens == tokens


@pytest.mark.parametrize(
    ("platform", "sequences", "tokens", "blocks", "error"),
    [("dgx-h200", 1024, 8192, 56_057, 0.002), ("rtx-4090-desktop", 256, 2048, 2588, 0.002)],
)
def test_blocks_of_real_runs(platform: str, sequences: int, tokens: int, blocks: int, error: float) -> None:
    """vLLM 0.25.1 on an H200, and 0.19, which does not count CUDA graphs, on an RTX 4090."""
    found = fitted(
        platform=platform,
        batch=sequences,
        prompt=100,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=0.9,
    ).cache_blocks
    assert found.number == pytest.approx(blocks, rel=error)
    assert found.tokens == 16 * found.number


def test_blocks_of_a_model_with_sliding_layers() -> None:
    """vLLM 0.25.1 on an H200: gpt-oss-20b has two groups of 12 layers, so that a block has half the bytes of
    one in all layers, and sequences of 2,050 tokens hold 129 and 9 of them."""
    found = fitted(model="gpt-oss-20b", platform="h200-1gpu-vm", batch=1024, prompt=8).cache_blocks
    assert found.number == pytest.approx(305_856, rel=0.03)
    long = fitted(model="gpt-oss-20b", platform="h200-1gpu-vm").cache_blocks
    assert long.tokens == long.number * 129 * 16 // (129 + 9)


@pytest.mark.parametrize(
    ("model", "groups", "layers"),
    [
        ("llama-3.1-8b", (1, 0), 32),
        ("gpt-oss-20b", (1, 1), 12),
        ("gemma-3-27b", (1, 6), 10),  # 10 and 52 layers; the last group has two places that are empty
        ("mistral-7b-v0.1", (0, 1), 32),
        ({"name": "gpt-oss-20b", "num_hidden_layers": 25}, (1, 1), 13),  # 12 and 13 layers
    ],
)
def test_groups_of_layers(model: Any, groups: tuple[int, int], layers: int) -> None:
    plan: Any = scenario(model=model).plan()
    assert plan.engine.groups[:2] == groups
    token = plan.model.token_bytes([plan.model.attends])
    assert block_bytes(plan.model, plan.engine.groups, element=2) == 16 * layers * token


@pytest.mark.parametrize("model", ["gemma-3-27b", "gpt-oss-20b", "llama-3.1-8b"])
def test_the_largest_batch_is_the_one_whose_blocks_there_are(model: str) -> None:
    keys: dict[str, Any] = {"model": {"name": model}, "platform": "h100-1gpu-vm", "prompt": 1024}
    keys["output"] = 32
    most = largest(scenario(**keys)).batch.most
    assert most
    at_most, beyond = (fitted(**keys, batch=one) for one in (most, most + 1))
    assert (at_most.fits, beyond.fits) == (True, False)
    assert fitted(**keys, batch=most, kv_blocks=at_most.cache_blocks.number).fits
    with pytest.raises(so.InputError, match="blocks of 16 tokens are fewer than the"):
        fitted(**keys, batch=most + 1, kv_blocks=beyond.cache_blocks.number)


def test_what_sequences_hold_is_counted_in_blocks_of_groups() -> None:
    """Of gemma-3-27b 36 sequences hold 66 blocks in the group with full attention, and 65 in each of 6 groups
    whose window of 1,024 tokens touches 65, each of 10 layers."""
    keys: dict[str, Any] = {"model": "gemma-3-27b", "prompt": 1024, "output": 32, "batch": 36}
    (tier, *_) = fitted(**keys).capacity
    size = next(term.size for term in tier.terms if term.name == "key-value cache")
    assert size == 36 * (66 + 6 * 65) * 16 * 10 * 2 * 16 * 128 * 2


def test_graphs_of_more_tokens_than_a_step_are_told() -> None:
    text = "max_cudagraph_capture_size 8,193 is more than the 8,192 tokens of a step"
    for size, told in ((8192, False), (8193, True)):
        plan = scenario(max_cudagraph_capture_size=size, platform="dgx-h100").plan()
        assert any(one.startswith(text) for one in plan.warnings) == told


def test_blocks_of_a_cache_outside_hbm_are_refused() -> None:
    streamed = {"tier": "dram", "implementation": "streamed"}
    with pytest.raises(so.InputError, match=r"kv_blocks: are of a cache in HBM, and kv_cache\.tier is dram"):
        scenario(kv_blocks=10_000, kv_cache=streamed).plan()


def test_a_connector_without_groups_has_blocks_in_all_layers() -> None:
    """LMCache does not know groups of layers, vLLM's own connector does."""
    own, other = (
        scenario(model="gpt-oss-20b", kv_cache={"connector": {"tier": "dram", **keys}}).plan()
        for keys in ({}, {"block_tokens": 256})
    )
    assert [one.engine.groups.number for one in (own, other)] == [2, 1]  # type: ignore[attr-defined]


def test_fit_prints_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml_text(scenario(kv_blocks=10_000).document.data))
    assert main(["fit", str(path)]) == 0
    assert "10,000 blocks of 16 tokens, 160,000 tokens" in " ".join(capsys.readouterr().out.split())
    path.write_text(yaml_text(scenario().document.data))
    assert main(["fit", str(path)]) == 0
    assert "room for the key-value cache of each GPU at 0.92 of its memory" in " ".join(
        capsys.readouterr().out.split()
    )


def test_stated_blocks_are_memory() -> None:
    """2 MiB each for Llama-3.1-8B; those that do not fit are refused by their size, too few by the work."""
    (tier, *_) = fitted(kv_blocks=10_000).capacity
    assert next(term.size for term in tier.terms if term.name == "key-value cache") == 10_000 * 2 << 20
    assert not fitted(kv_blocks=100_000).fits
    with pytest.raises(so.InputError, match=r"kv_blocks.*128 blocks of 16 tokens are fewer than the 129"):
        fitted(kv_blocks=128)


def test_the_command_states_other_limits_than_the_defaults() -> None:
    plain = scenario().exports()["vllm-serve.sh"]
    assert not any(word in plain for word in ("batched-tokens", "utilization", "blocks"))
    text = scenario(max_num_batched_tokens=4096, kv_blocks=5000, gpu_memory_utilization=0.85).exports()
    for option in (
        "--max-num-batched-tokens 4096",
        "--num-gpu-blocks-override 5000",
        "--gpu-memory-utilization 0.85",
    ):
        assert option in text["vllm-serve.sh"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"batch": 4096, "max_num_batched_tokens": 2048}, "2,048 is fewer than the 4,096"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
    ],
)
def test_limits_that_vllm_refuses(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(so.InputError, match=words):
        scenario(**keys).plan()


def test_vllm_fills_only_a_part_of_the_memory() -> None:
    """What fits only into all of it is refused by vLLM as it is; more of it is one of the remedies."""
    keys: dict[str, Any] = {"prompt": 1000, "output": 24, "batch": 1}
    room = fitted(**keys).cache_blocks
    keys["batch"] = room.number // 64 + 20
    assert not fitted(**keys).fits
    assert fitted(**keys, gpu_memory_utilization=0.98).fits
    found = so.fit(scenario(**keys)).remedies
    assert ("strategy.gpu_memory_utilization=0.95",) in [one.assignments for one in found.changes]


def test_the_room_for_the_cache_is_that_of_a_replica() -> None:
    """Each of two replicas has the blocks of its own GPUs."""
    for replicas, ends in (
        (1, "{0:,} tokens in all sequences"),
        (2, "of one replica, {1:,} in those of all 2"),
    ):
        found = fitted(data_parallel_size=replicas)
        room = found.cache_blocks
        (said,) = capacity(found).sentences
        assert said.endswith(ends.format(room.tokens, 2 * room.tokens))


def test_graph_sizes() -> None:
    """51 of them for 256 sequences and more."""
    assert graph_sizes(2) == (1, 2)
    assert graph_sizes(32) == (1, 2, 4, 8, 16, 24, 32)
    assert graph_sizes(300)[-2:] == (272, 288)
    assert (len(graph_sizes(512)), len(graph_sizes(1024))) == (51, 83)


def parts(**keys: Any) -> dict[str, int]:
    (tier, *_) = fitted(**keys).capacity
    return {term.name: term.size for term in tier.terms}


def test_the_peak_is_that_of_sampling_or_of_compiling() -> None:
    """Llama 3.1 8B in 16 bits: two states of 8,192 tokens, and the embedding or logits of 1,024 sequences."""
    states, table = 2 * 8192 * 4096 * 2, 128_256 * 4096 * 2
    many: dict[str, Any] = {"platform": "h200-1gpu-vm", "batch": 1024, "prompt": 8}
    assert parts(**many)["activations"] == states + table
    host = {"kind": "vllm", "cpu_offload_gb": 1}  # model runner V1
    assert parts(**many, **host)["activations"] == states + (1024 * 14 + 132 * 4) * 128_256
    assert parts(**many | host | {"batch": 1})["activations"] == states + table
    assert parts(**many | {"platform": "dgx-h200"}, tensor_parallel_size=2)["activations"] < states + table


def test_graphs_that_do_not_fit_beside_the_share_are_said() -> None:
    small: dict[str, Any] = {"platform": "rtx-3070-ti-desktop", "model": {"name": "qwen3-1.7b"}, "batch": 16}
    assert "graphs" not in str(fitted(**small).warnings)
    assert fitted(**small).cache_blocks.utilization == 0.74
    assert "--gpu-memory-utilization 0.74" in scenario(**small).exports()["vllm-serve.sh"]
    (warning,) = [one for one in fitted(**small, gpu_memory_utilization=0.8).warnings if "CUDA graphs" in one]
    assert "set it to 0.74" in warning
    assert fitted(**small, max_cudagraph_capture_size=2).cache_blocks.utilization == 0.86


def test_the_command_states_graphs_of_which_vllm_would_capture_fewer() -> None:
    def command(**keys: Any) -> str:
        return str(scenario(**keys).exports()["vllm-serve.sh"])

    assert "--max-cudagraph-capture-size 512" in command(batch=8)
    assert "capture-size" not in command(batch=256)
    assert "--max-cudagraph-capture-size 64" in command(batch=8, max_cudagraph_capture_size=64)
    assert "capture-size" not in command(batch=8, model={"name": "gpt-oss-20b"})
