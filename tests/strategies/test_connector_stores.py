"""Stores of new blocks beside decode steps, and connectors together with offloaded weights."""

from __future__ import annotations

from typing import Any

import pytest

import simoffload as so
from simoffload.scenario import LoadedScenario, resolve
from tests.strategies.test_connector import PREFIX, moves, phase, scenario, simulated, written

TOKEN = 131_072
"""Bytes of a token of llama-3.1-8b in the cache."""
IN_PLACE = {"cpu_offload_gb": 8}
PREFETCHED = {"offload_group_size": 4, "offload_prefetch_step": 2}
OFFLOADED = [IN_PLACE, PREFETCHED]


def decode(found: LoadedScenario, step: int = 1) -> Any:
    return found.plan().phases[-1].step(step)  # type: ignore[union-attr]


def carried(result: Any, name: str) -> dict[str, int]:
    """Bytes over each direction of the cable of the only GPU in a pass."""
    one = next(one for one in result.passes if one.name == name)
    return {
        ("up" if link.link.startswith("gpu0") else "down"): link.size
        for link in one.links
        if "gpu0" in link.link and "<->" not in link.link
    }


@pytest.mark.parametrize("tier", ["dram", "raid", "nfs"])
@pytest.mark.parametrize("strategy", [{}, *OFFLOADED])
def test_decode_steps_store_equal_parts_of_a_generation(tier: str, strategy: dict[str, Any]) -> None:
    """Each half of the way moves every byte once, rounded up to a byte in each step."""
    found = scenario(tier=tier, output=38, strategy=strategy)
    total, steps = moves(found).traffic.written, 37
    assert total == 2 * (1024 + 32 - 512) * TOKEN, "1024 + 37 tokens are 66 blocks"
    for step in (1, steps):
        schedule = decode(found, step).schedule({})
        ways = ["GPU to host"] + ([f"{tier} write"] if tier != "dram" else [])
        assert [written(schedule, way) for way in ways] == [-(-total // steps)] * len(ways)
    assert written(phase(found, "prefill"), "GPU to host") == 0


@pytest.mark.parametrize("tier", ["dram", "raid", "nfs"])
@pytest.mark.parametrize("gpus", [1, 4])
def test_steps_that_use_no_link_take_as_long_with_stores(tier: str, gpus: int) -> None:
    without, stored = (simulated(tier=tier, gpus=gpus, output=20, store=store) for store in (False, True))
    assert [one.time_ps for one in stored.decode] == [one.time_ps for one in without.decode]
    assert stored.e2e_s == without.e2e_s
    assert stored.kv_backlog_s is not None
    assert without.kv_backlog_s is None


@pytest.mark.parametrize("strategy", OFFLOADED)
def test_weights_and_stores_slow_each_other_down(strategy: dict[str, Any]) -> None:
    """While blocks are stored, both directions get what makes their sum fill the cable, a byte of a block
    counting more; the weights lose the rest of their rate for that time."""
    keys: dict[str, Any] = {"batch": 64, "output": 3, "strategy": strategy, "cross_layer_blocks": True}
    without, stored = (simulated(**keys, store=store) for store in (False, True))
    part = stored.traffic[0].written // 2
    cable = (55.5e9 + 55.4e9) * 0.895
    both = cable / (1 + cable / 83.4e9)
    slower = stored.decode[0].time_s - without.decode[0].time_s
    if "cpu_offload_gb" in strategy:  # kernels do not read at the full rate, and leave some to the stores
        assert 0.5 * part / both * (1 - both / 55.5e9) < slower < part / both * (1 - both / 55.5e9)
        return
    assert slower == pytest.approx(part / both * (1 - both / 55.5e9), rel=0.05)
    busy = next(one.busy_s for one in stored.decode[0].shares if one.cause_text.startswith("GPU to host"))
    assert busy == pytest.approx(part / both, rel=0.02)
    assert busy > 1.1 * part / 53.3e9, "alone"
    down, up = carried(without, "decode 1")["down"], carried(stored, "decode 1")
    assert up == {"down": down, "up": part}
    assert stored.kv_backlog_s == 0


@pytest.mark.parametrize("strategy", OFFLOADED)
def test_loads_layer_by_layer_share_the_link_with_weights(strategy: dict[str, Any]) -> None:
    """The cable carries the prefix and the weights; the prefill takes at least as long as both."""
    keys: dict[str, Any] = {
        "batch": 8,
        "prompt": 528,
        "layerwise": True,
        "store": False,
        "strategy": strategy,
    }
    loaded = simulated(**keys)
    as_many = {"prefix": 0, "prompt": 16}  # tokens, for which kernels read weights in place as often
    weights = carried(simulated(**{**keys, **as_many}), "prefill")["down"]
    assert carried(loaded, "prefill")["down"] == weights + 8 * 512 * TOKEN
    assert loaded.ttft_s > (weights + 8 * 512 * TOKEN) / 55.5e9
    assert loaded.ttft_s > max(loaded.kv_load_s, simulated(**{**keys, "prefix": 0, "prompt": 16}).ttft_s)


@pytest.mark.parametrize("strategy", OFFLOADED)
def test_a_prefix_is_there_before_the_first_kernel_reads_weights(strategy: dict[str, Any]) -> None:
    """As a whole it is loaded before the pass, which then takes as long as without a load, beside the host's
    work for each block and token and a step in which the request waits."""
    plain: Any = scenario(strategy=strategy).plan()
    from simoffload.engine import execute

    forward = plain.forward("prefill", 512, 1024)
    times = [execute(plain.schedule(forward._replace(loads=loads))).makespan for loads in (True, False)]
    load = execute(plain.phases[1].schedule({})).makespan
    assert plain.phases[1].kind == "load"
    costs = plain.machine.host.compiled_costs
    found = 2 * PREFIX // 16 * costs.block.value + 2 * PREFIX * costs.prompt_token.value + costs.step.value
    assert times[0] == pytest.approx(times[1] + load + found * 1e12, abs=2)


def test_what_a_tier_does_not_take_in_time_is_a_backlog() -> None:
    """A part of a step takes the latency of the server and its bytes; a warning follows if the next prefill
    is too short for what is left."""
    result = simulated(tier="nfs", output=9, batch=8)
    server = scenario().machine.targets["nfs"].write
    needed = 8 * server.latency + result.traffic[0].written / server.rate
    assert result.kv_backlog_s == pytest.approx(needed - 8 * result.tpot_s, rel=0.01)
    assert 0 < result.kv_backlog_s < result.ttft_s
    assert not [one for one in result.warnings if "faster than" in one]
    slow = scenario(tier="nfs", output=9, batch=8).document
    slow.data["profiles"] = {"nfs/nfs-100gbe": {"write": "1 GB/s"}}
    behind: Any = so.simulate(resolve(slow))
    assert behind.kv_backlog_s > behind.ttft_s
    (warning,) = (one for one in behind.warnings if "faster than" in one)
    assert "new blocks are produced faster than nfs takes them" in warning
    assert "connector.store to false" in warning


def test_a_server_that_only_prefills_has_a_backlog_after_its_prefill() -> None:
    result = simulated(tier="nfs", output=1, prefix=0, batch=8)
    assert result.kv_backlog_s == pytest.approx(result.kv_store_s - result.ttft_s, rel=1e-3)
    assert [one for one in result.warnings if "faster than nfs takes them" in one]
    waits = simulated(tier="nfs", output=1, prefix=0, batch=8, layerwise=True)
    assert waits.kv_backlog_s == 0, "the prefill waits for them"
    assert not [one for one in waits.warnings if "faster than" in one]
