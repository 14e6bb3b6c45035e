"""Schedules of saving and restoring against times worked out by hand, and the ways knobs move them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.extensions.storage.program import fresh_share
from simoffload.models import load_model
from tests.engine.bounds import lower_bound, serial_time
from tests.examples import some
from tests.strategies.checkpoint.cases import (
    CRC32_S,
    FAST,
    FRESH_FROM_GPU_S,
    FRESH_READ_S,
    PAGE_CACHE_S,
    behind,
    blocking,
    carried,
    machine_of,
    outlook,
    planned,
    restoring,
    squares,
    times,
    with_memcpy,
    with_memory,
)

MIB = 2**20


def one_rank(**workload: Any) -> dict[str, Any]:
    """80 matrices of 4 MB each on the machine with eight drives: 32,000,000 fp32 parameters in all."""
    return {"model": squares(8, 10_000), "platform": "h200-8nvme", "ranks": 1, "tier": "raid8", **workload}


SIZE = 8 * 10**8 * 4
"""[B] of the matrices of ``one_rank``."""
MEMCPY, PAGEABLE = 6.045e9, 10e9
"""[B/s] of one thread of the host of a DGX H100, and of large copies of pageable memory of hosts that state
none."""


def test_serial_chain_of_torch_save() -> None:
    """One thread: new pages, copy from the GPU at 10 GB/s, CRC-32, pages of the cache, copy at 12 GB/s."""
    plan = planned(**one_rank(contents="model_only"))
    per_byte = FRESH_FROM_GPU_S + 1 / PAGEABLE + CRC32_S + PAGE_CACHE_S + 1 / 12e9
    assert blocking(plan) == pytest.approx(SIZE * per_byte, rel=2e-3)


def test_without_zip_there_is_no_checksum() -> None:
    zipped = blocking(planned(**one_rank(contents="model_only")))
    legacy = blocking(planned(**one_rank(contents="model_only", writer={"checkpoint_serialization": False})))
    assert zipped - legacy == pytest.approx(SIZE * CRC32_S, rel=1e-6)


def test_small_tensors_need_no_new_pages() -> None:
    """Up to 32 MiB malloc hands out memory that is already there."""
    assert fresh_share([32 * MIB, 32 * MIB + 1]) == pytest.approx(0.5)
    small = {**one_rank(contents="model_only"), "model": squares(200, 2000)}
    large = {**one_rank(contents="model_only"), "model": squares(8, 10_000)}
    assert blocking(planned(**large)) - blocking(planned(**small)) == pytest.approx(
        SIZE * FRESH_FROM_GPU_S, rel=2e-3
    )


def test_double_buffer_is_as_fast_as_the_slower_side() -> None:
    """3.2 GB in halves of 32 MiB: 96 fills behind writes at 27.68 GB/s, each with a latency of 25 us; only
    the first fill (0.6 ms at 55 GB/s and a call) shows."""
    plan = planned(**one_rank(contents="model_only", writer={**FAST, "block_size": "8 MiB"}))
    halves = -(-SIZE // (32 * MIB))
    first = 32 * MIB / 55e9 + 35e-6 + 7e-6
    assert blocking(plan) == pytest.approx(SIZE / 27.68e9 + halves * 25e-6 + first, rel=1e-3)


def test_single_buffer_waits_for_every_write() -> None:
    writer = {**FAST, "block_size": "8 MiB", "io_buffer_double": False}
    plan = planned(**one_rank(contents="model_only", writer=writer))
    fills = -(-SIZE // (64 * MIB))
    expected = SIZE / 27.68e9 + SIZE / 55.3e9 + fills * (25e-6 + 35e-6 + 7.4e-6)
    assert blocking(plan) == pytest.approx(expected, rel=2e-3)


def test_few_requests_in_flight_limit_the_fast_writer() -> None:
    """One request of 1 MiB at a time: 1 MiB over 25 us and its time on two drives of 3.46 GB/s."""
    writer = {**FAST, "block_size": "1 MiB", "queue_depth": 1}
    plan = planned(**one_rank(contents="model_only", writer=writer))
    rate = MIB / (25e-6 + MIB / (2 * 3.46e9))
    assert blocking(plan) == pytest.approx(SIZE / rate, rel=0.01)


def test_gds_leaves_host_memory_alone() -> None:
    writer = {**FAST, "use_gds": True, "block_size": "8 MiB"}
    (phase,) = planned(**one_rank(contents="model_only", writer=writer)).save()
    moved = carried(phase)
    assert moved["dram"] == 0
    assert moved["raid8 write"] == SIZE


# -- the page cache ------------------------------------------------------------------------------


def test_buffered_writes_return_before_they_are_on_storage() -> None:
    plan = planned(**one_rank(contents="model_only"))
    assert behind(plan) == pytest.approx(SIZE / 27.68e9, rel=0.02)
    flushed = planned(**one_rank(contents="model_only", fsync=True))
    assert behind(flushed) == 0
    assert blocking(flushed) == pytest.approx(blocking(plan) + behind(plan), rel=0.01)


def test_drives_that_keep_pace_hold_nobody_up() -> None:
    """40 GB of states on a host with 90 GB: the kernel begins at 9 GB, writers would wait at 18 GB, but the
    drives (11.9 GB/s) are faster than one thread; less is left behind."""
    states = {"ranks": 1, "tier": "raid4", "offload_optimizer": "cpu"}
    ample = machine_of("h200-8nvme")
    plan = planned(squares(40, 10_000), machine=with_memory(ample, 90 * 10**9), **states)
    unlimited = planned(squares(40, 10_000), machine=ample, **states)
    assert blocking(plan) == pytest.approx(blocking(unlimited), rel=1e-3)
    assert behind(plan) == pytest.approx(18e9 / 11.9e9, rel=0.05)
    assert behind(unlimited) == pytest.approx(48e9 / 11.9e9, rel=0.03)


def test_slow_storage_throttles_beyond_the_dirty_limit() -> None:
    """1 GB/s behind 50 GB of memory: the kernel begins at 5 GB, and all but 10 GB take a second per GB."""
    machine = with_memory(machine_of("h200-8nvme"), 50 * 10**9)
    slow = tuple(
        one._replace(capacity=10**9) if one.name == "raid4 write" else one for one in machine.resources
    )
    plan = planned(
        squares(20, 10_000),
        machine=replace(machine, build_topology=lambda: (slow, machine.topology)),
        ranks=1,
        tier="raid4",
        offload_optimizer="cpu",
    )
    size = 12 * 20 * 10**8
    until_begin = 5e9 * (CRC32_S + PAGE_CACHE_S + 1 / MEMCPY)
    assert blocking(plan) == pytest.approx(until_begin + (size - 10e9) / 1e9, rel=0.02)
    assert behind(plan) == pytest.approx(10.0, rel=0.03)


@pytest.mark.parametrize("tier", ["nfs", "pfs"])
def test_network_filesystems_are_flushed_when_a_file_is_closed(tier: str) -> None:
    plan = planned(tier=tier)
    assert behind(plan) == 0
    assert blocking(plan) >= plan.size / {"nfs": 4e9, "pfs": 65e9}[tier]


# -- several ranks, several runs -----------------------------------------------------------------


def test_ranks_share_the_drives() -> None:
    eight, one = planned(writer=FAST), planned(writer=FAST, ranks=1)
    assert eight.size == one.size
    assert blocking(eight) == pytest.approx(eight.size / 23.408e9, rel=0.01)
    assert blocking(one) == pytest.approx(blocking(eight), rel=0.03)


def test_torch_save_scales_with_ranks_until_something_is_full() -> None:
    one, eight = blocking(planned(ranks=1)), blocking(planned(ranks=8))
    assert one / eight == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize("jobs", [2, 5])
def test_runs_that_write_at_once_share_the_server(jobs: int) -> None:
    writer = {**FAST, "block_size": "8 MiB"}
    plan = planned(tier="pfs", writer=writer)
    alone, together = blocking(plan), blocking(planned(tier="pfs", writer=writer, jobs=jobs))
    halves = -(-plan.size // (8 * 32 * MIB))
    assert alone == pytest.approx(plan.size / 65e9 + halves * 1e-3, rel=0.02)  # 1 ms for each write
    assert together == pytest.approx(jobs * plan.size / 65e9 + halves * 1e-3, rel=0.02)


def test_runs_elsewhere_do_not_touch_local_drives() -> None:
    assert blocking(planned(writer=FAST, jobs=8)) == blocking(planned(writer=FAST))


def test_local_drives_of_more_nodes_add_up() -> None:
    two = planned(nodes=2, ranks=16, writer=FAST)
    four = planned(nodes=4, ranks=32, writer=FAST)
    assert blocking(two) / blocking(four) == pytest.approx(2, rel=0.01)


def test_data_parallel_writers_use_the_copy_engines_of_more_gpus() -> None:
    """Rank 0 alone writes 112 GB through one PCIe slot; eight writers reach the drives' rate all the same."""
    workload = {"stage": 0, "platform": "h200-8nvme", "ranks": 1, "tier": "raid8"}
    alone = blocking(planned(writer={**FAST, "io_buffer_double": False}, **workload))
    assert alone > 112.4e9 / 27.68e9 * 1.4
    split = {**FAST, "io_buffer_double": False, "data_parallel": "replica"}
    eight = planned(stage=0, writer=split)
    assert blocking(eight) == pytest.approx(112.4e9 / 23.408e9, rel=0.25)
    assert blocking(eight) < blocking(planned(stage=0, writer={**FAST, "io_buffer_double": False}))


