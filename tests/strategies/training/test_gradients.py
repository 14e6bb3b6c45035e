"""Gradients of a micro-step: what crosses which link, in closed form, and who waits for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from tests.strategies.training.mode_cases import (
    CPU,
    moved,
    moved_in_cycle,
    operations,
    part,
    plan_of,
    timeline,
)

TENSORS = (*[1000 * 256] * 2, *[256] * 7, *[256 * 256] * 12, *[256 * 512] * 9)
"""Elements of every tensor of the model: embedding and output layer, norms, attention, feed-forward."""
WHOLE = sum(TENSORS)


def owned(ranks: int) -> int:
    """[elements] of one rank's partition, every tensor padded to a whole number."""
    return sum(-(-numel // ranks) for numel in TENSORS)


def step(zero: Mapping[str, Any], **more: Any) -> dict[str, Fraction]:
    return moved_in_cycle(plan_of(zero, **more))


# -- stage 3 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("micro_steps", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "size"), [(None, 2), ("fp32", 4)])
def test_stage_3_sends_gradients_down_and_up_in_every_micro_step(
    ranks: int, micro_steps: int, dtype: str | None, size: int
) -> None:
    """DeepSpeed's ``partition_grads``: n x g + 4 B down and n x g B up per element that a rank owns, where
    only the last 4 B are meant for the optimizer."""
    found = step(
        {"stage": 3, "offload_optimizer": CPU},
        ranks=ranks,
        gradient_accumulation_steps=micro_steps,
        config={"data_types": {"grad_accum_dtype": dtype}},
    )
    assert found["GPU to host"] == (micro_steps * size + 4) * owned(ranks)
    assert found["host to GPU"] == micro_steps * size * owned(ranks)
    assert found["host to GPU, pageable"] == 2 * owned(ranks), "updated parameters"


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("micro_steps", [1, 3])
def test_stage_3_reduces_every_bucket_over_the_ring(ranks: int, micro_steps: int) -> None:
    found = step({"stage": 3, "offload_optimizer": CPU}, ranks=ranks, gradient_accumulation_steps=micro_steps)
    assert found["reduction of gradients"] == micro_steps * (2 * WHOLE * (ranks - 1) // ranks)


@pytest.mark.parametrize("bucket", [100, 70_000, 200_000, 10**6, 10**9])
def test_the_size_of_buckets_does_not_change_what_is_moved(bucket: int) -> None:
    zero = {"stage": 3, "offload_optimizer": CPU, "reduce_bucket_size": bucket}
    assert step(zero, ranks=2) == step({**zero, "reduce_bucket_size": 500_000_000}, ranks=2)


def test_what_stays_on_the_gpu_crosses_no_link_to_the_host() -> None:
    assert set(step({"stage": 3}, ranks=2)) == {"all-gather", "reduction of gradients"}
    assert step({"stage": 3}) == {}


def test_parameters_in_memory_come_once_more_for_each_time_they_are_gathered() -> None:
    """Nothing is kept and nothing prefetched: 2 B per element in forward and 2 B in backward."""
    zero = {
        "stage": 3,
        "offload_optimizer": CPU,
        "offload_param": CPU,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
    }
    for micro_steps in (1, 3):
        found = step(zero, ranks=4, gradient_accumulation_steps=micro_steps)
        assert found["host to GPU"] == micro_steps * (2 + 2 + 2) * owned(4)
        assert found["all-gather"] == micro_steps * (2 + 2) * 3 * owned(4)
        assert "host to GPU, pageable" not in found, "updated parameters stay in host memory"


# -- stages 1 and 2 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_stage_2_sends_its_part_once_where_nothing_is_accumulated(ranks: int) -> None:
    found = step({"stage": 2, "offload_optimizer": CPU}, ranks=ranks)
    assert found["GPU to host"] == 4 * owned(ranks)
    assert found["host to GPU"] == 2 * owned(ranks), "updated parameters, pinned"


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("micro_steps", [2, 3, 7])
def test_stage_2_accumulates_its_part_in_host_memory(ranks: int, micro_steps: int) -> None:
    """Down after every micro-step, up before all but the first (``async_accumulate_grad_in_cpu_via_gpu``)."""
    found = step({"stage": 2, "offload_optimizer": CPU}, ranks=ranks, gradient_accumulation_steps=micro_steps)
    assert found["GPU to host"] == (2 * micro_steps + 4) * owned(ranks)
    assert found["host to GPU"] == (2 * (micro_steps - 1) + 2) * owned(ranks)


def test_stage_1_reduces_once_and_stage_2_in_every_micro_step() -> None:
    """Both with an all-reduce: 2 (W - 1) / W of the gradients cross a rank's link."""
    once = 2 * (2 * WHOLE * 3 // 4)
    for stage, times in ((0, 1), (1, 1), (2, 3)):
        found = step({"stage": stage}, ranks=4, gradient_accumulation_steps=3)
        assert found["reduction of gradients"] == times * once, stage


@pytest.mark.parametrize("stage", [1, 2])
def test_updated_parameters_are_gathered_by_all_ranks(stage: int) -> None:
    assert step({"stage": stage}, ranks=4)["all-gather"] == 2 * 3 * owned(4)
    assert "all-gather" not in step({"stage": 0}, ranks=4)


# -- on storage ----------------------------------------------------------------------------------------


def test_gradients_for_storage_go_into_swap_buffers_which_the_host_waits_for() -> None:
    """Slices of 1 MiB and more are swapped, others go to memory in single precision, too.

    Since 0.19.4 DeepSpeed page-locks the buffers itself, unknown to CUDA.
    """
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
    plan = plan_of(zero, model={"hidden_size": 1024, "intermediate_size": 1024})
    found = moved(plan, part(plan, "backward"))
    large = (*[1000 * 1024] * 2, *[1024 * 1024] * 21)
    small = 7 * 1024
    assert found["GPU to host"] == 2 * (sum(large) + small) + 4 * small
    assert found["GPU to host, pageable"] == 4 * sum(large)
    older = plan_of(zero, model={"hidden_size": 1024, "intermediate_size": 1024}, version="0.19.3")
    assert moved(older, part(older, "backward")) == {
        "host to GPU, pageable": 2 * (sum(large) + small),
        "GPU to host, pageable": 2 * (sum(large) + small) + 4 * small,
        "GPU to host": 4 * sum(large),
    }


# -- who waits -----------------------------------------------------------------------------------------


def busy(plan: ZeroTrainingPlan, title: str) -> Counter[str]:
    """[ps] of fixed time by kind of operation."""
    total: Counter[str] = Counter()
    for op, times in operations(plan.schedule(part(plan, title))):
        total[op.kind] += op.fixed * times
    return total


def test_the_host_waits_for_pageable_and_before_0_19_5_for_all_copies() -> None:
    """4 B an element to the optimizer block the host until DeepSpeed 0.19.5."""
    big = {"hidden_size": 2048, "intermediate_size": 4096}
    zero = {"stage": 3, "offload_optimizer": CPU, "reduce_bucket_size": 10**6}
    pageable = {**zero, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    new, old, slow = (
        timeline(plan, part(plan, "backward")).makespan
        for plan in (
            plan_of(zero, model=big),
            plan_of(zero, model=big, version="0.19.4"),
            plan_of(pageable, model=big),
        )
    )
    assert new < old < slow


def test_at_most_two_buckets_are_being_reduced() -> None:
    """The third waits for the first: smaller buckets cannot make the host run further ahead."""
    zero = {"stage": 3, "offload_optimizer": CPU, "reduce_bucket_size": 1}
    plan = plan_of(zero)
    schedule = plan.schedule(part(plan, "backward"))
    reduce = schedule.streams.index("reduce")
    awaited = sum(
        times
        for op, times in operations(schedule)
        if schedule.streams[op.stream] == "host" and any(need.stream == reduce for need in op.after)
    )
    assert awaited == len(TENSORS) - 3 + 1, "and once for all at the end"


def test_later_micro_steps_take_longer_on_the_gpu() -> None:
    """Stored are 2 passes over HBM, added 3; the boundary adds a norm in double precision and a cast.

    For each tensor an addition is a kernel and one change more between copies and kernels (D2H-H2D-D2H ...
    against H2D-kernel-D2H-H2D ...); the boundary is 5 kernels and one change more.
    """
    plan = plan_of({"stage": 3, "offload_optimizer": CPU}, gradient_accumulation_steps=3)
    first, middle, last = (
        busy(plan, f"backward, {name}")["reduce"]
        for name in ("first micro-step", "middle micro-steps", "last micro-step")
    )
    rate, kernel = plan.machine.accelerator.hbm_rate, plan.machine.accelerator.kernel_latency_s
    change = plan.machine.device_to_host(0, pinned=True).latency
    adding = 3 * 2 * WHOLE / rate + len(TENSORS) * (kernel + change)
    ending = (2 * 2 + 16 + 4) * WHOLE / rate + len(TENSORS) * (5 * kernel + change)
    assert middle - first == pytest.approx(adding * 1e12, rel=1e-4)
    assert last - middle == pytest.approx(ending * 1e12, rel=1e-4)
