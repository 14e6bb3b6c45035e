"""Whole scenarios: exact bytes, bounds, scaling, and that knobs move times the way they should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simoffload.documents import parse_json
from simoffload.engine import execute
from simoffload.errors import InputError
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Schedule
from simoffload.simulation import fit, simulate
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from tests.engine.bounds import lower_bound, serial_time


def scenario(
    *,
    model: Any = "llama-2-7b",
    platform: str = "h100-2nvme",
    ranks: int = 1,
    weights: str = "raid",
    version: str = "0.16.4",
    zero: dict[str, Any] | None = None,
    offload: dict[str, Any] | None = None,
    aio: dict[str, Any] | None = None,
    batch: int = 2,
    tokens: int = 4,
) -> LoadedScenario:
    config = {
        "zero_optimization": {
            "stage": 3,
            **(zero or {}),
            "offload_param": {"pin_memory": True, "buffer_size": 2e9, "buffer_count": 8, **(offload or {})},
        },
        "aio": {"queue_depth": 32, "intra_op_parallelism": 4, **(aio or {})},
    }
    tree = {
        "name": "test",
        "model": model,
        "platform": platform,
        "workload": {"kind": "inference", "batch_size": batch, "prompt_length": 64, "output_length": tokens},
        "strategy": {"ranks": ranks, "weights": weights, "deepspeed_version": version, "ds_config": config},
    }
    return resolve(parse_json(json.dumps(tree), name="test.json"))


def decode(loaded: LoadedScenario) -> Schedule:
    plan = loaded.plan()
    assert isinstance(plan, ZeroInferencePlan)
    return plan.schedule(plan.forward("decode 1", 1, 65))


def carried(schedule: Schedule, link: str) -> int:
    timeline = execute(schedule)
    return dict(zip((each.name for each in schedule.links), timeline.link_bytes, strict=True))[link]


def test_a_step_reads_two_bytes_of_every_swapped_parameter() -> None:
    loaded = scenario()
    swapped = sum(tensor.numel for tensor in loaded.plan().tensors if tensor.on_nvme)
    assert swapped == 6_738_415_616 - (2 * 32 + 1) * 4096  # all but the norms
    assert carried(decode(loaded), "raid read") == 2 * swapped


def test_a_tied_embedding_is_read_twice_when_it_was_let_go_in_between() -> None:
    loaded = scenario(model="bloom-7b1", platform="dgx-a100", zero={"stage3_max_reuse_distance": 1e9})
    swapped = sum(tensor.numel for tensor in loaded.plan().tensors if tensor.on_nvme)
    embedding = 250_880 * 4096
    assert carried(decode(loaded), "raid read") == 2 * (swapped + embedding)
    near = scenario(model="bloom-7b1", platform="dgx-a100", zero={"stage3_max_reuse_distance": 1e12})
    assert carried(decode(near), "raid read") == 2 * swapped


def test_slices_below_a_megabyte_or_a_block_stay_in_memory() -> None:
    one = scenario(model="opt-1.3b", ranks=1)
    blocks_of_16_mib = scenario(model="opt-1.3b", aio={"block_size": 16 << 20})
    assert any(tensor.on_nvme for tensor in one.plan().tensors)
    assert {t.name for t in one.plan().tensors if t.on_nvme} > {
        t.name for t in blocks_of_16_mib.plan().tensors if t.on_nvme
    }


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("weights", ["dram", "raid", "nfs", "ai400x2"])
def test_every_link_carries_what_was_sent_and_time_lies_within_its_bounds(ranks: int, weights: str) -> None:
    schedule = decode(scenario(model="bloom-1b7", platform="dgx-a100", ranks=ranks, weights=weights))
    timeline = execute(schedule)
    sent = [0] * len(schedule.links)
    for block in schedule.blocks:
        for op in block.ops:
            for hops in schedule.routes[op.route].hops if op.size else ():
                for link, coefficient in hops:
                    sent[link] += op.size * coefficient * block.repeat
    assert timeline.link_bytes == tuple(
        size // link.scale for size, link in zip(sent, schedule.links, strict=True)
    )
    assert lower_bound(schedule) <= timeline.makespan <= serial_time(schedule)


def test_half_the_rates_and_twice_the_fixed_times_take_twice_as_long() -> None:
    schedule = decode(scenario(model="bloom-1b7", platform="dgx-a100", ranks=8))
    even = _scaled(schedule, rate=(2, 1), fixed=1)  # so that halving leaves whole numbers
    slow = _scaled(schedule, rate=(1, 1), fixed=2)
    assert execute(slow).makespan == pytest.approx(2 * execute(even).makespan, rel=1e-9)


def _scaled(schedule: Schedule, *, rate: tuple[int, int], fixed: int) -> Schedule:
    up, down = rate
    return schedule._replace(
        links=tuple(link._replace(capacity=link.capacity * up // down) for link in schedule.links),
        routes=tuple(route._replace(cap=route.cap * up // down) for route in schedule.routes),
        blocks=tuple(
            block._replace(ops=tuple(op._replace(fixed=op.fixed * fixed) for op in block.ops))
            for block in schedule.blocks
        ),
    )


def test_identical_layers_are_one_block() -> None:
    schedule = decode(scenario(model="llama-2-7b", weights="dram"))
    assert max(block.repeat for block in schedule.blocks) >= 20  # the rest fills and drains the prefetch
    assert sum(len(block.ops) for block in schedule.blocks) < 400


def test_the_first_pass_has_no_prefetch_and_takes_longer() -> None:
    result = simulate(scenario(weights="dram"))
    assert result.first_pass is not None
    assert result.prefill is not None
    assert result.first_pass.time_s > result.prefill.time_s


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"zero": {"stage3_prefetch_bucket_size": 0}}, {}),
        ({"offload": {"pin_memory": False}}, {}),
        ({"zero": {"stage3_param_persistence_threshold": 0}}, {}),
        ({"zero": {"overlap_comm": False}}, {}),
    ],
    ids=["prefetch off", "pageable memory", "nothing persistent", "no overlap"],
)
def test_knobs_of_cpu_offload_move_the_time(slower: dict[str, Any], faster: dict[str, Any]) -> None:
    times = [simulate(scenario(weights="dram", **knobs)).tpot_s or 0.0 for knobs in (slower, faster)]
    assert times[0] > 1.005 * times[1]


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"aio": {"queue_depth": 1, "intra_op_parallelism": 1}}, {}),
        ({"aio": {"block_size": 64 << 10, "queue_depth": 4, "intra_op_parallelism": 1}}, {}),
        ({"zero": {"stage3_prefetch_bucket_size": 0}}, {}),
    ],
    ids=["queue depth and threads", "block size", "prefetch off"],
)
def test_knobs_of_nvme_offload_move_the_time(slower: dict[str, Any], faster: dict[str, Any]) -> None:
    times = [simulate(scenario(**knobs)).tpot_s or 0.0 for knobs in (slower, faster)]
    assert times[0] > 1.005 * times[1]


def test_before_0_9_one_rank_gathers_with_itself() -> None:
    old, new = (simulate(scenario(weights="dram", version=version)) for version in ("0.8.3", "0.9.0"))
    assert (old.tpot_s or 0.0) > (new.tpot_s or 0.0)
    kinds = {
        op.kind for block in decode(scenario(weights="dram", version="0.9.0")).blocks for op in block.ops
    }
    assert "concat" not in kinds


def test_the_parts_of_a_step_sum_to_it() -> None:
    result = simulate(scenario(model="bloom-1b7", platform="dgx-a100", ranks=8))
    for one in (result.prefill, *result.decode):
        assert one is not None
        assert sum(share.exposed_s for share in one.shares) == pytest.approx(one.time_s, rel=1e-9)
        assert one.bound_s <= one.time_s


def test_interpolated_decode_steps_agree_with_all_of_them() -> None:
    loaded = scenario(model="opt-1.3b", weights="dram", tokens=40, batch=8)
    every = loaded.scenario.model_copy(
        update={"engine": loaded.scenario.engine.model_copy(update={"decode_extrapolation": "off"})}
    )
    full = simulate(LoadedScenario(every, loaded.document, loaded.model, loaded.machine))
    assert len(full.decode) == 39
    assert simulate(loaded).decode_total_s == pytest.approx(full.decode_total_s, rel=1e-3)


def test_offloading_what_fits_is_warned_about() -> None:
    assert any("offloading is not needed here" in warning for warning in simulate(scenario()).warnings)
    large = scenario(model="llama-3-70b")
    assert not any("not needed" in warning for warning in simulate(large).warnings)


def test_what_does_not_fit_is_an_answer() -> None:
    result = simulate(scenario(model="bloom-176b", platform="dgx-a100", ranks=8, weights="hbm"))
    assert not result.fits
    assert result.tpot_s is None
    assert "smallest tier that holds the weights: dram" in result.advice[0]
    assert fit(scenario()).fits


def test_swap_buffers_count_against_host_memory() -> None:
    uses = {use.tier: use for use in fit(scenario(model="bloom-7b1", platform="dgx-a100", ranks=8)).capacity}
    pinned = sum(term.size for term in uses["dram"].terms if term.name == "swap buffers")
    assert pinned == 8 * 8 * 2 * 10**9 * 2  # ranks x buffer_count x buffer_size x 2 B


def test_what_deepspeed_refuses_is_said_before_the_run() -> None:
    with pytest.raises(InputError, match="More elements 131072000 than buffer size 100000000"):
        simulate(scenario(offload={"buffer_size": 1e8}))
    with pytest.raises(InputError, match="Not enough buffers"):
        # A tied embedding that is kept for its second use keeps its only buffer, too.
        simulate(
            scenario(model="bloom-7b1", zero={"stage3_max_reuse_distance": 1e12}, offload={"buffer_count": 1})
        )


def test_streams_and_links_say_how_long_they_were_exposed() -> None:
    step = simulate(scenario(model="bloom-1b7", platform="dgx-a100", ranks=8)).step
    assert step is not None
    assert sum(stream.exposed_s for stream in step.streams) == pytest.approx(step.time_s, rel=1e-9)
    assert all(stream.exposed_s <= stream.busy_s + 1e-9 for stream in step.streams if stream.stream != "comm")
    reads = next(share for share in step.shares if share.cause_text == "raid read")
    link = next(link for link in step.links if link.link == "raid read")
    assert link.exposed_s == pytest.approx(reads.exposed_s)
    assert link.size == reads.size


def test_an_answer_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    answers = {
        subprocess.run(
            [sys.executable, "-m", "simoffload", "run", "ddn/bloom-7b1", "--json"],
            capture_output=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(answers) == 1


def test_advice_is_about_the_part_that_is_too_large() -> None:
    buffers = fit(scenario(platform="dgx-a100", offload={"buffer_count": 50, "buffer_size": 1e11})).advice
    assert "lower offload_param.buffer_count or buffer_size (largest part: swap buffers)" in buffers[0]
    cache = fit(scenario(batch=5000)).advice
    assert "lower batch_size" in cache[0]
    none_left = fit(scenario(model="bloom-mod-2", weights="dram")).advice
    assert "no other tier of this platform is large enough" in none_left[0]


def test_weights_in_hbm_of_one_gpu_are_not_counted_twice() -> None:
    use = next(use for use in fit(scenario(weights="hbm")).capacity if use.tier == "hbm")
    assert "gathered parameters, peak" not in {term.name for term in use.terms}
    alone = next(use for use in fit(scenario(weights="hbm", version="0.8.3")).capacity if use.tier == "hbm")
    assert "all-gather buffer" in {term.name for term in alone.terms}


def test_persistent_parameters_are_not_read_again() -> None:
    loaded = scenario(zero={"stage3_param_persistence_threshold": 4096 * 4096}, offload={"buffer_count": 200})
    kept = sum(tensor.numel for tensor in loaded.plan().tensors if tensor.persistent and tensor.on_nvme)
    swapped = sum(tensor.numel for tensor in loaded.plan().tensors if tensor.on_nvme)
    assert kept == 4 * 32 * 4096 * 4096
    assert carried(decode(loaded), "raid read") == 2 * (swapped - kept)


def test_too_many_ranks_are_refused_with_their_place() -> None:
    with pytest.raises(
        InputError, match=r"test.json:1:\d+: strategy.ranks: 2 ranks, but the platform has 1 GPU"
    ):
        fit(scenario(ranks=2))


def test_weights_that_are_not_on_the_target_are_said() -> None:
    small = scenario(model="opt-125m", platform="dgx-a100", ranks=8)
    assert any("of the weights are stored on raid" in warning for warning in small.plan().warnings)
    assert not any("of the weights are stored on" in warning for warning in scenario().plan().warnings)


def test_resident_is_a_target_without_zero() -> None:
    result = simulate(scenario().on("resident"))
    assert result.first_pass is None
    assert {share.cause_text for share in result.step.shares if result.step} == {"host thread", "GPU compute"}


def test_latency_is_named_as_the_limit_where_it_is() -> None:
    slow = simulate(scenario(model="bloom-7b1", platform="dgx-a100", ranks=8, weights="ai400x2")).step
    assert slow is not None
    assert (
        next(s for s in slow.shares if s.cause_text == "ai400x2 read").limit == "the latency of each transfer"
    )
    assert set(slow.bounds) >= {"GPU compute", "host thread", "ai400x2 read"}
    assert not any("stream" in name for name in slow.bounds)