def test_weights_of_stage_1_are_written_by_rank_0_alone() -> None:
    names = {phase.name: time for phase, time in times(planned(stage=1).save()) if not phase.background}
    assert set(names) == {"save weights", "save optimizer states"}
    assert (
        names["save weights"] > names["save optimizer states"]
    )  # 16 GB by one thread, 12 GB by each of eight


# -- offloading, snapshots, consolidation ---------------------------------------------------------


def test_offloaded_optimizer_states_need_no_copy_from_the_gpu() -> None:
    """12 B per parameter from host memory: 96.4 GB by eight threads at 2.8 GB/s each."""
    plan = planned(offload_optimizer="cpu")
    rate = 1 / (CRC32_S + PAGE_CACHE_S + 1 / MEMCPY)
    assert blocking(plan) == pytest.approx(plan.size / 8 / rate, rel=0.01)


def test_swap_files_are_copied_by_one_thread_per_rank() -> None:
    plan = planned(offload_optimizer="nvme", tier="pfs", swap="raid")
    (phase,) = plan.save()
    moved = carried(phase)
    assert moved["raid read"] == pytest.approx(plan.size, rel=1e-6)
    assert moved["pfs write"] == pytest.approx(plan.size, rel=1e-6)
    (back,) = plan.restore()
    moved = carried(back)
    assert moved["pfs read"] == pytest.approx(plan.size, rel=1e-6)
    assert moved["raid write"] == pytest.approx(plan.size, rel=1e-6)


