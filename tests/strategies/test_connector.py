"""Connectors of a paged cache: which bytes they move, what waits for them, and what they refuse."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import parse_yaml, yaml_text
from simoffload.errors import InputError
from simoffload.planning.caches import with_speeds
from simoffload.results import cause_text
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Schedule
from simoffload.strategies.base import memory_stages
from simoffload.strategies.cache.kv_cache import BlockMoves, submission_s
from tests.strategies import scenarios

PROMPT, PREFIX = 1024, 512


def scenario(
    *,
    model: str = "llama-3.1-8b",
    gpus: int = 1,
    output: int = 8,
    batch: int = 2,
    prompt: int = PROMPT,
    platform: str = "dgx-h100",
    kind: str = "vllm",
    strategy: dict[str, Any] | None = None,
    **connector: Any,
) -> LoadedScenario:
    cache = {"connector": {"tier": "dram", "prefix": PREFIX, **connector}}
    keys = {"kind": kind, "tensor_parallel_size": gpus, **(strategy or {})}
    work = {"batch_size": batch, "prompt_length": prompt, "output_length": output}
    return scenarios.scenario(model=model, platform=platform, **work, strategy=keys, cache=cache)


def simulated(**keys: Any) -> Any:
    return so.simulate(scenario(**keys))


COPY_S = scenario().machine.host.compiled_costs.block_copy.value
"""Time of submitting a copy [s]."""


def moves(found: LoadedScenario) -> BlockMoves:
    moved: BlockMoves = found.plan().block_moves  # type: ignore[attr-defined]
    return moved


def prefills(found: LoadedScenario) -> list[Schedule]:
    """Schedules of all chunks of a prompt."""
    phases: Any = found.plan().phases
    return [one.schedule({}) for one in phases if one.kind == "prefill"]


def phase(found: LoadedScenario, kind: str) -> Schedule:
    return next(one for one in found.plan().phases if one.kind == kind).schedule({})  # type: ignore[union-attr]


def written(schedule: Schedule, name: str) -> int:
    """Bytes of all ranks on routes whose cause begins so."""
    return sum(
        op.size * block.repeat * schedule.ranks
        for block in schedule.blocks
        for op in block.ops
        if op.route >= 0 and cause_text(schedule.routes[op.route].cause).startswith(name)
    )


@pytest.mark.parametrize(
    ("model", "gpus", "per_token"),
    [
        ("llama-3.1-8b", 1, 32 * 2 * 8 * 128 * 2),  # 8 key-value heads of 32
        ("llama-3.1-8b", 8, 32 * 2 * 8 * 128 * 2),
        ("qwen3-8b", 8, 147_456),
        ("qwen3-235b-a22b", 8, 385_024),  # four heads on eight GPUs, each kept by two
        ("deepseek-v3", 8, 8 * 61 * (512 + 64) * 2),  # the latent vectors are on every GPU
    ],
)
def test_bytes_of_a_prefix(model: str, gpus: int, per_token: int) -> None:
    found = scenario(model=model, gpus=gpus, batch=2)
    traffic = moves(found).traffic
    assert traffic.read == 2 * PREFIX * per_token
    assert traffic.written == 2 * (PROMPT - PREFIX) * per_token, "seven more tokens fill no block"
    assert written(phase(found, "load"), "host to GPU") == traffic.read
    assert written(phase(found, "prefill"), "host to GPU") == traffic.read
    assert written(phase(found, "store"), "GPU to host") == traffic.written


def test_of_sliding_layers_only_blocks_of_the_window_are_read() -> None:
    """gpt-oss: every other layer keeps 128 tokens; what is stored has all."""
    each = 2 * 8 * 64 * 2
    for layerwise in (False, True):
        traffic = moves(scenario(model="gpt-oss-20b", batch=1, layerwise=layerwise)).traffic
        assert traffic.read == (12 * PREFIX + 12 * 128) * each
        assert traffic.written == 24 * (PROMPT - PREFIX) * each
    with pytest.raises(InputError, match=r"cross_layer_blocks.*sliding layers keep fewer"):
        scenario(model="gpt-oss-20b", cross_layer_blocks=True).plan()


def test_only_full_blocks_move() -> None:
    """500 tokens are 31 blocks of 16; 1024 + 39 tokens of the cache 66."""
    traffic = moves(scenario(prefix=500, output=40, batch=1)).traffic
    block = 16 * 131_072
    assert (traffic.read, traffic.written) == (31 * block, (66 - 31) * block)
    assert simulated(prefix=500).prefill.new_tokens == PROMPT - 496
    assert moves(scenario(prefix=15)).traffic.read == 0
    assert simulated(prefix=15, store=False).load is None


def test_a_prompt_in_chunks_is_stored_once() -> None:
    """Layer by layer, too: 5 chunks of 1,000 tokens are not 5 prompts."""
    for tokens in (1000, 5000):
        found = scenario(
            layerwise=True, output=1, batch=1, prompt=5000, strategy={"max_num_batched_tokens": tokens}
        )
        stored = sum(written(one, "GPU to host") for one in prefills(found))
        assert stored == moves(found).traffic.written > 0


def test_direct_reads_do_not_touch_host_memory() -> None:
    found = scenario(tier="raid", direct=True)
    load = phase(found, "load")
    assert written(load, "raid read") == moves(found).traffic.read
    assert written(load, "host to GPU") == 0
    assert all(one.link != "dram" for one in so.simulate(found).load.links)  # type: ignore[attr-defined]
    assert not [term for term in memory_stages(found.plan())[0].terms if "pinned buffers" in term.name]


def test_an_infinitely_fast_tier_leaves_the_prefill_of_the_rest() -> None:
    for layerwise in (False, True):
        plan: Any = scenario(layerwise=layerwise, store=False).plan()
        loaded, alone = (
            plan.schedule(plan.forward("prefill", PROMPT - PREFIX, PROMPT)._replace(loads=loads))
            for loads in (True, False)
        )
        from simoffload.engine import execute

        times = execute(with_speeds(loaded, cache=1e9)).makespan, execute(alone).makespan
        found = round(before_s(layerwise=layerwise) * 1e12)
        assert times[1] <= times[0] <= times[1] + found + 10_000, "one byte for each copy"


def before_s(*, layerwise: bool = False, batch: int = 2) -> float:
    """Time in which the host hashes and finds a prefix [s], with a step that is only for its load."""
    found = scenario(batch=batch)
    costs = found.machine.host.compiled_costs
    tokens = costs.prompt_token.value * batch * PREFIX
    blocks = moves(found).loads(0)[0].number * costs.block.value
    return tokens + (0.0 if layerwise else costs.step.value + blocks)


@pytest.mark.parametrize("prompt", [544, 2048])
def test_layer_by_layer_is_not_slower_with_equal_copies(prompt: int) -> None:
    """The load of a layer is hidden by the computation of the one before, or the other way round."""
    keys: dict[str, Any] = {"prompt": prompt, "store": False, "batch": 8}
    whole = simulated(cross_layer_blocks=False, **keys)
    layers = simulated(layerwise=True, **keys)
    rest = layers.ttft_s - layers.kv_load_s
    assert layers.ttft_s <= whole.ttft_s
    assert layers.ttft_s >= layers.kv_load_s
    expected = whole.kv_load_s + before_s(batch=8) + simulated_rest(**keys)
    assert whole.ttft_s == pytest.approx(expected, rel=1e-6)
    assert rest < simulated_rest(**keys)


def simulated_rest(**keys: Any) -> float:
    """Time of the prefill of the rest alone [s]."""
    from simoffload.engine import execute

    plan: Any = scenario(**keys).plan()
    prompt = keys["prompt"]
    forward = plan.forward("prefill", prompt - PREFIX, prompt)._replace(followed=True)
    return execute(plan.schedule(forward)).makespan * 1e-12


@pytest.mark.parametrize(("block_tokens", "together"), [(16, 83.4e9), (512, 99.25e9)])
def test_loads_and_stores_together_reach_what_the_link_carries_both_ways(
    block_tokens: int, together: float
) -> None:
    """On a server that only prefills, blocks of the batch before are stored during the load of as many bytes:
    of 2 MiB they reach 83.4 GB/s in both directions together, of 64 MiB 0.895 of both rates."""
    keys: dict[str, Any] = {
        "output": 1,
        "prompt": 2 * 8192,
        "prefix": 8192,
        "batch": 4,
        "block_tokens": block_tokens,
        "cross_layer_blocks": True,
    }
    alone, both = (simulated(store=store, **keys) for store in (False, True))
    (traffic,) = both.traffic
    assert traffic.read == traffic.written
    submitted = 4 * 8192 // block_tokens * COPY_S
    moving = both.load.time_s - submitted
    assert (traffic.read + traffic.written) / moving == pytest.approx(together, rel=1e-3)
    carried = {one.link: one for one in both.load.links}
    directions = [one.size for link, one in carried.items() if "gpu0" in link and "<->" not in link]
    assert directions == [traffic.read] * 2
    link = next(one for name, one in carried.items() if "<->" in name and "gpu0" in name)
    assert link.saturated_s == pytest.approx(moving, rel=1e-3)
    assert simulated(**{**keys, "output": 9}).load.time_s == alone.load.time_s


def test_only_blocks_share_a_link_by_their_size() -> None:
    """Everything else takes as long whatever the rates by size are, to the picosecond."""
    section = {"kind": "transformers", "kv_cache": {"tier": "dram"}}
    found = {**scenario(batch=16).document.data, "strategy": section}
    slow = {"points": [["32 MiB", "20 GB/s"]]}
    plain, changed = (
        so.simulate(resolve(parse_yaml(yaml_text({**found, **more}), name="s.yaml"))).to_dict()
        for more in ({}, {"profiles": {"pcie/gen5": {"both_ways_by_size": slow}}})
    )
    assert plain["passes"] == changed["passes"]


def test_a_pass_does_not_wait_for_stores_except_layer_by_layer() -> None:
    slow: dict[str, Any] = {"tier": "nfs", "output": 1, "prefix": 0, "batch": 8}
    free, storing = (simulated(store=store, **slow) for store in (False, True))
    assert storing.kv_store_s > 1.2 * free.ttft_s
    assert storing.ttft_s == free.ttft_s
    assert simulated(layerwise=True, **slow).ttft_s > storing.kv_store_s


def test_what_is_stored_counts_on_its_tier() -> None:
    def terms(**keys: Any) -> dict[tuple[str, str], int]:
        stage = memory_stages(scenario(**keys).plan())[0]
        return {(one.tier, one.name): one.size for one in stage.terms}

    per_token = 131_072
    assert terms()["dram", "blocks of the prefixes"] == 2 * PREFIX * per_token
    assert terms()["dram", "new blocks"] == 2 * (PROMPT - PREFIX) * per_token
    on_raid = terms(tier="raid")
    assert on_raid["raid", "blocks of the prefixes"] == 2 * PREFIX * per_token
    assert on_raid["dram", "pinned buffers of blocks"] == 2 * 2 * 16 * 16 * per_token
    used = next(one for one in so.fit(scenario(tier="raid")).capacity if one.tier == "raid")
    assert used.needed == 2 * PROMPT * per_token


def test_drives_wear_by_what_a_generation_writes() -> None:
    result = simulated(tier="raid", direct=True)
    (worn,) = result.drive_lifetime
    assert worn.drive_lifetime.per_step == result.traffic[0].written == 2 * (PROMPT - PREFIX) * 131_072
    assert worn.drive_lifetime.per_day == pytest.approx(worn.drive_lifetime.per_step * 86_400 / result.e2e_s)
    assert simulated(tier="raid", store=False).drive_lifetime == ()


def test_parts_of_blocks_set_the_rate_of_copies() -> None:
    """64 KiB in place of 2 MiB: the host submits 32 copies for a block in place of one."""
    one, apart = (simulated(batch=1, cross_layer_blocks=flag) for flag in (True, False))
    assert (apart.kv_load_s - one.kv_load_s) / (PREFIX / 16 * 31) == pytest.approx(COPY_S, rel=0.01)


def test_copies_move_while_others_are_submitted() -> None:
    """16,384 copies are submitted before the first moves, at most: 512 blocks of 32 layers, and no more for
    twice as many."""
    loads = [simulated(batch=1, prompt=32_768, prefix=prefix).kv_load_s for prefix in (8192, 16_384, 24_576)]
    first, second = loads[1] - loads[0], loads[2] - loads[1]
    assert first == pytest.approx(second)
    assert loads[0] == pytest.approx(first + 16_384 * COPY_S, rel=1e-3)


def test_small_copies_take_as_long_as_their_submission() -> None:
    """65,536 copies of 16 KiB from an H200 took 60.9 ms (copies.json.gz of the measurements)."""
    submitted = 65_536 * 0.85e-6
    moving = 65_536 * 16_384 / 55.5e9
    assert moving + submission_s(65_536, 0.85e-6, moving) == pytest.approx(submitted, rel=0.01)
    assert submission_s(65_536, 0.85e-6, 4 * moving) == 16_384 * 0.85e-6, (
        "others are submitted while bytes move"
    )


def test_memory_of_another_host_is_shared_by_all_gpus() -> None:
    """A fixed time, and all bytes at the rate that its profile gives for all adapters."""
    found = so.load_scenario("mooncake/qwen3-8b")
    target = found.machine.targets["peer"]
    result: Any = so.simulate(found)
    expected = target.read.latency + result.traffic[0].read / target.read.rate
    assert result.kv_load_s == pytest.approx(expected, rel=1e-3)
    assert not found.machine.tiers["peer"].row.is_storage


def test_load_or_compute() -> None:
    """The break-even rate is that at which both take as long."""
    found: Any = so.prefix_loading(scenario(batch=1, prompt=8193, prefix=8192, tier="nfs"))
    assert found.loads
    needed = found.size / (found.computed_s - found.speed.fastest_s)
    assert found.break_even == pytest.approx(needed, rel=0.011)
    fastest = found.speed.fastest_s
    assert found.speed.enough == pytest.approx(found.size / (0.05 * fastest), rel=0.011)
    assert found.speed.rate == pytest.approx(found.size / (found.loaded_s - fastest), rel=1e-3)
    assert len(found.sentences) == 2
    slow = so.prefix_loading(scenario(batch=1, tier="pfs", prompt=64, prefix=48))
    assert slow is not None
    assert slow.loads == (slow.loaded_s < slow.computed_s)
    assert so.prefix_loading(scenario(prefix=0)) is None


def test_load_or_compute_is_asked_of_every_program() -> None:
    for kind, more in (("accelerate", {"device_map": "cpu"}), ("deepspeed", {"weights": "dram"})):
        cache = {"connector": {"tier": "nfs", "prefix": PREFIX}}
        work = {"batch_size": 2, "prompt_length": PROMPT, "output_length": 4}
        found = scenarios.scenario(
            model="llama-3.1-8b", platform="dgx-h100", **work, strategy={"kind": kind, **more}, cache=cache
        )
        loading = so.prefix_loading(found)
        assert loading is not None
        assert (loading.tier, loading.size) == ("nfs", 2 * PREFIX * 131_072)


@pytest.mark.parametrize(
    "keys", [{"layerwise": True}, {"output": 1}, {"layerwise": True, "prefix": 6400}, {"tier": "raid"}]
)
def test_load_or_compute_is_asked_without_stores(keys: dict[str, Any]) -> None:
    """A store that takes longer than the loads determines neither their rate nor the break-even, at which
    both ways take equally long; what it costs is a sentence of its own."""
    keys = {"batch": 3, "prompt": 7000, "tier": "nfs", "prefix": 512, **keys}
    found: Any = so.prefix_loading(scenario(**keys))
    without: Any = so.prefix_loading(scenario(store=False, **keys))
    assert found.speed == without.speed
    assert found.speed.way in ("nfs read", "raid read", "host to GPU")
    assert (found.computed_s, found.break_even) == (without.computed_s, without.break_even)
    assert found.loads == (found.speed.rate > found.break_even)
    result = simulated(**keys)
    assert found.stored_s == result.ttft_s
    assert without.stored_s == without.loaded_s
    assert len(without.sentences) == 2
    if "layerwise" in keys and keys["prefix"] == 512:  # the pass ends with its stores
        *_, last = found.sentences
        assert last.startswith("this is without stores: with them, the first token comes after 1.3")


def command(**keys: Any) -> tuple[str, dict[str, Any]]:
    """The exported command, and the settings of its connector with their name and role."""
    text: str = scenario(**keys).exports()["vllm-serve.sh"]
    words = shlex.split(text, comments=True)
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    return text, {**config.pop("kv_connector_extra_config"), **config}


def test_the_exported_command_of_vllms_own_connector() -> None:
    text, found = command()
    assert found == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "cpu_bytes_to_use": 1 << 30,
        "offload_prompt_only": False,  # blocks of generated tokens are stored, too
    }
    assert "VLLM_KV_CACHE_LAYOUT" not in text
    assert "stores" not in text
    text, joined = command(cross_layer_blocks=True, store=False)
    assert "VLLM_KV_CACHE_LAYOUT=BLHNC \\\nvllm serve" in text
    assert "no option that turns stores off" in text
    assert joined == found


def test_the_exported_command_reserves_host_memory_for_all_blocks() -> None:
    """Of the connector for each replica, of LMCache for each GPU."""
    degrees = {"pipeline_parallel_size": 2, "data_parallel_size": 2}
    _, found = command(batch=16, prompt=8192, strategy=degrees)
    size = 16 * (8199 // 16) * 16 * 32 * 2 * 1024 * 2  # bytes of the cache of a replica
    assert found["cpu_bytes_to_use"] == size == 16 << 30
    _, found = command(batch=16, prompt=8192, strategy=degrees, block_tokens=256, tier="raid")
    assert found["lmcache.max_local_disk_size"] == found["lmcache.max_local_cpu_size"] == 8


def test_the_exported_command_with_files() -> None:
    text, found = command(tier="raid")
    threads = {"n_read_threads": 16, "n_write_threads": 16}
    assert found["spec_name"] == "TieringOffloadingSpec"
    assert found["secondary_tiers"] == [{"type": "fs", "root_dir": "/mnt/raid", **threads}]
    assert "Replace /mnt/raid by a directory on raid." in text
    assert "vLLM keeps blocks in host memory" in text


def test_the_exported_command_of_lmcache() -> None:
    text, found = command(tier="nfs", layerwise=True, block_tokens=256)
    assert found == {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
        "use_layerwise": True,
        "lmcache.chunk_size": 256,
        "lmcache.use_layerwise": True,
        "lmcache.save_decode_cache": False,
        "lmcache.local_cpu": False,
        "lmcache.max_local_cpu_size": 1,
        "lmcache.local_disk": "/mnt/nfs",
        "lmcache.max_local_disk_size": 1,
        "lmcache.extra_config": {"disk_io_threads": 16, "use_odirect": True},
    }
    assert "PYTHONHASHSEED=0" in text
    assert "several CUDA graphs" in text
    _, direct = command(tier="raid", direct=True)
    assert (direct["lmcache.gds_path"], direct["lmcache.gds_buffer_size"]) == ("/mnt/raid", 1024)
    assert "lmcache.local_disk" not in direct
    text, memory = command(block_tokens=256, store=False)
    assert memory["lmcache.local_cpu"]
    assert "lmcache.skip_save" in text


def test_the_exported_command_of_mooncake() -> None:
    text, found = command(tier="peer", platform="hgx-h20", layerwise=True, block_tokens=64)
    assert found["kv_connector"] == "MooncakeStoreConnector"
    assert found["save_decode_cache"]
    assert "MOONCAKE_CONFIG_PATH=mooncake.json" in text
    for words in ("GPU memory", "all layers", "16 tokens; the simulation of 64"):
        assert words in text
    text, found = command(tier="peer", platform="hgx-h20", direct=True, store=False)
    assert found["kv_role"] == "kv_consumer"
    assert "GPU memory" not in text
