"""Plans: memory by tier, warnings, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.extensions.storage.program import CheckpointPlan
from simoffload.extensions.storage.result import Outlook
from simoffload.models import load_model
from simoffload.results.capacity import tier_uses
from tests.strategies.checkpoint.cases import FAST, outlook, planned

MIB = 2**20


def terms(plan: CheckpointPlan) -> dict[str, int]:
    return {term.name: term.size for term in plan.held}


def test_checkpoints_that_are_kept_fill_the_tier() -> None:
    plan = planned(keep=3)
    assert terms(plan)["saved checkpoints"] == 3 * 12 * load_model("llama-3.1-8b").num_parameters
    uses = {use.tier: use for use in tier_uses(planned(keep=400).held, planned().machine.tiers)}
    assert not uses["raid"].fits
    assert uses["dram"].fits


def test_torch_save_holds_a_tensor_of_every_rank() -> None:
    """At stage 3 a state's tensor is a sub-group, to which the one that reaches its size still belongs."""
    assert terms(planned("llama-3.1-70b"))["tensors on their way from the GPU"] == 8 * 4 * 1_021_332_480
    small = terms(planned("llama-3.1-70b", sub_group_size=10**8))
    assert small["tensors on their way from the GPU"] == 8 * 4 * 131_335_168


def test_stock_pytorch_makes_the_fast_writer_hold_every_tensor_twice() -> None:
    once = terms(planned())["tensors on their way from the GPU"]
    assert terms(planned(writer={"type": "fast"}))["tensors on their way from the GPU"] == 2 * once


def test_fast_writers_have_a_pinned_buffer_each() -> None:
    plan = planned(writer=FAST)
    assert terms(plan)["I/O buffers"] == 8 * 64 * MIB
    assert all(term.pinned for term in plan.held if term.name == "I/O buffers")
    assert "page cache not yet written" not in terms(plan)
    odd = terms(planned(writer={**FAST, "io_buffer_size": "96 MiB"}))
    assert odd["I/O buffers"] == 8 * 128 * MIB  # PyTorch rounds pinned memory up to a power of two
    gds = planned(writer={**FAST, "use_gds": True}).held
    assert [term.size for term in gds if term.tier == "hbm"] == [64 * MIB]


def test_snapshot_lies_in_host_memory_whole() -> None:
    plan = planned("llama-3.1-70b", nodes=2, ranks=16, contents="sharded", mode="snapshot")
    half = 14 * load_model("llama-3.1-70b").num_parameters / 2
    assert terms(plan)["snapshot"] == pytest.approx(half, rel=1e-6)


def test_page_cache_holds_what_may_be_dirty() -> None:
    plan = planned("llama-3.1-405b", nodes=8, ranks=64)
    memory = plan.machine.tiers["dram"].capacity - plan.machine.host.reserved_bytes
    assert terms(plan)["page cache not yet written"] == int(0.2 * memory)
    assert terms(planned())["page cache not yet written"] == planned().size


def test_consolidation_needs_all_weights_in_the_memory_of_one_host() -> None:
    plan = planned("llama-3.1-405b", nodes=8, ranks=64, contents="consolidated")
    assert terms(plan)["weights gathered on rank 0"] == load_model("llama-3.1-405b").weight_bytes


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"writer": {"type": "fast"}}, "patched_torch: true"),
        ({"writer": {"type": "fast", "patched_torch": True}}, "checkpoint_serialization: false"),
        ({"writer": FAST, "stage": 1}, "does not look for"),
        ({"writer": {"type": "python"}, "stage": 2}, "8 times as much"),
        ({"writer": {**FAST, "data_parallel": "replica"}}, "no effect at stage 3"),
        ({"writer": FAST, "fsync": True}, "always flushes"),
        ({"contents": "consolidated", "interval": "1 h"}, "no optimizer states"),
        ({"nodes": 2, "ranks": 16}, "in each node"),
        ({"jobs": 2}, "other jobs cannot reach"),
        ({"writer": FAST, "mode": "decoupled"}, "give step_time"),
    ],
)
def test_warnings(workload: dict[str, Any], message: str) -> None:
    assert any(message in text for text in planned(**workload).warnings)


def test_a_plain_checkpoint_has_nothing_to_warn_about() -> None:
    assert planned().warnings == ()
    assert planned(writer=FAST, tier="pfs", jobs=4).warnings == ()
    assert planned(contents="consolidated").warnings == ()  # an export, not insurance


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ({"ranks": 9}, "strategy.ranks", "9 ranks, but the platform has 8"),
        ({"tier": "dram"}, "strategy.tier", r"has: raid, nfs, pfs, nvmeof"),
        ({"offload_optimizer": "nvme", "swap": "hbm"}, "strategy.swap", "no storage tier"),
    ],
)
def test_what_the_machine_lacks(arguments: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        planned(**arguments)
    assert raised.value.problems[0].key == key


def test_a_platform_without_drives_has_no_swap_files() -> None:
    with pytest.raises(InputError, match="no storage tier"):
        planned(platform="gh200", ranks=1, tier="nowhere", offload_optimizer="nvme")


def test_outlook_of_a_run() -> None:
    """8 nodes of 5000 h fail every 625 h; a checkpoint every 100 steps of 3 s."""
    plan = planned(
        "llama-3.1-70b",
        nodes=8,
        ranks=64,
        tier="pfs",
        writer=FAST,
        interval_steps=100,
        step_time="3 s",
        node_mtbf="5000 h",
        restart_time="5 min",
    )
    seen = outlook(plan)
    assert seen.interval_s == 300.0
    assert seen.mtbf_s == 625 * 3600
    assert seen.share == pytest.approx(seen.stall_s / (300 + seen.stall_s))
    assert seen.restart_s == 300 + seen.restore_s
    assert seen.young_s == pytest.approx((2 * seen.stall_s * 625 * 3600) ** 0.5)
    assert seen.efficiency is not None
    assert seen.best_efficiency is not None
    assert seen.efficiency < seen.best_efficiency < 1


def test_a_commit_that_outlasts_its_timeout() -> None:
    plan = planned(writer=FAST, mode="decoupled", step_time="3 s")
    long = Outlook(301.0, 0.0, 303.0, 303.0, 1.0, 1.0)
    assert "gives up after 300 s" in plan.commit_warning(long)
    assert plan.commit_warning(long._replace(stall_s=299.0)) == ""
    assert planned().commit_warning(long) == ""