def test_snapshot_blocks_for_the_copy_to_pinned_memory_only() -> None:
    """Four GPUs share 190 GB/s of their socket."""
    plan = planned(contents="sharded", mode="snapshot")
    assert blocking(plan) == pytest.approx(plan.size / 8 / (190.4e9 / 4), rel=0.02)
    assert behind(plan) > 5 * blocking(plan)
    pageable = planned("llama-3-70b", contents="sharded", mode="snapshot", pin_memory=False)
    pinned = planned("llama-3-70b", contents="sharded", mode="snapshot")
    assert blocking(pageable) > 5 * blocking(pinned)


def test_decoupled_checkpoint_goes_on_behind_the_training() -> None:
    decoupled = planned(writer=FAST, mode="decoupled", step_time="3 s", update_time="1 s")
    assert all(phase.background for phase in decoupled.save())
    seen = outlook(decoupled)
    assert seen.stall_s == pytest.approx(blocking(planned(writer=FAST)) - 2.0, rel=1e-9)


def test_consolidation_gathers_copies_and_broadcasts_layer_by_layer() -> None:
    """16 GB to rank 0's host memory by one thread, then through torch.save: no faster on more GPUs."""
    eight = dict(_named(contents="consolidated"))
    one = dict(_named(contents="consolidated", ranks=1))
    model = load_model("llama-3.1-8b")
    assert set(eight) == {"gather weights", "save weights", "write back weights"}
    assert eight["save weights"] == pytest.approx(one["save weights"])
    assert one["gather weights"] < eight["gather weights"] < one["gather weights"] + 0.3
    assert eight["gather weights"] > model.weight_bytes / 9.9e9


def _named(**workload: Any) -> list[tuple[str, float]]:
    return [(phase.name, time) for phase, time in times(planned(**workload).save())]


# -- restoring -----------------------------------------------------------------------------------


def test_restoring_reads_faults_pages_in_and_copies_to_the_gpu() -> None:
    """Reading is one thread's work here: 1 / (new pages + copy), while the drives are ahead."""
    plan = planned(ranks=8)
    each = plan.size / 8
    expected = each * (FRESH_READ_S + 1 / MEMCPY) + each / PAGEABLE
    assert restoring(plan) == pytest.approx(expected, rel=0.01)


def test_every_rank_reads_the_weights_but_the_drives_read_them_once() -> None:
    (read, _, _, _) = planned(stage=1).restore()
    assert read.name == "read weights"
    assert carried(read)["raid read"] == pytest.approx(load_model("llama-3.1-8b").weight_bytes, rel=1e-6)


def test_a_kernel_that_reads_little_ahead_starves_on_nfs() -> None:
    """128 KiB in flight over 0.5 ms: each rank gets 0.22 GB/s however fast the server is."""
    rate = 131072 / (500e-6 + 131072 / 1.25e9)
    plan = planned(tier="nfs", ranks=1)
    assert restoring(plan) == pytest.approx(plan.size / rate, rel=0.05)


def test_other_runs_do_not_restore_at_the_same_time() -> None:
    assert restoring(planned(tier="pfs", jobs=8)) == restoring(planned(tier="pfs"))


# -- whatever the knobs --------------------------------------------------------------------------

WRITERS: list[dict[str, Any]] = [{}, {"checkpoint_serialization": False}, {"type": "fast"}, FAST]


@settings(max_examples=some(15))
@given(
    writer=st.sampled_from(WRITERS),
    stage=st.integers(0, 3),
    ranks=st.sampled_from([1, 2, 8]),
    tier=st.sampled_from(["raid", "nfs", "pfs"]),
    fsync=st.booleans(),
    width=st.sampled_from([100, 3000]),
)
def test_within_bounds(
    writer: dict[str, Any], stage: int, ranks: int, tier: str, fsync: bool, width: int
) -> None:
    """No phase beats its links or takes longer than everything in a row, and all bytes arrive."""
    plan = planned(squares(5, width), ranks=ranks, tier=tier, stage=stage, fsync=fsync, writer=writer)
    arrived = 0
    for phase in (*plan.save(), *plan.restore()):
        schedule = phase.schedule({})
        timeline = execute(schedule)
        assert lower_bound(schedule) <= timeline.makespan <= serial_time(schedule)
        links = [link.name for link in schedule.links]
        if phase.name.startswith(("save", "write back")):
            arrived += timeline.link_bytes[links.index(f"{tier} write")]
    assert arrived == pytest.approx(sum(plan.written_by_host), abs=100)


def test_faster_memory_makes_torch_save_faster() -> None:
    machine = machine_of("dgx-h100")
    slow, fast = (blocking(planned(machine=with_memcpy(machine, rate))) for rate in (6 * 10**9, 12 * 10**9))
    assert slow - fast == pytest.approx(96.36e9 / 8 * (1 / 6e9 - 1 / 12e9), rel=0.01)
